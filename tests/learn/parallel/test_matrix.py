"""Every layout trains as one process does, and goes on where another stopped: the cells of `benchmarks.parallel`."""

from __future__ import annotations

import pytest

from benchmarks.parallel import Crews, difference
from benchmarks.parallel_cells import UPDATES, Cell, Trained, cells, resumes, train

ORDER = sorted(cells(), key=lambda cell: cell.parallelism.mesh.size)
MARKED = [pytest.param(cell, id=str(cell), marks=[pytest.mark.long] if cell.long else []) for cell in ORDER]
PAIRS = [pytest.param(*pair, id=f"{pair[0].parallelism.mesh} to {pair[1].parallelism.mesh}",
                      marks=[] if number % 5 == 1 else [pytest.mark.long])
         for number, pair in enumerate(resumes())]  # fmt: skip


@pytest.fixture(scope="module")
def crews():
    made = Crews()
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone() -> dict[str, Trained]:
    return {}


def single(alone: dict[str, Trained], cell: Cell) -> Trained:
    key = repr(cell.alone)
    if key not in alone:
        alone[key] = train(cell.alone)
    return alone[key]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cell", MARKED)
def test_a_layout_trains_as_one_process_does(cell: Cell, crews: Crews, alone: dict[str, Trained]) -> None:
    wanted, found = single(alone, cell), crews.train(cell)
    assert found.order == wanted.order
    assert difference(wanted.losses, found.losses) <= cell.bound
    assert len(set(wanted.losses)) == UPDATES, "a training in which nothing moves proves nothing"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_a_training_goes_on_under_another_layout(first, then, crews, alone, tmp_path) -> None:
    whole = single(alone, Cell())
    began = crews.train(first, str(tmp_path), UPDATES // 2)
    ended = crews.train(then, str(tmp_path))
    assert [*began.order, *ended.order] == list(whole.order)
    assert difference(whole.losses, ended.losses) <= 2e-6
