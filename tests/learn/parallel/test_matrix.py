"""Every layout trains as one process does, and goes on where another stopped: the cells of `benchmarks.parallel`.

`make test` runs what nothing else proves of the whole Learner; `make test-full` runs every cell and every pair.
The short cells: a mesh of replicas alone, beside shards, beside split layers and beside stages; middle stages; three
kinds of ranks at once; biases that are split and sharded; a rule that feels the scale of gradients; a curvature that is
measured over ranks; an optimizer for stages alone; rules that update in the backward, and the same rule outside of it;
two stages of one rank that share a weight; recomputed layers, sharded and split; packed rows, split and in stages; an
adapter split and sharded.
"""

from __future__ import annotations

import pytest

from benchmarks.parallel import Crews, difference
from benchmarks.parallel_cells import UPDATES, Cell, Trained, cells, resumes, train
from tests.forks import context

ENOUGH = 6  # updates of a short cell, two of them warm-up: what is laid wrongly is wrong in the first
SHARDS_OF_PARTS = {"shard": 2, "tp": 2}
# What other short tests prove as strictly, by who proves it.
# The pairs below: a curve of two halves, each under one of these layouts.
LAYOUTS = ({"shard": 2}, {"tp": 2}, {"pp": 2}, {"shard": 4}, SHARDS_OF_PARTS, {"pp": 2, "shard": 2})
RESUMED = [Cell(layout) for layout in LAYOUTS]
ELSEWHERE = [
    Cell({"pp": 2, "schedule": "zero_bubble"}),  # test_stages: every schedule
    Cell({"pp": 2}, "qwen3", True),
    Cell({"pp": 2}, adapter="lora", lr=1e-2),  # test_learner_ranks: out and back
    Cell({"pp": 2, "tp": 2}),  # the cell of eight ranks; test_stages
    Cell({"shard": 2}, adapter="prompt", lr=1e-2),  # test_adapters_sharded: the Learner with every kind
    Cell({"tp": 2, "sequence": False}),  # test_plan: trainings and gradients both ways
    Cell(SHARDS_OF_PARTS, "qwen3"),  # test_plan: shards of parts of this family
    # tests of optimizers: these rules on four shards and on shards of parts
    Cell(SHARDS_OF_PARTS, optimizer="lion"),
    Cell(SHARDS_OF_PARTS, optimizer="adan"),
    Cell({"shard": 4}, optimizer="lomo"),
    Cell({"shard": 4}, optimizer="adalomo"),
]
# Four ranks are dear where two processors are shared, and these are one step away from a short cell.
NEAR = [
    Cell({"replicate": 2, "tp": 2}),
    Cell({"pp": 2, "replicate": 2}),  # replicate 2, tp 2 and pp 2 are each other's kin
    Cell(SHARDS_OF_PARTS, optimizer="sgd"),
    Cell(SHARDS_OF_PARTS, optimizer="sophiag"),
]
LONG = {str(cell) for cell in (*RESUMED, *ELSEWHERE, *NEAR)}
# A ring: every layout writes a checkpoint, and every layout goes on from one.
RING = ("one process", "shard 4", "pp 2", "tp 2", "pp 2 x shard 2", "shard 2", "shard 2 x tp 2")

ORDER = sorted(cells(), key=lambda cell: cell.parallelism.mesh.size)
MARKED = [
    pytest.param(cell, id=str(cell), marks=[pytest.mark.long] if cell.long or str(cell) in LONG else [])
    for cell in ORDER
]
NEXT = {f"{one} to {other}" for one, other in zip(RING, (*RING[1:], RING[0]), strict=True)}
NAMED = {f"{one.parallelism.mesh} to {other.parallelism.mesh}": (one, other) for one, other in resumes()}
PAIRS = [pytest.param(*pair, id=name, marks=[] if name in NEXT else [pytest.mark.long]) for name, pair in NAMED.items()]


def test_what_is_left_to_other_tests_is_in_the_table() -> None:
    """A name that no cell has would leave nothing out, or a pair of the ring would not be run."""
    assert {str(cell) for cell in ORDER} >= LONG and NAMED.keys() >= NEXT
    assert {name.partition(" to ")[2] for name in NEXT} == {str(cell.parallelism.mesh) for cell in RESUMED} | {RING[0]}


@pytest.fixture(scope="module")
def crews():
    context()
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
    updates = UPDATES if cell.long or str(cell) in LONG else ENOUGH
    wanted, found = single(alone, cell), crews.train(cell, None, updates)
    assert found.order == wanted.order[:updates] and len(found.order) == updates
    assert difference(wanted.losses[:updates], found.losses) <= cell.bound
    assert len(set(wanted.losses)) == UPDATES, "a training in which nothing moves proves nothing"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_a_training_goes_on_under_another_layout(first, then, crews, alone, tmp_path) -> None:
    whole = single(alone, Cell())
    began = crews.train(first, str(tmp_path), UPDATES // 2)
    ended = crews.train(then, str(tmp_path))
    assert [*began.order, *ended.order] == list(whole.order)
    assert difference(whole.losses, ended.losses) <= 2e-6
