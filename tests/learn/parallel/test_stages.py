"""Pipelines: every schedule trains like one process, whatever is between and beside the stages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from crew import Crew
from hypothesis import given
from hypothesis import strategies as st
from peft import PromptTuningConfig, get_peft_model
from stages_ranks import Training, alone, batch_of, config_of, emptied, laid, model_of, trained
from torch.distributed.pipelining import schedules
from transformers import AutoModelForCausalLM

from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.learn.forward import compute_outputs
from evolvent.learn.parallel.ranks import Mesh, Ranks
from evolvent.learn.parallel.stages import check_pipeline, min_micro_batches, split_into_stages, split_layers
from evolvent.models.tuned import seeded_silence

ONE_EACH, TWO_EACH = ("gpipe", "1f1b"), ("interleaved", "looped_bfs", "zero_bubble", "zbv")
ALL = (*ONE_EACH, *TWO_EACH)
CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "looped_bfs": schedules.ScheduleLoopedBFS,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}
PP2, PP4 = Mesh(pp=2), Mesh(pp=4)
UNEVEN = ((2, 12), (3, 8), (1, 16))
alone = cache(alone)


@pytest.fixture(scope="module")
def two():
    with Crew(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def four():
    with Crew(4) as crew:
        yield crew


def check(crew, training, *, limit=2e-6):
    """All ranks tell the curve of the plain loop, norms before clipping included; the final weights of each rank."""
    wanted = torch.tensor(alone(replace(training, schedule="1f1b", recompute=False)))
    found = crew.run(trained, training)
    for curve, _ in found:
        assert (torch.tensor(curve)[:, 0] - wanted[:, 0]).abs().max() <= limit
        torch.testing.assert_close(torch.tensor(curve)[:, 1], wanted[:, 1], rtol=max(1e-5, 10 * limit), atol=0.0)
    return [weights for _, weights in found]


# ------------------------------------------------------------------ the same training


@pytest.mark.parametrize("schedule", ALL)
def test_every_schedule(two, schedule):
    weights = check(two, Training(PP2, schedule))
    assert not weights[0].keys() & weights[1].keys()
    assert weights[0].keys() | weights[1].keys() == {name for name, _ in model_of(Training(PP2)).named_parameters()}


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_families(two, family):
    check(two, Training(PP2, family=family))


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])  # zbv: both copies are on one rank
def test_tied_embeddings_stay_equal(two, schedule):
    weights = check(two, Training(PP2, schedule, tied=True))
    head = weights[0 if schedule == "zbv" else 1]["lm_head.weight"]
    assert (weights[0]["model.embed_tokens.weight"] == head).all()


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_shapes_that_change_packed_rows_and_empty_micro_batches(two, schedule):
    check(two, Training(PP2, schedule, shapes=UNEVEN, packed=True, empty=(1,), updates=6))


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "looped_bfs", "zbv"])
def test_fewer_micro_batches_than_stages(two, schedule):
    check(two, Training(PP2, schedule, micro=1, layers=5, updates=4))


def test_more_micro_batches_than_stages_and_layers_that_do_not_divide(two):
    check(two, Training(PP2, "1f1b", micro=5, layers=3, updates=4))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_recomputed_layers(two, schedule):
    check(two, Training(PP2, schedule, recompute=True, updates=4))


def test_values(two):
    check(two, Training(PP2, "zero_bubble", values=True, updates=4))


def test_a_head_on_a_frozen_model(two):
    """The first stage has nothing to learn, and says so by no gradient."""
    check(two, Training(PP2, "interleaved", values=True, frozen=("model.", "lm_head"), updates=4))


def test_lora(two):
    training = Training(PP2, "zero_bubble", adapter=True, tied=True)
    weights = check(two, training)
    names = dict(model_of(training).named_parameters()).keys()
    assert weights[0].keys() | weights[1].keys() == names | {"base_model.model.lm_head.weight"}


def test_an_update_without_any_target_has_gradients_of_zero(two):
    for loss, largest in two.run(emptied, Training(PP2, "1f1b", tied=True)):
        assert (loss, largest) == (0.0, 0.0)


@pytest.mark.parametrize(("schedule", "updates"), [("1f1b", 10), ("zbv", 4)])
def test_shards_of_stages(four, schedule, updates):
    weights = check(four, Training(Mesh(pp=2, shard=2), schedule, tied=True, updates=updates))
    head = weights[0 if schedule == "zbv" else 2]["lm_head.weight"]
    assert (weights[0]["model.embed_tokens.weight"] == head).all()


def test_split_layers_under_a_schedule_that_detaches_in_place(four):
    """Tensor parallelism along the sequence leaves a stage with a view, which zero bubbles cannot detach."""
    check(four, Training(Mesh(pp=2, tp=2), "zero_bubble", family="qwen3", tied=True, updates=3))


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "looped_bfs", "zero_bubble"])
@pytest.mark.parametrize("mesh", [Mesh(pp=2, shard=2), Mesh(pp=2, replicate=2)], ids=str)
def test_shards_under_every_schedule(four, mesh, schedule):
    check(four, Training(mesh, schedule, tied=True, recompute=schedule == "zero_bubble"))


@pytest.mark.long
@pytest.mark.parametrize("schedule", ALL)
def test_four_stages_or_eight(four, schedule):
    check(four, Training(PP4, schedule, layers=9, micro=8, tied=True))


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_everything_at_once(schedule):
    with Crew(8) as eight:
        check(eight, Training(Mesh(pp=2, shard=2, tp=2), schedule, tied=True, updates=4))


@pytest.mark.long
def test_bfloat16(four):
    """Without shards hidden states travel in float32, as they are inside an autocast forward; with them in bfloat16."""
    check(four, Training(PP4, "1f1b", dtype=torch.bfloat16), limit=1e-3)
    check(four, Training(Mesh(pp=2, shard=2), "zbv", dtype=torch.bfloat16), limit=5e-3)


# ------------------------------------------------------------------ cutting


def stages_of(model, pp, schedule):
    found = {}
    for rank in range(pp):
        ranks = SimpleNamespace(mesh=Mesh(pp=pp), rank_along=lambda _, rank=rank: rank)
        found |= {chunk.place: chunk for chunk in split_into_stages(model, ranks, schedule, compute=compute_outputs)}
    return [found[place] for place in sorted(found)]


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_stages_have_all_layers_once_and_the_model_stays_as_it_was(schedule, device):
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(layers=7))
    before = {name: id(weight) for name, weight in model.named_parameters()}
    stages = stages_of(model, 3, schedule)
    assert [chunk.place for chunk in stages] == list(range(3 if schedule in ONE_EACH else 6))
    named = [(name, id(weight)) for chunk in stages for name, weight in chunk.model.named_parameters()]
    assert len(named) == len(before) and dict(named) == before
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
    assert [chunk.first for chunk in stages] == [chunk.place == 0 for chunk in stages]
    assert [chunk.last for chunk in stages] == [chunk is stages[-1] for chunk in stages]


def test_hooks_of_a_stage_are_its_own():
    model = model_of(Training(PP2))
    first, last = stages_of(model, 2, "1f1b")
    first.model.model.register_forward_hook(lambda *_: None)
    assert not model.model._forward_hooks and not last.model.model._forward_hooks


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (4, 2, [2, 2]),
        (5, 2, [3, 2]),
        (6, 4, [1, 2, 2, 1]),
        (7, 4, [2, 2, 2, 1]),
        (5, 4, [1, 2, 1, 1]),
        (3, 3, [1, 1, 1]),
    ],
)
def test_what_is_left_over_goes_to_the_early_middle(layers, stages, sizes):
    assert [len(own) for own in split_layers(layers, stages)] == sizes


@given(st.integers(1, 12).flatmap(lambda stages: st.tuples(st.integers(stages, 90), st.just(stages))))
def test_spread(case):
    layers, stages = case
    own = split_layers(layers, stages)
    assert [layer for part in own for layer in part] == list(range(layers)) and len(own) == stages
    sizes = [len(part) for part in own]
    assert max(sizes) - min(sizes) <= 1 and sizes[-1] == min(sizes)


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_counts_are_the_least_that_torch_takes(schedule, pp):
    def takes(count):
        places = [0] if schedule in ONE_EACH else [0, 2 * pp - 1 if schedule == "zbv" else pp]
        facts = {"num_stages": pp * len(places), "group_size": pp, "group_rank": 0, "submod": None}
        stages = [SimpleNamespace(stage_index=place, **facts) for place in places]
        try:
            CLASSES[schedule](stages[0] if schedule in ONE_EACH else stages, count, loss_fn=lambda *_: None)
        except ValueError:
            return False
        return True

    for count in range(1, 12):
        assert min_micro_batches(schedule, pp, count) == next(n for n in range(count, 40) if takes(n))


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("layers", "pp", "schedule", "hint"),
    [
        (4, 4, "1f1b", None),
        (4, 5, "1f1b", "at most pp 4"),
        (4, 2, "zbv", None),
        (5, 3, "zbv", "at most pp 2, or a schedule with one stage per rank: '1f1b' or 'gpipe'"),
        (4, 6, "interleaved", "at most pp 2"),
        (1, 2, "zero_bubble", "at most pp 1"),
    ],
)
def test_more_stages_than_layers(layers, pp, schedule, hint):
    assert [problem.hint for problem in check_pipeline(config_of(layers=layers), pp, schedule)] == [hint] * bool(hint)


def test_a_cut_refuses_more_stages_than_layers():
    with pytest.raises(ConfigError, match=r"6 stages .* of a model of 4 layers"):
        stages_of(model_of(Training(PP2)), 3, "zbv")


@pytest.mark.parametrize("family", ["granite", "phi"])  # embeddings times a number; another name for the norm
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_models_that_are_more_than_their_layers(family, device):
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(family))
    with pytest.raises(
        ConfigError, match=f"'{family}' model is not a sequence of embed_tokens, layers, norm and lm_head"
    ):
        stages_of(model, 2, "1f1b")


def test_virtual_tokens():
    settings = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with seeded_silence(0):
        model = get_peft_model(AutoModelForCausalLM.from_config(config_of()), settings)
    with pytest.raises(ConfigError, match="prompt tuning cannot be cut"):
        stages_of(model, 2, "1f1b")


def one_of_two(schedule="1f1b"):
    """The first of two stages, before any talk with the second."""
    return laid(Training(PP2, schedule), Ranks(PP2, torch.device("cpu")))


def test_batches_that_no_schedule_can_run():
    batches = [batch_of(number, shape=(2, 8)) for number in range(4)]
    backward = partial(one_of_two().backward, loss=None, needs=())
    with pytest.raises(BatchMismatch, match=r"differ in shape: got \[\(2, 8\), \(2, 9\)\]"):
        backward([*batches, batch_of(0, shape=(2, 9))])
    with pytest.raises(
        BatchMismatch, match=r"ranks cannot run this number of micro-batches: got 1, expected 2. Add batches"
    ):
        backward(batches[:1])
    with pytest.raises(BatchMismatch, match="differ in shape"):
        backward([])


def test_what_a_stage_raises_arrives_as_it_was():
    """torch wraps it in a RuntimeError that shows the shapes of the arguments."""
    pipeline, batches = one_of_two("gpipe"), [batch_of(0, shape=(2, 8))]

    def step(*_, **__):
        try:
            raise NonFinite("the loss is not finite")
        except NonFinite as error:
            raise RuntimeError("failed to run forward") from error

    pipeline._built = (2, 8, 1), SimpleNamespace(step=step)
    with pytest.raises(NonFinite, match="the loss is not finite"):
        pipeline.backward(batches, lambda *_: None, ())
