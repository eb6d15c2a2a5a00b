"""The Learner over two ranks: losses that are not finite on one, resumes on another layout, values in low precision."""

from __future__ import annotations

import learner_ranks as ranks_do
import pytest
from crew import Crew
from learner_ranks import Cell

LORA = {"adapter": "lora", "lr": 1e-2}
AVERAGED = {"optimizer": "schedulefreeadamw", "lr": 1e-2}  # what learns is kept beside what is shown


@pytest.fixture(scope="module")
def two():
    with Crew(2) as crew:
        yield crew


def near(one, other):
    return len(one) == len(other) and max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "optimizer", "options"),
    [
        ({"shard": 2}, "lomo", {"clip": "none"}),
        ({"shard": 2}, "lomo", {}),
        ({"pp": 2}, "adamw", {}),
        ({"tp": 2}, "adamw", {}),
        ({"replicate": 2}, "adamw", {}),
        ({"replicate": 2}, "lomo", {"clip": "none"}),
    ],
)
def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_all(two, layout, optimizer, options):
    cell = Cell(layout, optimizer=optimizer, options=options, lr=0.05 if optimizer == "lomo" else 4e-3)
    one, other = two.run(ranks_do.run, cell, "broken", {"patience": 9})
    assert one[2] == other[2] and 0 < len(one[2]) < 6 and one[3] and other[3]
    assert repr(one[:3]) == repr(other[:3]), "nan is not equal to itself"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ({"pp": 2, "schedule": "zbv"}, {"tied": True, "optimizer": "lion", "lr": 4e-4}),
        ({"tp": 2}, LORA),
        ({"shard": 2}, AVERAGED),
        ({"replicate": 2}, LORA),
        pytest.param({"pp": 2}, {"tied": True}, marks=pytest.mark.long),
        pytest.param({"pp": 2}, LORA, marks=pytest.mark.long),
        pytest.param({"shard": 2}, LORA, marks=pytest.mark.long),
        pytest.param({"pp": 2}, {"tied": True, **AVERAGED}, marks=pytest.mark.long),
        pytest.param({"tp": 2}, AVERAGED, marks=pytest.mark.long),
        pytest.param({"replicate": 2}, {"tied": True}, marks=pytest.mark.long),
        pytest.param({"replicate": 2}, AVERAGED, marks=pytest.mark.long),
    ],
)
def test_a_training_goes_on_in_one_process_and_back(two, tmp_path, layout, more):
    if more.get("optimizer") == AVERAGED["optimizer"]:
        pytest.importorskip("pytorch_optimizer")
    alone, laid = Cell(**more), Cell(layout, **more)
    whole = ranks_do.train(alone)[0]
    two.run(ranks_do.run, laid, "imitation", {"folder": str(tmp_path / "out"), "stop": 3})
    assert near(ranks_do.train(alone, folder=str(tmp_path / "out"))[0], whole)
    ranks_do.train(alone, folder=str(tmp_path / "back"), stop=3)
    for losses, *_ in two.run(ranks_do.run, laid, "imitation", {"folder": str(tmp_path / "back")}):
        assert near(losses, whole)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [{"shard": 2}, {"replicate": 2}])
def test_values_stay_in_float32_beside_low_weights(two, layout):
    wanted = ranks_do.train(Cell(), "both", dtype="bfloat16_weights")
    for losses, *_ in two.run(ranks_do.run, Cell(layout), "both", {"dtype": "bfloat16_weights"}):
        assert losses == pytest.approx(wanted[0], abs=5e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [{"shard": 2}, {"replicate": 2}, {"tp": 2}, {"pp": 2}])
def test_gradients_are_those_of_one_process(two, layout):
    """The norm tells what AdamW, which forgives a constant factor, does not."""
    losses, norms, *_ = ranks_do.train(Cell(), "both", max_tokens_per_forward=130)
    for found in two.run(ranks_do.run, Cell(layout), "both", {"micro_tokens": 130}):
        assert near(found[0], losses) and found[1] == pytest.approx(norms, rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_gradients_of_copies_are_averaged_and_those_of_nobody_stay_away(two):
    first, second = two.run(ranks_do.average)
    assert first == second
    assert first["both"] == [2.0, 3.0] and first["first alone"] == [0.5] and first["low"] == [1.5]
    assert first["nobody"] is None and first["frozen"] is None
    assert first["large"] == [1.5] * 6, "larger than a bucket"


@pytest.mark.filterwarnings("ignore")
def test_copies_hold_plain_weights_and_keep_their_policy(two):
    """Nothing is gathered and nothing copied: what plays is what is trained."""
    first, second = two.run(ranks_do.hold, {"replicate": 2})
    assert first == second and first[:2] == (True, True)
    assert not two.run(ranks_do.hold, {"shard": 2})[0][0]


OFFLOADED = [({"shard": 2}, {}), ({"pp": 2}, {"tied": True})]
MORE_OFFLOADED = [
    ({"tp": 2}, {}),
    ({"shard": 2}, LORA),
    ({"replicate": 2}, {}),
    ({"shard": 2}, {"optimizer": "adan", "lr": 4e-4}),
    ({"tp": 2}, {"optimizer": "lion", "lr": 4e-4}),
    ({"shard": 2}, {"optimizer": "sgd", "lr": 0.05}),
    ({"tp": 2}, LORA),
    ({"pp": 2}, LORA),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "more"), [*OFFLOADED, *(pytest.param(*case, marks=pytest.mark.long) for case in MORE_OFFLOADED)]
)
def test_states_in_main_memory_change_no_loss_and_no_norm(two, layout, more):
    cell = Cell(layout, **more)
    wanted = two.run(ranks_do.run, cell, "imitation", {})[0]
    assert len(set(wanted[0])) == 6, "a training in which nothing moves proves nothing"
    for losses, norms, _, are_finite in two.run(ranks_do.run_offloaded, cell, {}):
        assert losses == pytest.approx(wanted[0], abs=2e-6) and norms == pytest.approx(wanted[1], rel=1e-5)
        assert are_finite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [{"shard": 2}, pytest.param({"tp": 2}, marks=pytest.mark.long)])
def test_a_training_goes_on_with_and_without_offload(two, tmp_path, layout):
    """Its checkpoints are those of a training without it, in one process too."""
    cell = Cell(layout)
    whole = ranks_do.train(Cell())[0]
    two.run(ranks_do.run_offloaded, cell, {"folder": str(tmp_path / "out"), "stop": 3})
    assert near(ranks_do.train(Cell(), folder=str(tmp_path / "out"))[0], whole)
    two.run(ranks_do.run, cell, "imitation", {"folder": str(tmp_path / "back"), "stop": 3})
    for losses, *_ in two.run(ranks_do.run_offloaded, cell, {"folder": str(tmp_path / "back")}):
        assert near(losses, whole)
