"""Four ranks for all tests of this folder."""

import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parents[1] / "parallel"):
    sys.path.insert(0, str(folder))


@pytest.fixture(scope="package")
def crew():
    from crew import Crew

    with Crew(4) as ranks:
        yield ranks
