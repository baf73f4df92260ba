"""Hemiola schedules distributed machine learning on every clock."""

from __future__ import annotations

__version__ = "0.1.0"
