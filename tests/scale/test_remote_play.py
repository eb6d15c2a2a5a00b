"""Reinforcement with an endpoint that plays: the same tokens and updates as in process, and what goes wrong on the way.

The endpoint is the command `evolvent serve --policy` in a process of its own.
"""

from __future__ import annotations

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, EndpointError, VocabularyMismatch
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tiny import init_tiny, tiny_config
from evolvent.rl.trainer import RLConfig
from evolvent.scale.endpoint_backend import EndpointBackend, write_plain
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.store.store import Store
from tests.learn.byte_policy import byte_policy
from tests.serve.command import command

NAME = "first"  # the model is called as its folder


class Letters(ev.TextWorld):
    """1 for each of two answers that begin with an odd byte, which a policy that knows nothing does now and then.

    `meddle` is called in the middle of the episode of the task `at`.
    """

    name, horizon, instructions, run_in_thread = "letters", 2, "Say something odd.", False
    reward_range = (0.0, 2.0)
    at, meddle = None, staticmethod(lambda: None)

    def specs(self):
        return [{"n": n} for n in range(60)]

    def play(self, spec):
        said = yield f"task {spec['n']}"
        if spec["n"] == self.at:
            self.meddle()
        said = yield "again", float(ord(said[:1] or "b") % 2)
        return float(ord(said[:1] or "b") % 2)


@pytest.fixture(scope="module")
def policy():
    return byte_policy(context=256, seed=3)


@contextmanager
def served(policy, folder, *, timeout_s=30.0):
    """The command, serving the policy and taking weights from anywhere in the folder; yields (endpoint, server)."""
    write_plain(policy, folder / NAME)
    with command("--policy", folder / NAME, "--reload", folder, OMP_NUM_THREADS="1") as server:
        with Endpoint(server.url, NAME, tokens=True, processed=True, timeout_s=timeout_s) as endpoint:
            yield endpoint, server


@pytest.fixture(scope="module")
def shared(policy, tmp_path_factory):
    """One server for all tests that leave it alive: (endpoint, the folder that it takes weights from)."""
    folder = tmp_path_factory.mktemp("served")
    with served(policy, folder) as (endpoint, _):
        yield endpoint, folder


def verbs(world, *, kind=LocalBackend, **more):
    train = ev.TrainConfig(lr=2e-3, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=2048)
    return kind({world.name: world}, train, EvaluationPanel(limit=8), slots=8, max_tokens=4, **more)


def remote(world, endpoint, folder, **more):
    return verbs(world, kind=EndpointBackend, endpoint=endpoint, handover=folder, **more)


def practised(folder, using, policy, world, **config):
    """GRPO for three iterations; returns the last policy, the played episodes and the metrics."""
    asked = GRPOConfig(practice=RLConfig(iterations=3, tasks_per_iteration=3, group_size=4, temperature=1.3), **config)
    with ev.Run(folder, using, seed=5, settings=using.settings()) as run:
        best = grpo(policy, world.tasks("train", "seen"), config=asked, run=run.arm("grpo"))
    played = {one.id: one for one in Store.open(folder / "trajectories").trajectories() if "practise" in one.id}
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "practise" and "mismatch" in row]
    return best, played, rows


def test_grpo_over_http_is_grpo_in_process(tmp_path, policy, shared):
    world, (endpoint, root) = Letters(), shared
    here, played_here, _ = practised(tmp_path / "here", verbs(world), policy, world, importance_correction="truncated")
    using = remote(world, endpoint, root / "plain")
    there, played_there, rows = practised(tmp_path / "there", using, policy, world, importance_correction="truncated")
    ids = {name.partition("/")[2] for name in played_here}
    assert len(ids) == 3 * 12 and ids == {name.partition("/")[2] for name in played_there}
    pairs = {name.partition("/")[2]: one for name, one in played_here.items()}
    for name, one in played_there.items():
        pair = pairs[name.partition("/")[2]]
        assert one.actions == pair.actions and one.score == pair.score and one.error is None
        for own, other in zip(one.generations, pair.generations, strict=True):
            assert own.ids.tolist() == other.ids.tolist() and own.extends == other.extends
            assert own.policy_version == other.policy_version
            np.testing.assert_allclose(own.logprobs, other.logprobs, atol=2e-5)
    versions = [
        {g.policy_version for t in played_there.values() if f"/{n}/" in t.id for g in t.generations} for n in (1, 2, 3)
    ]
    assert versions == [{0}, {1}, {2}], "each iteration is played by the version that was handed over for it"
    assert len(rows) == 3 and all(abs(row["mismatch"]) < 1e-5 and row["unscored"] == 0 for row in rows)
    assert there.version == here.version == 3
    moved = 0.0
    for (name, own), other, first in zip(
        there.model.named_parameters(), here.model.parameters(), policy.model.parameters(), strict=True
    ):
        torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-3, msg=name)
        moved = max(moved, float((own - first).abs().max().detach()))
    assert moved > 1e-3, "and they have learned"
    assert len(list((root / "plain" / "snapshots").glob("step-*"))) == 2, "older folders are given up"


def test_an_adapter_is_merged_before_it_is_handed_over(tmp_path, policy, shared):
    world, (endpoint, root) = Letters(), shared
    tuned = adapt(policy, AdapterConfig(kind="lora", rank=4), seed=1)
    using = remote(world, endpoint, root / "lora", sends_adapters=False)
    best, played, rows = practised(tmp_path / "run", using, tuned, world)
    assert len(played) == 36 and all(abs(row["mismatch"]) < 1e-4 for row in rows)
    newest = load_policy(max((root / "lora" / "snapshots").glob("step-*")))
    assert newest.version == best.version == 3, "the last was measured there"
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        own, merged, first = (one.model(ids).logits for one in (best, newest, policy))
    torch.testing.assert_close(own, merged, atol=1e-4, rtol=1e-4)
    assert float((merged - first).abs().max()) > 1e-3


def read_losses(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "practise" and "loss" in row]


def test_adapters_alone_are_handed_over_and_train_as_whole_weights_do(tmp_path, policy, shared):
    """The tokens are the same, and losses agree to 2e-6; a version costs its adapter's bytes, and two stay loaded."""
    world, (endpoint, root) = Letters(), shared
    tuned = adapt(policy, AdapterConfig(kind="lora", rank=4), seed=1)
    trainings = {}
    for name, sends_adapters in (("whole", False), ("adapter", None)):
        write_plain(policy, root / "again")
        endpoint.load_weights(root / "again")  # the base, which whole weights have replaced
        using = remote(world, endpoint, root / f"{name}-weights", sends_adapters=sends_adapters)
        trainings[name] = practised(tmp_path / name, using, tuned, world)
    assert using.sends_adapters and endpoint.models()[0] == NAME
    assert [label.partition("-v")[2][:1] for label in endpoint.models()[1:]] == ["2", "3"], "the lag of 1, and one"
    (whole, played_whole, _), (alone, played_alone, rows) = trainings["whole"], trainings["adapter"]
    pairs = {name.partition("/")[2]: one for name, one in played_whole.items()}
    assert len(pairs) == len(played_alone) == 36
    for name, one in played_alone.items():
        pair = pairs[name.partition("/")[2]]
        assert one.actions == pair.actions and one.score == pair.score and one.error is None
        for own, other in zip(one.generations, pair.generations, strict=True):
            assert own.ids.tolist() == other.ids.tolist() and own.policy_version == other.policy_version
            np.testing.assert_allclose(own.logprobs, other.logprobs, atol=2e-6)
    assert len(rows) == 3 and all(abs(row["mismatch"]) < 1e-6 and row["unscored"] == 0 for row in rows)
    losses = [[row["loss"] for row in read_losses(tmp_path / name)] for name in ("whole", "adapter")]
    np.testing.assert_allclose(losses[1], losses[0], atol=2e-6)
    assert alone.version == whole.version == 3
    num_weights = sum(weight.numel() for weight in tuned.model.parameters() if weight.requires_grad)
    files = list((root / "adapter-weights").rglob("*.safetensors"))
    assert len(files) == 3 and all(path.name == "adapter_model.safetensors" for path in files)
    assert {path.stat().st_size < 4 * num_weights + 2048 for path in files} == {True}
    sizes = {name: [row["handover_bytes"] for row in read_losses(tmp_path / name)] for name in trainings}
    assert max(sizes["adapter"]) < 4 * num_weights + 4096 < 4 * policy.parameters() < min(sizes["whole"])


def test_weights_of_somebody_else_are_noticed_and_handed_over_anew(tmp_path, policy, shared):
    world, (endpoint, root) = Letters(), shared
    tasks = sorted(world.tasks("train", "seen")[:5], key=lambda task: task.id)
    world.at = tasks[2].spec["n"]
    write_plain(byte_policy(context=256, seed=9).next_version().next_version(), root / "other")
    using = remote(world, endpoint, root / "own")
    using.slots = 1
    with ev.Run(tmp_path / "run", using, seed=0, settings=using.settings()) as run:
        world.meddle = lambda: endpoint.load_weights(root / "other")
        first = run.collect(policy, [ev.Start(task) for task in tasks])
        world.meddle = lambda: None
        again = run.collect(policy, [ev.Start(task, 1) for task in tasks])
    assert [one.error and one.error.kind for one in first] == [None, None, *["WeightsChanged"] * 3]
    assert (
        "of an episode" in first[2].error.message
        and "an episode was generated by other weights than the endpoint received" in first[3].error.message
    )
    assert all(one.score.raw is None and one.success is None for one in first[2:])
    assert [one.error for one in again] == [None] * 5
    assert {g.policy_version for one in again for g in one.generations} == {0}
    assert using.usage()["generated"] >= sum(one.count_generated_tokens() for one in [*first, *again]) > 0


def test_an_endpoint_that_dies_leaves_episodes_without_a_score(tmp_path, policy):
    world = Letters()
    tasks = sorted(world.tasks("train", "seen")[:4], key=lambda task: task.id)
    world.at = tasks[2].spec["n"]
    with served(policy, tmp_path, timeout_s=1.0) as (endpoint, server):
        using = remote(world, endpoint, tmp_path / "own")
        using.slots, world.meddle = 1, server.process.kill
        with ev.Run(tmp_path / "run", using, seed=0, settings=using.settings()) as run:
            played = run.collect(policy, [ev.Start(task) for task in tasks])
            using.handover_s = 0.5
            assert [one.error and one.error.kind for one in played] == [None, None, "EndpointError", "EndpointError"]
            assert [one.score.raw is None for one in played] == [False, False, True, True], "no score, which is not 0"
            with pytest.raises(EndpointError, match="no answer"):
                run.collect(policy.next_version(), [ev.Start(task, 1) for task in tasks])


def other_words(policy):
    """The same policy with two words of its tokenizer exchanged."""
    made = json.loads(policy.tokenizer.backend_tokenizer.to_str())
    words = made["model"]["vocab"]
    one, two = sorted(words)[40:42]
    words[one], words[two] = words[two], words[one]
    other = byte_policy(context=256, seed=3)
    tokenizer = type(policy.tokenizer)(
        tokenizer_object=type(policy.tokenizer.backend_tokenizer).from_str(json.dumps(made)),
        bos_token=policy.tokenizer.bos_token,
        eos_token=policy.tokenizer.eos_token,
    )
    tokenizer.chat_template = policy.tokenizer.chat_template
    return Policy(other.model, tokenizer, type(policy.dialect)(tokenizer))


def test_another_tokenizer_is_refused_before_anything_is_played_or_handed_over(tmp_path, policy, shared):
    world, (endpoint, root) = Letters(), shared
    using = remote(world, endpoint, root / "never")
    with ev.Run(tmp_path / "run", using, seed=0, settings=using.settings()) as run:
        with pytest.raises(VocabularyMismatch, match="another tokenizer"):
            run.collect(other_words(policy), [ev.Start(world.tasks("train", "seen")[0])])
    assert not (root / "never").exists()
    assert not list(Store.open(tmp_path / "run" / "trajectories").trajectories())


def test_what_an_endpoint_cannot_do_is_refused(tmp_path):
    world = Letters()
    with Endpoint("http://127.0.0.1:1/v1", "m") as text:
        with pytest.raises(ConfigError, match=r"token ids are not requested.*\n.*listed actions"):
            remote(world, text, tmp_path, action_level=True)
    with Endpoint("http://127.0.0.1:1/v1", "m", tokens=True, processed=True) as endpoint:
        using = remote(world, endpoint, tmp_path)
        config = GRPOConfig(practice=RLConfig(iterations=1, restrict_to_admissible=True))
        with ev.Run(tmp_path / "run", using, seed=0, settings=using.settings()) as run:
            with pytest.raises(ConfigError, match="an endpoint cannot choose among listed actions"):
                grpo(byte_policy(), world.tasks("train", "seen"), config=config, run=run)


@pytest.mark.long
def test_a_tenth_of_a_billion_weights(tmp_path):
    """The same path for a model of the size that people begin with, made at random."""
    small = byte_policy(context=256)
    config = tiny_config(len(small.tokenizer), context=256)
    config.hidden_size, config.num_hidden_layers, config.intermediate_size = 768, 12, 2048
    config.num_attention_heads = config.num_key_value_heads = 12
    config.head_dim = 64
    large = Policy(init_tiny(config, seed=1), small.tokenizer, small.dialect)
    assert 80e6 < large.parameters() < 130e6
    tuned, world = adapt(large, AdapterConfig(kind="lora", rank=8), seed=1), Letters()
    with served(large, tmp_path, timeout_s=120.0) as (endpoint, _):
        _, played, rows = practised(tmp_path / "run", remote(world, endpoint, tmp_path / "own"), tuned, world)
    assert len(played) == 36 and all(abs(row["mismatch"]) < 1e-3 for row in rows)
