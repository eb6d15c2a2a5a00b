"""A pretrained model in under a minute: it is loaded, speaks, imitates with an adapter and practices."""

from __future__ import annotations

import json

import pytest
import torch

import evolvent as ev
from evolvent.cli.main import main
from evolvent.models.adapters import AdapterConfig, adapt

ADAPTER = AdapterConfig(kind="lora", rank=4, alpha=8, targets=("q_proj", "v_proj"))


@pytest.fixture(scope="module")
def base(smollm2):
    """The pretrained model, read once: an adapter leaves its weights as they are."""
    return ev.load_policy("smollm2", context=512)


@pytest.fixture
def policy(base):
    return adapt(base, ADAPTER, seed=0)


def _adapter_weights(policy: ev.Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.model.named_parameters() if value.requires_grad}


def test_it_speaks(smollm2, capsys):
    words = ["--temperature", "0", "--max-tokens", "12", "--context", "128"]
    assert main(["chat", "smollm2", "--once", "What is the capital of France?", *words]) == 0
    assert "The capital of France is Paris." in capsys.readouterr().out


def test_an_adapter_learns_an_episode_and_comes_back(policy, tmp_path):
    world = ev.Lookup()
    episodes = ev.collect_demonstrations([world], world.tasks("train", "seen")[:2])
    before = _adapter_weights(policy)
    with ev.local_run(tmp_path / "run", [world], train=ev.TrainConfig(lr=1e-3, max_steps=3, warmup_steps=0)) as run:
        trained = run.fit(policy, episodes, ev.weighted_nll)
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [row["loss"] for row in rows if row["kind"] == "fit"]
    assert len(losses) == 3 and losses[2] < losses[0] - 0.1
    after = _adapter_weights(trained)
    assert after.keys() == before.keys() and any(not torch.equal(after[name], before[name]) for name in after)
    assert all(torch.equal(value, before[name]) for name, value in _adapter_weights(policy).items())
    trained.save(tmp_path / "saved")
    saved = ev.load_policy(tmp_path / "saved", context=512)
    again = _adapter_weights(adapt(saved, AdapterConfig(existing="continue"), seed=0))
    assert all(torch.equal(again[name], after[name]) for name in after)


def test_a_round_of_grpo_changes_the_adapter(policy, tmp_path):
    rows = [{"prompt": f"Name one {thing}."} for thing in ("river", "color", "animal", "city", "fruit", "metal")]
    before = _adapter_weights(policy)
    trained = ev.train_grpo(
        policy,
        rows,
        lambda completion: len(completion) / 100,
        folder=tmp_path / "grpo",
        iterations=1,
        tasks_per_iteration=2,
        group_size=3,
        max_tokens=6,
        panel_limit=2,
        quiet=True,
    )
    after = _adapter_weights(trained)
    assert after.keys() == before.keys() and any(not torch.equal(after[name], before[name]) for name in after)
