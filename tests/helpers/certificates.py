"""Certificates that nobody trusts unless told to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, of: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
    """For a host, this one unless told otherwise, and its key: files in PEM."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    names = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", f"subjectAltName={of}", "-out", names[0], "-keyout", names[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return names
