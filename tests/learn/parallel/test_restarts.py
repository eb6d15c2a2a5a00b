"""Ranks that are started again meet in the store that torchrun's agent keeps, and take nothing in it for their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import starts_ranks
from torch.distributed import TCPStore

from tests.forks import context


@pytest.fixture
def store() -> Iterator[Any]:
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))


def start(
    store: Any, size: int, *, numbers: range | None = None, end: str = "well", timeout: float = 60.0
) -> list[Any]:
    """Start ranks that use the store; what they said, in the order of their numbers."""
    forks = context()
    said: Any = forks.Queue()
    more = (size, store.port, (end, timeout), said)
    chosen = range(size) if numbers is None else numbers
    ranks = [forks.Process(target=starts_ranks.rank, args=(number, *more), daemon=True) for number in chosen]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    found = []
    while not said.empty():
        found.append(said.get())
    return sorted(found, key=lambda one: (isinstance(one[1], str), one[0]))


def test_every_start_is_a_new_one(store):
    """Addresses and failures of ranks that were killed or raised stay in the store; there may be more ranks then."""
    sums = [(0, 3.0), (1, 3.0)]
    killed = start(store, 2, end="killed")
    assert (0, 3.0) in killed and "rank 1 died" in killed[-1][1]
    raised = start(store, 2, end="raising")
    assert raised[:2] == sums and (1, "enough") in raised and "rank 1 has had enough" in dict(raised[2:])[0]
    assert start(store, 3) == [(0, 6.0), (1, 6.0), (2, 6.0)]
    assert start(store, 2) == sums


@pytest.mark.parametrize(("here", "missing"), [(0, "ranks 1, 2 have"), (2, "rank 0 has")])
def test_one_that_nobody_answers_says_who_is_missing(store, here, missing):
    start(store, 3)
    ((number, told),) = start(store, 3, numbers=range(here, here + 1), timeout=1.0)
    assert number == here and told.startswith(f"{missing} not started: got nothing for 1 s")
