"""The monitor: operations by hand and by torch's own counter, memory by kind to the byte, rows when they are due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from byte_policy import byte_policy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig

from evolvent.learn import monitor as module
from evolvent.learn.cost import Cost
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.monitor import TrainingMonitor, build_monitor, measure_gemm_ceiling, measure_memory
from evolvent.learn.objectives import value_objective, weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.progress import UpdateMetrics
from evolvent.learn.token_sequences import Batch, TokenSequence
from evolvent.models.adapters import AdapterConfig, adapt

ROWS, TOKENS, SCORED = 3, 32, 40


def llama(**changed):
    """Two layers with four query heads on two key/value heads, attention as plain matrix products."""
    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "attn_implementation": "eager",
    }
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**sizes | changed))


def batch():
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 256, (ROWS, TOKENS), generator=drawn)
    index = torch.randperm(ROWS * TOKENS, generator=drawn)[:SCORED].sort().values
    targets = torch.randint(0, 256, (SCORED,), generator=drawn)
    samples = tuple(range(ROWS))
    return Batch(ids, index, targets, torch.ones(SCORED), samples, ROWS * TOKENS, sequence=index // TOKENS)


def counted(model):
    """Operations of the forward and backward that trains, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        found = compute_outputs(model, batch())
        found.logprobs.sum().backward()
    return counter.get_total_flops()


def whole(cost):
    """The cost of the batch with the masked half of attention, which eager attention computes."""
    return cost.count_operations(ROWS * TOKENS, SCORED, 2 * TOKENS)


@pytest.mark.parametrize("tied", [False, True])
def test_the_operations_of_a_small_llama_are_those_worked_by_hand_and_those_that_torch_counts(tied):
    model = llama(tie_word_embeddings=tied)
    queries, keys, mlp = 2 * 64 * 64, 2 * 32 * 64, 3 * 64 * 176  # q and o, k and v, gate and up and down
    cost = Cost.from_model(model)
    assert cost == Cost(body=6 * 2 * (queries + keys + mlp), head=6 * 64 * 256, attention=12 * 2 * 4 * 16 / 2)
    assert whole(cost) == pytest.approx(counted(model), rel=0.05)
    assert whole(cost) == counted(model)  # there is nothing else to multiply


def test_frozen_weights_cost_two_thirds():
    model = llama()
    cost = Cost.from_model(model)
    model.requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_()
    frozen = Cost.from_model(model)
    assert (frozen.body, frozen.head) == (cost.body * 4 / 6, cost.head * 4 / 6)
    assert frozen.attention == cost.attention
    assert whole(frozen) == counted(model)


@pytest.mark.parametrize(
    "config",
    [
        AdapterConfig(kind="lora", rank=4, targets=("all-linear",)),
        AdapterConfig(kind="ia3"),
        AdapterConfig(kind="prefix", tokens=1),
        AdapterConfig(kind="prompt", tokens=1),
    ],
    ids=lambda config: config.kind,
)
def test_the_operations_under_an_adapter_are_those_that_torch_counts(config):
    """Nothing goes back through the first matrices below an adapter, which matters in a model of two layers."""
    policy = adapt(replace(byte_policy(), model=llama(vocab_size=258, num_hidden_layers=4)), config, seed=0)
    assert whole(Cost.from_model(policy.model)) == pytest.approx(counted(policy.model), rel=0.05)


def test_recomputation_is_no_work_of_the_model():
    model = llama()
    plain, needed = counted(model), Cost.from_model(model)
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert counted(model) > 1.2 * plain
    assert Cost.from_model(model) == needed


def parts(length, learned):
    """A sequence whose last so many tokens are learned; `length` tokens are fed."""
    size = length + 1
    weight = np.zeros(size, np.float32)
    weight[size - learned :] = 1.0
    flags, numbers = np.zeros(size, np.bool_), np.zeros(size, np.int32)
    columns = {"returns": np.zeros(size, np.float32)}
    return TokenSequence(
        "t", numbers, flags, flags, np.zeros(size, np.float32), numbers, numbers, weight, columns=columns
    )


def test_the_cost_of_a_fed_token_is_a_mean_over_the_data():
    cost = Cost(body=10.0, head=100.0, attention=1.0)
    data = [parts(2, 1), parts(4, 2)]
    assert [one.feed for one in data] == [2, 4]
    # 6 tokens; attention 2 x 2 + 4 x 4; 3 scored
    assert cost.per_token(data) == pytest.approx((6 * 10 + 20 + 3 * 100) / 6)
    assert cost.per_token(data, uses_head=False) == pytest.approx((6 * 10 + 20) / 6)
    assert cost.per_token([parts(2, 0)]) == 0.0


def test_the_ceiling_is_measured_without_touching_the_random_numbers_of_the_training():
    before = torch.get_rng_state()
    rates = [
        measure_gemm_ceiling(torch.device("cpu"), dtype, seconds=0.01) for dtype in (torch.float32, torch.bfloat16)
    ]
    assert min(rates) > 1e6
    assert torch.equal(torch.get_rng_state(), before)


def test_memory_by_kind_is_to_the_byte():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad])
    empty = measure_memory(model.parameters(), optimizer, torch.device("cpu"))
    assert (empty["parameters"], empty["gradients"], empty["optimizer"]) == (4 * (36 + 8), 0, 0)
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    full = measure_memory(model.parameters(), optimizer, torch.device("cpu"))
    assert (full["gradients"], full["optimizer"]) == (4 * 8, 2 * 4 * 8 + 4)  # two moments and a count
    assert full["peak"] > 10 * 2**20  # a process with torch in it


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """Rank 0 of four that are not there: collectives do nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("four_ranks")
def test_of_sharded_weights_this_rank_counts_its_own_part():
    model = nn.Linear(16, 12, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    assert isinstance(model.weight, DTensor)
    found = measure_memory(model.parameters(), optimizer, torch.device("cpu"))
    share = 4 * 16 * 12 // 4
    assert (found["parameters"], found["gradients"], found["optimizer"]) == (share, share, 2 * share + 4)


# ---------------------------------------------------------------------- rows


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)
    return clock


def update(number, fed=50, padded=10):
    return UpdateMetrics(number, 1.0, 1.0, 1e-3, 20, fed, padded)


def small_monitor(**changed):
    weight = nn.Parameter(torch.ones(3))
    return TrainingMonitor(8.0, 1000.0, [weight], torch.optim.SGD([weight], lr=0.1), **changed)


def test_rows_come_when_they_are_due_and_hold_what_came_since_the_last(clock):
    monitor = small_monitor(interval_s=2.0)
    assert monitor(update(1)) is None  # its time holds the start
    clock.now += 0.5
    row = monitor(update(2), waited=0.1)
    assert row["step"] == 2
    assert (row["tokens_per_s"], row["data_wait"]) == (100.0, 0.2)
    assert row["pad_fraction"] == pytest.approx(10 / 60, abs=1e-4)
    assert row["gemm_share"] == pytest.approx(50 * 8 / 0.5 / 1000)
    assert (row["gemm_per_s"], row["parameters_bytes"], row["process_bytes"]) == (1000, 12, monitor.process_bytes)
    for number in range(3, 7):
        clock.now += 0.5
        row = monitor(update(number, fed=number))
        assert (row is None) == (number < 6)
    assert row["tokens_per_s"] == pytest.approx((3 + 4 + 5 + 6) / 2.0)


def test_rows_describe_batches_and_the_place_in_the_data(clock):
    """Each update learns 20 tokens of 50 that are fed; a pass is 100 tokens, and 60 were learned before."""
    monitor = small_monitor(interval_s=2.0, dataset_tokens=100, learned_tokens=60)
    monitor(update(1))
    clock.now += 0.5
    row = monitor(update(2))
    assert (row["updates_per_s"], row["update_tokens"], row["learned_fraction"], row["epoch"]) == (2.0, 50.0, 0.4, 1.0)
    for number in (3, 4):
        clock.now += 1.0
        row = monitor(update(number, fed=40 * (number - 2)))
    assert (row["updates_per_s"], row["update_tokens"], row["learned_fraction"]) == (1.0, 60.0, round(40 / 120, 4))
    assert row["epoch"] == 1.4 and "epoch" not in _rows_without_size(clock)


def _rows_without_size(clock):
    monitor = small_monitor()
    monitor(update(1))
    clock.now += 9.0
    return monitor(update(2))


def test_between_rows_nothing_is_looked_at(clock, monkeypatch):
    monitor, looked = small_monitor(), []
    monkeypatch.setattr(module, "measure_memory", lambda *_: looked.append(1) or {})
    for number in range(1, 101):
        clock.now += 0.01
        monitor(update(number))
    assert len(looked) == 1


def test_the_process_before_training_is_told_apart_from_its_weights():
    weight = nn.Parameter(torch.ones(8 * 2**20))
    monitor = TrainingMonitor(1.0, 1.0, [weight], torch.optim.SGD([weight], lr=0.1))
    resident = module._resident_bytes()
    assert abs(monitor.process_bytes + 32 * 2**20 - resident) < 8 * 2**20
    assert 0 < resident <= module._peak_resident_bytes() + 2**20


@pytest.mark.parametrize("objective", [weighted_nll, value_objective()], ids=lambda objective: objective.name)
def test_a_monitored_learner_counts_all_its_weights_and_the_head_where_it_runs(objective):
    policy = adapt(byte_policy(), AdapterConfig(kind="lora"), seed=0)
    cost, data = Cost.from_model(policy.model), [parts(4, 3)]
    learner = Learner(policy, objective, TrainConfig(max_steps=1), seed=0, optimizer=OptimizerConfig())
    monitor = build_monitor(learner, cost, data)
    assert monitor.operations_per_token == cost.per_token(data, uses_head=objective is weighted_nll)
    assert monitor.optimizer is learner.optimizer
    held = sum(weight.numel() for weight in policy.model.parameters())
    assert sum(weight.numel() for weight in monitor.parameters) == held
    assert held > sum(weight.numel() for weight in learner.trained.weights.values())


@pytest.mark.parametrize(
    ("dtype", "low"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("bfloat16_weights", torch.bfloat16)],
)
def test_the_ceiling_is_that_of_the_numbers_that_are_multiplied(dtype, low, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "measure_gemm_ceiling", lambda device, dtype: asked.append((device.type, dtype)) or 1.0)
    policy = byte_policy()
    learner = Learner(policy, weighted_nll, TrainConfig(max_steps=1, dtype=dtype), seed=0)
    build_monitor(learner, Cost.from_model(policy.model), [parts(4, 3)])
    assert asked == [("cpu", low)]
