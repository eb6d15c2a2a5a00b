from __future__ import annotations

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.bubblewrap import isolation
from evolvent.sandbox.pool import Boxes


@pytest.fixture(scope="session")
def isolated():
    try:
        return isolation()
    except IsolationUnavailable as error:
        pytest.skip(f"this host has no isolation: {error}")


@pytest.fixture(scope="module")
def boxes(isolated):
    with Boxes(at_once=4) as pool:
        yield pool
