"""What the tests of the lab share: the right to build one, and a name that no other test has."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def name() -> Iterator[str]:
    """A lab's name of this test's own; nothing by that name may be left when the test ends."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("needs root, with the right to make network namespaces")
    from lab_helpers import left_of

    own = f"test-{secrets.token_hex(4)}"
    yield own
    assert left_of(own) == []
