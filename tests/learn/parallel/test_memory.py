"""The memory planner against what trainings really hold: by hand, in one process, over ranks, by torch's schedules."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from crew import Crew
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_ranks import batch_of, config_of, held
from peft import LoraConfig, get_peft_model
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import schedules
from transformers import AutoModelForCausalLM

from evolvent.errors import ConfigError
from evolvent.learn.forward import compute_outputs
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim import OptimizerConfig
from evolvent.learn.parallel import memory
from evolvent.learn.parallel.memory import (
    Load,
    TrainingPlan,
    build_meta_model,
    estimate_memory,
    format_plans,
    suggest_plans,
)
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.parallel.stages import min_micro_batches
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer
from evolvent.models.tuned import seeded_silence

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
OPTIMIZERS = ("adamw", "sgd", "adafactor", "lion", "adan", "sophiag", "lomo", "adalomo", "rmsprop", "came")
KINDS = ("parameters", "gradients", "optimizer", "copies", "activations", "logits")
ONE, LOAD = Parallelism(), Load(2, 16)


def planned(config, layout=ONE, optimizer="adamw", *, load=LOAD, **more):
    return estimate_memory(build_meta_model(config), layout, OptimizerConfig(name=optimizer, **more), load=load)


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize(("device", "block"), [("cpu", 1 << 22), ("cuda", 1 << 25)])
def test_a_frozen_head_needs_blocks_of_logits(device, block):
    """d 32 and 2^18 words: 2^23 weights. Of 4 x 64 targets `[N, 32]` directions are kept, and blocks of logits."""
    config = config_of()
    config.vocab_size = 1 << 18
    load = Load(4, 64, device=device)
    model = build_meta_model(config).requires_grad_(False)
    model.model.layers[0].requires_grad_(True)
    found = estimate_memory(model, ONE, OptimizerConfig(), load=load)
    assert found.logits == 3 * (256 * 32 * 4 + 4 * block)
    trained = estimate_memory(build_meta_model(config), ONE, OptimizerConfig(), load=load)
    assert trained.logits >= 3 * 4 * 256 * (1 << 18), "few logits of a trained head are computed at once"


def test_a_model_that_can_be_counted_by_hand():
    """d 32, 4 heads of 8, 2 kv heads, ffn 56, 96 words, 4 layers, untied; 2 x 16 tokens, all learned."""
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 56 + 2 * 32
    weights = 4 * layer + 2 * 96 * 32 + 32
    tensors = 4 * 9 + 3
    found = planned(config_of())
    assert (found.parameters, found.gradients) == (4 * weights, 4 * weights)
    assert found.optimizer == 8 * weights + 4 * tensors  # two moments, and a step count for each tensor
    # two norms of 2d + 1, what attention and mlp read, q and its output of d, k and v of d/2, a logsumexp a head, 4 ffn
    kept = 2 * (2 * 32 + 1) + 2 * 32 + 32 + 2 * 16 + 32 + 4 + 4 * 56
    tables = 2 * 16 * 8 + 32 * (2 * 32 + 1)  # cos and sin; the last norm
    assert found.activations == 4 * (4 * 32 * kept + tables) + 8 * 32  # the ids, for the embedding
    assert found.copies == 0
    fused = planned(config_of(), optimizer="lomo")
    assert fused.gradients == 4 * 96 * 32 and fused.total < found.total
    assert planned(config_of(), optimizer="lomo", fused=False).gradients == 4 * weights
    assert planned(config_of(), optimizer="lomo", load=Load(2, 16, micro_batches=2)).gradients == 4 * weights


def test_total_is_the_worst_moment():
    """With many targets the loss is it, with few the end of backward; a tied table is there three times."""
    table = 4 * 96 * 32
    small = planned(config_of(), load=Load(1, 4))
    assert small.total == small.parameters + small.gradients + small.optimizer
    large = planned(config_of(), optimizer="lomo", load=Load(8, 32))
    assert large.total == large.parameters + large.optimizer + large.activations + large.logits
    tied = planned(config_of(tied=True), optimizer="lomo", load=Load(1, 1))
    assert tied.total == tied.parameters + tied.optimizer + 3 * table
    several = planned(config_of(), load=Load(1, 4, micro_batches=2))
    assert several.total == sum(getattr(several, kind) for kind in KINDS)


# ------------------------------------------------------------------ one process


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_are_those_of_the_optimizer(optimizer):
    config = config_of("qwen2", tied=True)
    found, real = planned(config, optimizer=optimizer, fused=False), held(config, {}, optimizer)
    assert {kind: getattr(found, kind) for kind in ("parameters", "gradients", "optimizer")} == {
        kind: real[kind] for kind in ("parameters", "gradients", "optimizer")
    }


def saved(model, batch, *, dtype=torch.float32):
    """Bytes that autograd saves while the decoder runs, and while head and loss do; weights left out."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    seen, inside = {}, [False]

    def keep(tensor):
        where = tensor.untyped_storage()
        if where.data_ptr() not in weights:
            seen.setdefault(where.data_ptr(), (tensor, where.nbytes(), inside[0]))
        return tensor

    decoder = (model.get_base_model() if hasattr(model, "get_base_model") else model).get_decoder()
    decoder.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))
    decoder.register_forward_hook(lambda *_: inside.__setitem__(0, False))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        amount = weighted_nll.loss(compute_outputs(model, batch, dtype=dtype), batch)[0]
    del amount
    return sum(size for _, size, within in seen.values() if within)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(1, 24), (3, 10), (2, 40)])
def test_activations_are_what_autograd_saves(family, shape, packed):
    config = config_of(family)
    real = saved(AutoModelForCausalLM.from_config(config).train(), batch_of(*shape, share=0.5, packed=packed))
    found = planned(config, load=Load(*shape, targets_share=0.5, packed=packed)).activations
    assert found == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_keeps_copies_of_weights_apart(family):
    config, batch = config_of(family), batch_of(2, 24)
    real = saved(AutoModelForCausalLM.from_config(config).train(), batch, dtype=torch.bfloat16)
    found = planned(config, load=Load(2, 24, dtype="bfloat16"))
    head = 2 * 96 * 32
    assert found.copies == sum(2 * w.numel() for w in build_meta_model(config).parameters() if w.dim() > 1) - head
    assert found.activations + found.copies - head == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_keeps_inputs_and_one_layer(family):
    config = config_of(family, layers=6)
    whole, deep = planned(config), planned(config, Parallelism(recompute=True))
    layer = planned(config_of(family, layers=7)).activations - whole.activations
    assert whole.activations - deep.activations == 5 * layer - 6 * 4 * 2 * 16 * 32


def test_a_sliding_window_that_is_full_has_a_mask():
    config = config_of("mistral", sliding_window=8)
    real = saved(AutoModelForCausalLM.from_config(config).train(), batch_of(2, 24))
    assert planned(config, load=Load(2, 24)).activations == pytest.approx(real, rel=0.02)


def test_what_is_frozen_has_neither_gradient_nor_state():
    model = build_meta_model(config_of())
    base = estimate_memory(model, ONE, OptimizerConfig(), load=LOAD)
    settings = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "o_proj"])
    with seeded_silence(0), torch.device("meta"):
        tuned = get_peft_model(copy.deepcopy(model), settings)
    found = estimate_memory(tuned, ONE, OptimizerConfig(), load=LOAD)
    added = 4 * 4 * (2 * (32 + 32) * 2)
    assert found.parameters == base.parameters + added
    assert (found.gradients, found.optimizer) == (added, 2 * added + 4 * 16)
    assert found.activations < base.activations
    cut = estimate_memory(tuned, Parallelism(tp=2), OptimizerConfig(), load=LOAD)
    assert cut.gradients == added * 3 // 4  # of each pair, what meets the split side is split


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3", "prompt", "prefix"])
def test_adapters_keep_what_is_planned(kind):
    tokenizer = word_tokenizer(["north", "south"])
    model = AutoModelForCausalLM.from_config(config_of(layers=8)).train()
    policy = Policy(model, tokenizer, dialect_for(tokenizer, "words"))
    tuned = adapt(policy, AdapterConfig(kind=kind, tokens=4), seed=0).model
    found = estimate_memory(tuned, ONE, OptimizerConfig(), load=LOAD)
    trained = [weight for weight in tuned.parameters() if weight.requires_grad]
    assert found.gradients == sum(weight.nbytes for weight in trained)
    assert found.optimizer == 2 * found.gradients + 4 * len(trained)
    # the first layer of the real model keeps less: nothing before it learns
    assert found.activations == pytest.approx(saved(tuned, batch_of(2, 16)), rel=0.08)
    assert all(weight.device.type == "cpu" for weight in tuned.parameters())


@given(
    rows=st.integers(1, 4), tokens=st.integers(2, 40), share=st.sampled_from([0.1, 0.5, 1.0]), shard=st.integers(1, 9)
)
@settings(max_examples=8, deadline=None)
def test_more_work_takes_more_and_more_ranks_take_less(rows, tokens, share, shard):
    model, rule = build_meta_model(config_of(layers=2)), OptimizerConfig()
    load = Load(rows, tokens, targets_share=share)
    here, wider = (estimate_memory(model, Parallelism(shard=size), rule, load=load) for size in (shard, 2 * shard))
    assert wider.parameters <= here.parameters and wider.optimizer <= here.optimizer
    assert here.parameters >= estimate_memory(model, ONE, rule, load=load).parameters / shard
    more = estimate_memory(model, Parallelism(shard=shard), rule, load=Load(rows + 1, tokens, targets_share=share))
    assert more.activations > here.activations and more.logits >= here.logits and more.total >= here.total
    assert here.total <= sum(getattr(here, kind) for kind in KINDS)


# ------------------------------------------------------------------ over ranks

TWO = [
    {"shard": 2},
    {"replicate": 2},
    {"tp": 2},
    {"tp": 2, "sequence": False},
    {"pp": 2},
    {"pp": 2, "schedule": "zbv"},
    {"pp": 2, "schedule": "interleaved"},
]
FOUR = [
    {"shard": 4},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tp": 2},
    {"pp": 2, "shard": 2},
    {"pp": 2, "tp": 2},
    {"pp": 4, "schedule": "gpipe"},
]


@pytest.fixture(scope="module")
def two():
    with Crew(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def four():
    with Crew(4) as crew:
        yield crew


def agrees(crew, config, layout, optimizer):
    micro = 4 if "pp" in layout else 1
    real = crew.run(held, config, layout, optimizer, 2, 16, micro)
    load = Load(2, 16, micro_batches=micro)
    model, p = build_meta_model(config), Parallelism(**layout)
    found = estimate_memory(model, p, OptimizerConfig(name=optimizer, fused=False), load=load)
    worst = real[found.stage * p.mesh.size // p.pp]
    for kind in ("parameters", "gradients", "optimizer"):
        assert getattr(found, kind) == pytest.approx(worst[kind], rel=0.01), kind
    if p.pp == 1:
        layer = memory._measure_activations(model, p, load, uses_fsdp=p.mesh.uses_fsdp(fuses=False)).layer
        assert layer == pytest.approx(max(rank["layer"] for rank in real), rel=0.02)


@pytest.mark.parametrize("layout", TWO, ids=str)
@pytest.mark.parametrize(("family", "tied", "optimizer"), [("llama", False, "adamw"), ("qwen3", True, "adalomo")])
def test_two_ranks_hold_what_is_planned(two, family, tied, optimizer, layout):
    agrees(two, config_of(family, tied=tied), layout, optimizer)


@pytest.mark.long
@pytest.mark.parametrize("layout", FOUR, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_four_ranks_hold_what_is_planned(four, family, layout):
    agrees(four, config_of(family, layers=8), layout, "adamw")


# ------------------------------------------------------------------ pipelines

CLASSES = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "looped_bfs": schedules.ScheduleLoopedBFS,
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


@pytest.mark.parametrize("schedule", CLASSES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_waiting_micro_batches_are_those_of_the_schedules(schedule, pp):
    """Forwards minus backwards along torch's own order of actions; weights' gradients keep activations too."""
    for count in (number for number in range(1, 13) if min_micro_batches(schedule, pp, number) == number):
        facts = {"num_stages": 2 * pp, "group_size": pp, "group_rank": 0, "submod": None}
        places = (0, 2 * pp - 1 if schedule == "zbv" else pp)
        stages = [SimpleNamespace(stage_index=place, **facts) for place in places]
        orders = CLASSES[schedule](stages, count, loss_fn=lambda *_: None).pipeline_order
        real = max(most(order) for order in orders.values())
        model, load = build_meta_model(config_of(layers=2 * pp)), Load(1, 8, micro_batches=count)
        kept = memory._ActivationBytes(layer=1000, input=0, end=0, logits=0)
        weights = list(memory._iterate_weights(model, Parallelism(pp=pp, schedule=schedule)))
        p = Parallelism(pp=pp, schedule=schedule)
        found = [
            memory._pending_bytes(
                kept, memory._select_stage_weights(weights, p, stage), p, stage=stage, count=load.micro_batches
            )[0]
            for stage in range(pp)
        ]
        assert max(found) == 1000 * real


def most(order):
    alive, found = 0, 0
    for action in order:
        kind = action.computation_type.name if action is not None else ""
        alive += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"))
        found = max(found, alive)
    return found


# ------------------------------------------------------------------ plans


def test_the_nearest_plans_that_fit():
    model, rule, load = build_meta_model(config_of(layers=8)), OptimizerConfig(), Load(8, 64)
    plain = estimate_memory(model, ONE, rule, load=load)
    roomy = suggest_plans(model, ONE, rule, load=load, card=2 * plain.total)
    assert [plan.changes for plan in roomy] == ["as asked", "offload", "shard 2, recompute", "adalomo"]
    assert (roomy[1].estimate.optimizer, roomy[1].load.offload) == (0, "optimizer")
    assert roomy[1].estimate.total == plain.total - plain.optimizer
    assert roomy[0].estimate == plain
    two = Parallelism(shard=2)
    (offloaded,) = [plan for plan in suggest_plans(model, two, rule, load=load, card=10**9) if plan.load.offload]
    divided = estimate_memory(model, two, rule, load=load)
    assert offloaded.parallelism == two and offloaded.estimate.total == divided.total - divided.optimizer
    tight = suggest_plans(model, ONE, rule, load=load, card=plain.total)  # some of a card is not usable
    assert tight[0].changes == "recompute" and tight[0].parallelism.recompute
    assert all(plan.estimate.total <= plain.total for plan in tight)
    deep = estimate_memory(model, Parallelism(recompute=True), rule, load=load)
    single = suggest_plans(model, ONE, rule, load=load, card=deep.total)[0]
    assert (single.load.rows, single.load.micro_batches) == (1, 8)
    assert suggest_plans(model, ONE, rule, load=load, card=1000) == []


def test_a_table_of_plans():
    model = build_meta_model(config_of())
    plan = TrainingPlan(
        ONE, OptimizerConfig(), LOAD, estimate_memory(model, ONE, OptimizerConfig(), load=LOAD), "as asked"
    )
    rows = format_plans([plan, plan], 2**30)
    assert rows[0] == ["GiB a rank", "as asked", "as asked"]
    assert [row[0] for row in rows[1:]] == [
        "parameters",
        "gradients",
        "optimizer",
        "copies",
        "activations",
        "logits",
        "total",
        "fits 1 GiB",
    ]
    assert rows[-1] == ["fits 1 GiB", "yes", "yes"] and all(len(row) == 3 for row in rows)
    assert len(format_plans([plan])) == 8


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ConfigError, match="adamv"):
        planned(config_of(), optimizer="adamv")


def test_planning_leaves_the_model_as_it_was():
    model = build_meta_model(config_of())
    before = {name: (id(weight), weight.shape) for name, weight in model.named_parameters()}
    estimate_memory(model, Parallelism(tp=2), OptimizerConfig(), load=LOAD)
    assert {name: (id(weight), weight.shape) for name, weight in model.named_parameters()} == before
    assert not any(module._forward_hooks for module in model.modules())
