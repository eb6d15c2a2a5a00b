"""The memory that reinforcement learning is planned with: by hand, against real networks, and what is refused."""

from __future__ import annotations

import gc
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from evolvent.cli.main import main
from evolvent.cli.setup.settings import parse_command
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train import planning
from evolvent.cli.train.rl import METHODS, make_command, run
from evolvent.engine.asks import ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.learn.optim import OptimizerConfig
from evolvent.learn.parallel.memory import USABLE_RATIO, Load, build_meta_model, estimate_memory
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.methods.ppo import PPOConfig, ppo
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.nf4 import list_nf4_layers
from evolvent.rl.memory import RLWork, estimate_rl_memory, format_rl_plans, suggest_rl_plans
from evolvent.rl.trainer import PolicyTrainer, RLConfig
from evolvent.rollout.episode import Limits
from evolvent.run import Run
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.worlds.lookup import Lookup

ADAMW, ONE = OptimizerConfig(), Parallelism()
WORK = RLWork(Load(2, 16), episodes=3, context=16)


@pytest.fixture(scope="module")
def model():
    """d 32, 4 heads of 8, 2 kv heads, ffn 56, 96 words, 4 layers, untied, without memory for its weights."""
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=56,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return build_meta_model(config)


# A layer: q and o of 32 x 32, k and v of 32 x 16, three matrices of 32 x 56, two norms. Then embedding, head, a norm.
WEIGHTS = 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 56 + 2 * 32) + 2 * 96 * 32 + 32
STATES = 8 * WEIGHTS + 4 * (4 * 9 + 3)  # two moments, and a step count for each tensor
HEAD = 4 * (32 * 32 + 32 + 32 + 1)  # of values: a layer of 32, and one with a single output
TEXT = 16 * 4 * (4 * 2 * 2 * 8 + 32)  # 16 tokens: keys and values of 4 layers, 2 heads of 8 each, the hidden state


def test_a_model_that_can_be_counted_by_hand(model):
    update = estimate_memory(model, ONE, ADAMW, load=WORK.load)
    alone = estimate_rl_memory(model, ONE, ADAMW, work=WORK)
    assert (alone.parameters, alone.reference, alone.critic) == (4 * WEIGHTS, 4 * WEIGHTS, 0)
    assert (alone.gradients, alone.optimizer) == (4 * WEIGHTS, STATES)
    assert alone.engine == 4 * WEIGHTS, "of a small model in float32 the decoder holds a copy"
    assert (alone.text, alone.keys_values) == (TEXT, 3 * TEXT)
    assert alone.update == update.total + 4 * WEIGHTS, "the reference; the engine has given its memory back"
    assert alone.beside_episodes == 3 * 4 * WEIGHTS + STATES + update.logits
    assert alone.total == max(alone.update, alone.beside_episodes + 3 * TEXT)
    assert alone.required == max(alone.update, alone.beside_episodes + TEXT)
    shared = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, values="shared"))
    assert shared.total - alone.total == 4 * HEAD, "weights, gradient and two moments of the head"
    separate = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, values="separate", kept_policies=2))
    assert (separate.reference, separate.critic) == (8 * WEIGHTS, 4 * WEIGHTS + HEAD)
    assert (separate.gradients, separate.optimizer) == (8 * WEIGHTS + HEAD, 2 * STATES + 2 * HEAD)
    soft = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, values="soft_q"))
    assert soft.critic == 8 * WEIGHTS + 2 * HEAD and soft.logits == update.logits + 6 * 4 * 2 * 16 * 96
    ahead = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, prefetched=2, rollout_dtype="bfloat16"))
    assert ahead.engine == (1 + 2) * 4 * WEIGHTS + 2 * WEIGHTS and ahead.text == TEXT // 2


@pytest.mark.parametrize(
    "changes", [{"load": replace(WORK.load, device="cuda")}, {"prefetched": 1}, {"players": 2}], ids=str
)
def test_an_engine_that_stays_is_there_in_an_update(model, changes):
    update = estimate_memory(model, ONE, ADAMW, load=WORK.load)
    kept = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, **changes))
    assert kept.total == update.total + kept.reference + kept.engine + 3 * TEXT
    assert kept.required == kept.total - 2 * TEXT and kept.update == 0
    assert kept.parallel_episodes(10 * kept.total) == 3


def test_episodes_are_as_many_as_playing_leaves_room_for(model):
    """An update that is released from keys and values does not take room from them."""
    alone = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, episodes=1000))
    available = ceil((alone.beside_episodes + 5 * TEXT) / USABLE_RATIO)
    assert alone.fits(available) == (alone.update <= USABLE_RATIO * available)
    assert alone.parallel_episodes(available) == 5


def test_players_have_weights_and_copies_of_their_own(model):
    """Others keep keys and values, too, where they play instead."""
    three = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, players=3))
    assert three.engine == 3 * 2 * 4 * WEIGHTS and three.keys_values == 3 * TEXT
    none = estimate_rl_memory(model, ONE, ADAMW, work=replace(WORK, players=0))
    assert (none.engine, none.keys_values, none.text) == (0, 0, 0) and none.required == none.total


def test_what_waits_in_main_memory_is_not_counted(model):
    plain = estimate_rl_memory(model, ONE, ADAMW, work=WORK)
    offloads = {offload: replace(WORK, load=replace(WORK.load, offload=offload)) for offload in ("optimizer", "both")}
    estimates = {offload: estimate_rl_memory(model, ONE, ADAMW, work=work) for offload, work in offloads.items()}
    assert (plain.optimizer, plain.reference) == (STATES, 4 * WEIGHTS)
    assert (estimates["optimizer"].optimizer, estimates["optimizer"].reference) == (0, 4 * WEIGHTS)
    assert (estimates["both"].optimizer, estimates["both"].reference) == (0, 0)
    assert estimates["both"].total == plain.total - STATES - 4 * WEIGHTS
    on_card = replace(WORK, load=replace(WORK.load, device="cuda"))
    plans = suggest_rl_plans(model, ONE, ADAMW, work=on_card, available=int(0.8 * plain.required))
    assert "--train.offload both" in [plan.settings for plan in plans]
    two = Parallelism(shard=2)
    divided = estimate_rl_memory(model, two, ADAMW, work=on_card)
    plans = suggest_rl_plans(model, two, ADAMW, work=on_card, available=int(0.9 * divided.required))
    assert "--train.offload both" in [plan.settings for plan in plans], "over ranks too"
    plans = suggest_rl_plans(model, ONE, ADAMW, work=WORK, available=int(0.8 * plain.required))
    assert all("offload" not in plan.settings for plan in plans), "a CPU has its weights in main memory"


def test_a_base_of_four_bits_is_played_as_floats(model):
    """Layers have 4.13 bits a weight, less the rounding of blocks to whole groups; the engine's copy has 32."""
    policy = make_policy([Lookup()], size="xs", seed=0)
    plain, quantized = (
        adapt(
            replace(policy, model=build_meta_model(policy.model.config)),
            AdapterConfig(kind="lora", base_bits=bits),
            seed=0,
        )
        for bits in (None, 4)
    )
    whole, less = (estimate_rl_memory(each.model, ONE, ADAMW, work=WORK) for each in (plain, quantized))
    frozen = sum(layer.out_features * layer.in_features for layer in list_nf4_layers(quantized.model).values())
    assert whole.parameters - less.parameters == pytest.approx(frozen * (4 - 4.13 / 8), rel=0.02)
    assert (less.engine, less.reference, less.gradients) == (whole.engine, whole.reference, whole.gradients)


def test_ranks_play_with_whole_weights(model):
    halves = estimate_rl_memory(model, Parallelism(shard=2), ADAMW, work=WORK)
    assert halves.parameters < 4 * WEIGHTS and halves.engine == 8 * WEIGHTS and halves.reference == 4 * WEIGHTS


def test_the_nearest_settings_that_fit_are_suggested(model):
    work = replace(WORK, load=Load(32, 16, micro_batches=2))
    whole = estimate_rl_memory(model, ONE, ADAMW, work=work)
    assert [plan.changes for plan in suggest_rl_plans(model, ONE, ADAMW, work=work, available=2 * whole.total)] == [
        "as asked"
    ]
    plans = suggest_rl_plans(model, ONE, ADAMW, work=work, available=whole.total // 2)
    assert [plan.changes for plan in plans][:1] == ["smaller forwards"] and "both" in [plan.changes for plan in plans]
    assert plans[0].settings == "--train.max_tokens_per_forward 128"
    assert all(plan.estimate.fits(whole.total // 2) for plan in plans)
    assert suggest_rl_plans(model, ONE, ADAMW, work=work, available=8 * WEIGHTS) == []
    rows = {row[0]: row[1:] for row in format_rl_plans(plans, whole.total // 2)}
    assert rows["keys values"][0] == f"{3 * TEXT / 2**20:.1f}" and set(rows["episodes at once"]) == {"3"}


# ---------------------------------------------------------------------- what is really held


def practise(folder, monkeypatch, *, recompute: bool) -> dict[str, object]:
    """One iteration of PPO with a critic of its own: the bytes that are held after its update, those of the engine
    while it plays, losses, gradients."""
    policy, world, seen = make_policy([Lookup()], size="xs", seed=0), Lookup(), dict[str, object]()
    practice = RLConfig(iterations=1, tasks_per_iteration=2, group_size=2, ppo_epochs=1, minibatches=1, horizon=1)
    practice = practice.model_copy(update={"critic": "separate"})
    backend = LocalBackend(
        {world.name: world},
        panel=EvaluationPanel(limit=2, tiers=world.tiers[:1]),
        slots=4,
        max_tokens=8,
        limits=Limits(horizon=1),
        parallelism=Parallelism(recompute=recompute),
    )
    train = PolicyTrainer._update_networks

    def watch(self, *columns) -> None:
        train(self, *columns)
        learners = [self.learner, self.critic]
        weights = [[*learner.policy.model.parameters()] for learner in learners]
        moments = [moment for learner in learners for moment in learner.trained.moments().values()]
        seen["parameters"] = size_of(weights[0])
        seen["critic"] = size_of(weights[1])
        seen["gradients"] = size_of([weight.grad for part in weights for weight in part])
        seen["optimizer"] = size_of(moments)
        seen["reference"] = size_of(self.initial_policy.model.parameters())
        engine = backend._engine
        seen["released"] = not hasattr(engine, "_decoder") and not engine._rows.arena.touched.any()
        seen["recomputes"] = [learner.policy.model.is_activation_checkpointing for learner in learners]
        seen["grads"] = [weight.grad.clone() for weight in weights[0]]
        seen["metrics"] = dict(self.metrics)

    score = PolicyTrainer.score

    def watch_score(self, *arguments, **options):
        decoder = backend._engine._decoder
        seen["engine"] = size_of(tensors_of([decoder._embedding, decoder._layers, decoder._norm, decoder._logits]))
        return score(self, *arguments, **options)

    monkeypatch.setattr(PolicyTrainer, "score", watch_score)
    monkeypatch.setattr(PolicyTrainer, "_update_networks", watch)
    with Run(folder, backend, seed=0, settings=backend.settings(), method="python") as run:
        ppo(policy, list(world.tasks("train", world.tiers[0]))[:4], config=PPOConfig(practice=practice), run=run)
    monkeypatch.undo()
    return seen


def size_of(tensors) -> int:
    """Bytes of the storages below tensors, each counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def tensors_of(tree: object) -> list[torch.Tensor]:
    """The tensors in lists and in objects with slots."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, list):
        return [tensor for branch in tree for tensor in tensors_of(branch)]
    return tensors_of([getattr(tree, name) for name in getattr(tree, "__slots__", ())])


def test_the_plan_is_what_a_training_holds_and_recomputation_changes_no_result(tmp_path, monkeypatch):
    plain = practise(tmp_path / "plain", monkeypatch, recompute=False)
    policy = make_policy([Lookup()], size="xs", seed=0)
    work = RLWork(Load(1, 64), 4, policy.context, values="separate")
    planned = estimate_rl_memory(build_meta_model(policy.model.config), ONE, ADAMW, work=work)
    for kind in ("parameters", "critic", "gradients", "optimizer", "reference", "engine"):
        assert getattr(planned, kind) == pytest.approx(plain[kind], rel=0.02), kind
    assert plain["released"], "the engine has no copies, keys and values while the weights are updated"
    again = practise(tmp_path / "again", monkeypatch, recompute=True)
    assert (plain["recomputes"], again["recomputes"]) == ([False] * 2, [True] * 2)
    for name in ("loss", "grad_norm", "critic_loss"):
        assert again["metrics"][name] == pytest.approx(plain["metrics"][name], rel=2e-6, abs=2e-6)
    for gradient, other in zip(plain["grads"], again["grads"], strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=2e-6)


def test_an_engine_is_released_only_where_nobody_needs_it():
    policy = make_policy([Lookup()], size="xs", seed=0)
    backend = LocalBackend({"lookup": Lookup()}, slots=4)
    engine = backend.serve_policy(policy)
    (scored,) = ask_and_wait([ScoreAsk(None, [1, 2, 3])], engine)
    backend._release_engine(only_idle=True)
    assert hasattr(engine, "_decoder") and not engine.is_idle and scored.node.length == 3
    with ThreadPoolExecutor(1) as threads, backend._lock:
        threads.submit(backend._release_engine).result()
    assert hasattr(engine, "_decoder"), "another thread plays"
    del scored
    gc.collect()
    backend._release_engine(only_idle=True)
    assert not hasattr(engine, "_decoder")
    assert backend.serve_policy(policy) is engine
    (again,) = ask_and_wait([ScoreAsk(None, [1, 2, 3])], engine)
    assert len(again.logprobs) == 3


def test_the_engine_takes_what_the_update_leaves():
    policy, budget = make_policy([Lookup()], size="xs", seed=0), 2_000_000
    backend = LocalBackend({"lookup": Lookup()}, slots=64, engine_bytes=budget)
    engine = backend.serve_policy(policy)
    assert isinstance(engine, LocalEngine) and engine.memory_bytes == budget
    assert engine._rows.max_tokens == budget // engine._decoder.shape.token_bytes(torch.float32)


# ---------------------------------------------------------------------- the command

COMMAND = ("train", "grpo", "--worlds", "lookup", "--demonstrations", "0", "--tasks", "4", "--panel.limit", "2")


def test_the_command_plans_and_does_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*COMMAND, "--plan", "--card", "0.02"]) == 0
    shown = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert "64 episodes of at most 256 tokens at once" in " ".join(shown.split())
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["fits"][3:5] == ["no", "yes"] and "keys values" in shown and "episodes at once" in shown
    assert "--train.max_tokens_per_forward" in shown
    assert main([*COMMAND, "--plan", "--card", "24GB"]) == 2
    assert "expected the memory of a device in GiB" in capsys.readouterr().err


class _Opened(Exception):
    """What the command was about to open."""


@pytest.mark.parametrize(
    ("words", "players"),
    [
        ((), None),
        (("--on", "here?players=3"), 3),
        (("--on", "ray"), 1),
        (("--on", "head:6379"), 0),
        (("--endpoint", "http://127.0.0.1:1", "--model", "m", "--hand_over", "x"), 0),
    ],
)
def test_those_who_play_on_this_machine_are_counted(words, players):
    method = METHODS["grpo"]
    args = parse_command(make_command("grpo", method), ["--worlds", "lookup", *words], make_console(io.StringIO(), {}))
    assert planning._count_players(args.config) == players


def test_ranks_are_checked_with_the_layout_that_they_will_have(tmp_path, monkeypatch):
    """Without a layout each has a share of every weight."""

    def check(config, practice, policy, **more):
        raise _Opened(config.parallel.shard, config.backend)

    monkeypatch.setattr(planning, "check_rl_memory", check)
    words = [*COMMAND[1:], "--to", str(tmp_path / "run"), "--on", "here?players=5"]
    with pytest.raises(_Opened) as opened:
        run(["--method", *words], make_console(io.StringIO(), {}), SimpleNamespace(rank=1, world=2))
    assert opened.value.args == (2, "here?players=2")


def test_recomputation_reaches_the_learner_of_the_command(tmp_path, monkeypatch):
    def open_nothing(setup, console):
        raise _Opened(setup.backend_factory({}).parallelism.recompute)

    monkeypatch.setattr("evolvent.cli.train.rl.open_run", open_nothing)
    for is_set in (True, False):
        words = [*COMMAND[1:], "--to", str(tmp_path / "run"), "--parallel.recompute", str(is_set).lower()]
        with pytest.raises(_Opened) as opened:
            run(["--method", *words], make_console(io.StringIO(), {}))
        assert opened.value.args == (is_set,)


def test_an_update_that_does_not_fit_is_refused_before_anything_is_played(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "reserved_bytes", lambda: 0)
    monkeypatch.setattr(planning, "find_memory_limit", lambda: (30_000_000, "the limit of the control group"))
    assert main([*COMMAND, "--to", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and not (tmp_path / "run").exists()
    assert error.startswith(
        "error: an update of this training does not fit the limit of the control group: got 0.03 GB"
    )
    assert "set --train.max_tokens_per_forward" in error and "--plan lists the memory by kind" in error
