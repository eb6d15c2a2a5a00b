"""What the ranks of `test_ranks.py` run: a method on a small world, in any layout, in a folder that they share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from acting import WORDS, Echo, Endless, quick

import evolvent as ev
from evolvent.errors import ConfigError
from evolvent.learn.learner import TrainConfig
from evolvent.learn.parallel.ranks import Parallelism, Ranks, join_ranks
from evolvent.methods.etpo import ETPOConfig, etpo
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.poad import POADConfig, poad
from evolvent.methods.ppo import PPOConfig, ppo
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import Policy
from evolvent.rl.scored_rollout import score_rollout
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.scale.ranks_backend import RanksBackend, check_agreement
from evolvent.store.schema import encode_trajectory
from evolvent.trajectory import canonical_json
from evolvent.worlds.base import Play

METHODS: Mapping[str, tuple[Any, Any]] = {
    "grpo": (GRPOConfig, grpo),
    "ppo": (PPOConfig, ppo),
    "poad": (POADConfig, poad),
    "etpo": (ETPOConfig, etpo),
}


class Loose(Echo):
    """Echo that pays for a first word that is right, so that an untrained policy is paid now and then."""

    name = "loose"

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"say {spec['first']}"
        said = yield f"say {spec['then']}", float(said.split()[:1] == [spec["first"]])
        return float(said.split()[:1] == [spec["then"]])


class Listed(Loose):
    """Echo, listing what can be said."""

    name = "listed"

    def make(self, task: ev.Task) -> Any:
        env = super().make(task)
        step, reset = env.step, env.reset
        env.reset = lambda **more: (reset(**more)[0], {"admissible": WORDS})
        env.step = lambda action: (*step(action)[:4], {"admissible": WORDS})
        return env


WORLDS = {"loose": Loose, "endless": Endless, "listed": Listed}
TRAIN = TrainConfig(lr=1e-3, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=160)


def first_policy(world: ev.World, adapter: str) -> Policy:
    """The policy that learns: the same in every process."""
    policy = make_policy([world], seed=1, context=48)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(0.3)  # it says all words, not one alone
    bits = 4 if adapter.endswith("4") else None
    config = AdapterConfig(kind=adapter.removesuffix("4"), base_bits=bits)
    return adapt(policy, config, seed=3) if adapter != "none" else policy


def open_run(folder: Path, world: ev.World, ranks: Ranks, parallelism: Parallelism, **more: Any) -> ev.Run[Policy]:
    """The run of this rank: the first one writes, and opens it before the others."""
    kind = RanksBackend if ranks.mesh.size > 1 else LocalBackend
    layout = {"ranks": ranks, "parallelism": parallelism} if ranks.mesh.size > 1 else {}
    backend = kind({world.name: world}, TRAIN, EvaluationPanel(limit=6), slots=32, max_tokens=3, **layout, **more)
    settings = backend.settings()
    if ranks.is_leader:
        run = ev.Run(folder, backend, settings=settings)
        ranks.gather(b"")
    else:
        ranks.gather(b"")
        run = ev.Run(folder, backend, settings=settings, writing=False)
    ranks.gather(b"")
    return run


def practise(
    folder: str,
    layout: Mapping[str, Any],
    method: str,
    settings: Mapping[str, Any],
    practice: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Practise, and say what it came to: numbers of each iteration, evaluations, and the weights at the end.

    Args:
        options: `world`, `adapter`; `stop`: an iteration after which the run ends as if it were interrupted.
    """
    torch.set_num_threads(1)
    config_class, train = METHODS[method]
    config = config_class(**settings, practice=quick(**{"iterations": 2, "minibatches": 2, **practice}))
    world, parallelism = WORLDS[options.get("world", "loose")](), Parallelism(**layout)
    tasks = world.tasks("train", "seen")[: options.get("tasks", 1000)]
    with join_ranks(parallelism.mesh) as ranks, open_run(Path(folder), world, ranks, parallelism) as run:
        policy = first_policy(world, options.get("adapter", "none"))
        if options.get("stop"):
            stop_after(run, options["stop"])
        try:
            trained = train(policy, tasks, config=config, run=run)
            rates = [row.mean for row in run.evaluate(trained, 9)]
        except KeyboardInterrupt:
            return {}
    weights = {name: weight.detach().double() for name, weight in trained.model.named_parameters()}
    return {
        "rates": rates,
        "version": trained.version,
        "weights": {name: weight.flatten()[:50].numpy() for name, weight in weights.items()},
        "writes": ranks.is_leader,
    }


def stop_after(run: ev.Run[Policy], iteration: int) -> None:
    """Make a run end after an iteration and its checkpoint."""
    train_rl = run._verbs.train_rl

    def stopping(policy: Policy, stage: Any, *, spec: Any) -> Any:
        trainer = train_rl(policy, stage, spec=spec)
        iterations = trainer.iterations

        def some() -> Any:
            for number in iterations():
                if number > iteration:
                    raise KeyboardInterrupt
                yield number

        trainer.iterations = some
        return trainer

    run._verbs.train_rl = stopping


def stored(folder: Path) -> dict[str, str]:
    """Every stored episode as its line, by its id; an id comes once."""
    episodes = list(ev.Store.open(folder / "trajectories").trajectories())
    lines = {one.id: canonical_json(encode_trajectory(one)) for one in episodes}
    assert len(lines) == len(episodes), "none is doubled"
    return lines


def tokens(lines: Mapping[str, str]) -> dict[str, list[Any]]:
    """The tokens of the episodes of a practice, by id."""
    return {
        name: [generation["ids"] for step in json.loads(line)["steps"] for generation in step["generations"]]
        for name, line in lines.items()
        if "practise" in name
    }


def measured(folder: Path) -> list[dict[str, float]]:
    """The numbers of every iteration, those that depend on time left out."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if isinstance(value, int | float) and name not in _TIMED}
        for row in rows
        if row["kind"] == "practise"
    ]


_TIMED = {"time_s", "cpu_s"}
_BATCHED = ("ratio_max", "effective", "fed")  # of micro-batches, which differ


def furthest(one: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> float:
    """The largest difference between the numbers of two practices, as a share of those above 1."""
    assert [set(row) for row in one] == [set(row) for row in other]
    return max(
        abs(row[name] - others[name]) / max(1.0, abs(row[name]))
        for row, others in zip(one, other, strict=True)
        for name in row
        if not name.endswith(_BATCHED)
    )


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference between the weights of two practices."""
    assert one["weights"].keys() == other["weights"].keys()
    return max(float(np.abs(one["weights"][name] - other["weights"][name]).max()) for name in one["weights"])


class Noisy(LocalBackend):
    """A backend that plays with noise on the logits, a share of the deviation of the head's weights."""

    noise = 0.0

    def _update_engine(self, policy: Policy) -> Any:
        if self.noise:
            policy = policy.clone()
            generator = torch.Generator().manual_seed(policy.version)
            weight = policy.model.get_output_embeddings().weight.detach()
            moved = weight + self.noise * weight.std() * torch.randn(weight.shape, generator=generator)
            policy.model.lm_head.weight = torch.nn.Parameter(moved)
        return super()._update_engine(policy)


def practise_by(
    correction: str, folder: Path, *, noise: float = 0.0, rollout_dtype: Any = None, **practice: Any
) -> tuple[list[dict[str, float]], list[float]]:
    """Practise with a sampler that differs: numbers of each iteration, and how far log-probabilities differ in each."""
    torch.set_num_threads(1)
    world, differences = Loose(), list[float]()
    train = TRAIN.model_copy(update={"lr": 3e-3, "batch_tokens": 2048})
    backend = Noisy(
        {world.name: world}, train, EvaluationPanel(limit=6), slots=64, max_tokens=1, rollout_dtype=rollout_dtype
    )
    backend.noise = noise
    with ev.Run(folder, backend, settings=backend.settings()) as run:
        train_rl = run._verbs.train_rl

        def watched(policy: Policy, stage: Any, *, spec: Any) -> Any:
            trainer = train_rl(policy, stage, spec=spec)
            update = trainer.update

            def measure(rollout: Any, *more: Any, **columns: Any) -> None:
                scoring = replace(trainer.scoring_config, scores_policy=True)
                scored = score_rollout(
                    scoring, rollout.trajectories, rollout.sequences, batch=rollout.batch, report=rollout.report
                )
                differences.append(float(np.abs(scored.old - rollout.batch.logp).max()))
                update(rollout, *more, **columns)

            trainer.update = measure
            return trainer

        run._verbs.train_rl = watched
        config = GRPOConfig(importance_correction=correction, practice=quick(**practice))
        grpo(first_policy(world, "none"), world.tasks("train", "seen"), config=config, run=run)
    return measured(folder), differences


def agree(facts: dict[str, str]) -> str:
    """What a rank is told whose tasks differ where it is the second."""
    with join_ranks(Parallelism(shard=2).mesh) as ranks:
        try:
            check_agreement(ranks, {**facts, "tasks": facts["tasks"] * (ranks.rank + 1)})
        except ConfigError as refusal:
            return str(refusal)
    return ""


__all__ = ["agree", "apart", "furthest", "measured", "practise", "practise_by", "stored", "tokens"]
