"""What the tests of `hemiola run` share."""

from __future__ import annotations

from uuid import uuid4

import pytest


@pytest.fixture
def mark() -> str:
    """A word that stands in the environment of all that the test starts."""
    return f"HEMIOLA_TEST_{uuid4().hex}"
