"""Policy gradients over two real ranks: losses, counts of sequences and of spans, and gradients of one process."""

from __future__ import annotations

from collections.abc import Iterator

import policy_ranks as ranks_do
import pytest
from crew import Crew
from policy_ranks import Cell


@pytest.fixture(scope="module")
def two() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(ranks_do.LOSSES))
def test_two_ranks_are_one_process(two: Crew, name: str) -> None:
    losses, norms = ranks_do.run(Cell(), name, None)
    assert len(losses) == 4 and min(norms) > 1e-3
    for found in two.run(ranks_do.run, Cell({"shard": 2}), name, 130):
        assert found[0] == pytest.approx(losses, rel=1e-4, abs=1e-5)
        assert found[1] == pytest.approx(norms, rel=1e-4)
