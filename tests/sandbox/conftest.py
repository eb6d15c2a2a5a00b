from __future__ import annotations

import pytest

from evolvent.sandbox.bubblewrap import isolation
from evolvent.sandbox.pool import SandboxPool


@pytest.fixture(scope="session")
def isolated():
    return isolation()


@pytest.fixture(scope="module")
def boxes(isolated):
    with SandboxPool(at_once=4) as pool:
        yield pool
