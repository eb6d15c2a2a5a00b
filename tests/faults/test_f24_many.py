"""Fault 24: iterating over many trajectories takes the memory of few."""

from __future__ import annotations

import pytest
from small_store import python

# Writes so many episodes, then iterates in a process of its own and tells its peak memory in bytes.
WRITE = """
import sys
from dataclasses import replace
from small_store import episode
from evolvent.store.store import Store
one = episode(0)
with Store.open(sys.argv[1], writing=True, segment_bytes=300_000) as store:
    for number in range(int(sys.argv[2])):
        store.append(replace(one, id=f"e{number}"))
        if number == int(sys.argv[2]) * 6 // 10:
            store.seal()
"""
READ = """
import resource, sys
from evolvent.store.store import Store
count = sum(1 for _ in Store.open(sys.argv[1]).trajectories())
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def _peak(path, count: int) -> int:
    said, error = python(WRITE, path, count).communicate()
    assert not error
    said, error = python(READ, path).communicate()
    found, peak = map(int, said.split())
    assert found == count, error
    return peak


@pytest.mark.parametrize("sizes", [(1000, 10_000), pytest.param((10_000, 1_000_000), marks=pytest.mark.long)])
def test_iteration_in_constant_memory(tmp_path, sizes):
    """Over ten times as many, half sealed, half live, the peak grows by at most 10 %."""
    few, many = (_peak(tmp_path / str(count), count) for count in sizes)
    assert many <= 1.1 * few
