"""The work of `benchmarks.rl_step`: shapes of a step, a world whose reward costs nothing, a practice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.methods.grpo import GRPOConfig, build_preset
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rl.trainer import PolicyTrainer, RLConfig, RLSpec
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import Step, Task, Trajectory, sample_rng
from evolvent.worlds.base import Play, TextWorld

__all__ = ["CLIP", "RATE", "SHAPES", "Repeating", "Shape", "practising", "reward"]

WORDS = tuple(f"word{number}" for number in range(154))
RATE, CLIP = 1e-6, 0.5  # so small that texts stay as long as they are, on both sides


@dataclass(frozen=True)
class Shape:
    """The work of a step: tasks x samples episodes, of prompts of so many words and at most so many tokens written.

    `length` is how long texts are on average, if the policy has imitated texts that end; 0: it has not, and hardly any
    text ends before the most.
    """

    tasks: int = 16
    samples: int = 8
    prompt: int = 40
    written: int = 32
    steps: int = 8
    length: int = 0
    size: str = "xs"
    seed: int = 0
    forward_tokens: int = 4096

    @property
    def rows_per_forward(self) -> int:
        """All rows of a step, for the peer."""
        return self.tasks * self.samples

    def policy(self) -> Policy:
        """The same weights for every side."""
        return imitated(self).clone() if self.length else untrained(self)

    def prompts(self) -> list[str]:
        """One for each task of a step, drawn without end of the same words."""
        rng = sample_rng(self.seed, "rl step")
        return [" ".join(rng.choice(WORDS, self.prompt)) for _ in range(self.tasks)]


SHAPES: Mapping[str, Shape] = {
    "even": Shape(),
    "uneven": Shape(written=96, length=16),
    "long prompt": Shape(prompt=160, written=24),
}


def untrained(shape: Shape) -> Policy:
    """Over the words, with random weights."""
    return tiny_policy(WORDS, size=shape.size, context=256, seed=shape.seed)


@cache
def imitated(shape: Shape) -> Policy:
    """A policy whose texts end by themselves: it learned the lengths of random ones, and nothing else."""
    rng, shown, policy = sample_rng(shape.seed, "rl step lengths"), list[Trajectory](), untrained(shape)
    for number in range(400):
        length = min(int(rng.geometric(1 / shape.length)), shape.written)
        step = Step(" ".join(rng.choice(WORDS, shape.prompt)), " ".join(rng.choice(WORDS, length)))
        shown.append(Trajectory(f"text-{number}", Task("repeating", "1", {"number": number}), (step,)))
    flat = flatten(shown, policy.dialect, instructions=lambda task: "", context=policy.context)
    config = TrainConfig(lr=2e-3, batch_tokens=1024, tokens=12_000, final_lr_ratio=1.0)
    learner = Learner(policy, weighted_nll, config, seed=shape.seed)
    learner.fit(flat.sequences)
    return learner.policy


def reward(prompt: str, written: str) -> float:
    """The share of the written words that are in the prompt."""
    known, words = set(prompt.split()), written.split()
    return sum(word in known for word in words) / max(1, len(words))


class Repeating(TextWorld):
    """Write words of the prompt: one action an episode, and a reward that costs nothing to compute."""

    name, run_in_thread, horizon = "repeating", False, 1

    def __init__(self, prompts: Sequence[str]) -> None:
        self._prompts = prompts

    def specs(self) -> Iterator[Mapping[str, Any]]:
        return ({"prompt": prompt} for prompt in self._prompts)

    def play(self, spec: Mapping[str, Any]) -> Play:
        action = yield str(spec["prompt"])
        return reward(str(spec["prompt"]), action)


@contextmanager
def practising(
    policy: Policy, prompts: Sequence[str], *, steps: int, samples: int, written: int, train: TrainConfig, seed: int
) -> Iterator[tuple[PolicyTrainer, list[Task], Any]]:
    """A practice of GRPO of so many steps, its tasks, one a prompt, and the preset, in a scratch folder."""
    world = Repeating(prompts)
    tasks = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    config = RLConfig(
        iterations=steps,
        tasks_per_iteration=len(prompts),
        group_size=samples,
        ppo_epochs=1,
        minibatches=1,
        save_every=steps + 1,
    )
    chosen = build_preset(GRPOConfig(kl=0.0, practice=config))
    slots = len(prompts) * samples
    verbs = LocalBackend({world.name: world}, slots=slots, max_tokens=written, rl_train=train)
    setup = RLSpec("grpo", config, chosen.objective, single_update_objective=chosen.single_update_objective)
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), verbs, seed=seed) as run:
        with run.train_rl(policy, setup, [task.id for task in tasks]) as practice:
            yield practice, tasks, chosen
