"""The deductions of `benchmarks.prm` and `benchmarks.openr`, and the policy that both begin with.

Chains are plain, of two to four rules, each from one kind to one, and a response is right where it proves its answer:
of two answers a guess is right half of the time, and completions that guess would tell nothing about spans before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.looking_up import look_up
from benchmarks.search_bases import BASES, QUICK, Base, base_of, made_by, shown_of, world_of
from benchmarks.study import load_or_make_policy, read_policy_note
from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.deduction.world import ENDS, PARTS, Deduction, Theory
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chains
from evolvent.worlds.reasoning.episode import QuestionEnv

__all__ = ["RECIPES", "Proofs", "policy_of", "took"]


class Proofs(Deduction):
    """Deductions along plain chains; a response is right where it proves its answer.

    Args:
        longest: rules of a chain, 2 to this many.
    """

    def __init__(self, *, longest: int = 4, sizes: Sizes | None = None) -> None:
        super().__init__(depth=4, sizes=replace(sizes or Sizes(), per_kind=400))  # a kind is a length: there are few
        self.chains = Chains(self.name, PARTS[:1], longest, min_length=2, ends=ENDS[:1])
        self.tiers = ("evo",)  # one part and one end are never shown side by side
        self._read: dict[str, Theory] = {}

    def theory(self, task: Task) -> Theory:
        """What is given in a task; read once, since thousands of completions are held against it."""
        if task.id not in self._read:
            self._read[task.id] = super().theory(task)
        return self._read[task.id]

    def make(self, task: Task) -> QuestionEnv:
        """An Env whose verdict is that of `proof_grade`."""
        return QuestionEnv(task, self.question(task).text, partial(self.grade_proof, task))


_PROOFS = replace(
    BASES["deduction"],
    world=Proofs,
    settings=(("longest", 4),),
    longest=None,
    first=None,
    tier="evo",
    pool=2000,
    shown=150,
    tokens=120_000,
    theta=5000.0,
    max_tokens=64,
    train=TrainConfig(lr=3e-3, batch_tokens=1024),
)
RECIPES: Mapping[bool, Mapping[str, Base]] = {
    False: {**BASES, "deduction": _PROOFS},
    True: {**QUICK, "deduction": replace(_PROOFS, pool=120, shown=40, tokens=4000)},
}
"""The recipes of the policies, by whether they are for a quick run. That of deductions was found on development seed
100; all of its chains have one form of rules, which makes them "evo"."""


def policy_of(task: str, seed: int, folder: Path, *, bases: Mapping[str, Base]) -> Policy:
    """The policy that a task and seed begin with: made by the first to ask, kept under `folder`/runs for the others.

    Deductions begin with heads that look up (`looking_up`), other tasks as in `search_bases`.
    """
    if task != "deduction":
        return base_of(task, seed, folder, bases=bases)
    return load_or_make_policy(folder, _name(task, seed, bases), lambda: _made(task, seed, bases))


def took(task: str, seed: int, folder: Path, *, bases: Mapping[str, Base]) -> dict[str, Any]:
    """What making a kept policy took: tokens learned and fed, CPU seconds, parameters, the loss at the end."""
    if task != "deduction":
        return made_by(task, seed, folder, bases=bases)
    return read_policy_note(folder, _name(task, seed, bases))


def _name(task: str, seed: int, bases: Mapping[str, Base]) -> str:
    return f"lookup-{bases[task].digest}-{task}-{seed}"


def _made(task: str, seed: int, bases: Mapping[str, Base]) -> tuple[Policy, dict[str, Any]]:
    base, world, began = bases[task], world_of(task, bases=bases), time.process_time()
    words: Sequence[str] | None = world.vocabulary()
    if words is None:
        raise ConfigError("a world with an open vocabulary", value=world.name)
    own = sample_seed("prm base", seed) % 2**31
    tokenizer = word_tokenizer(sorted(words), context=base.context)
    config = tiny_config(len(tokenizer), base.size, context=base.context)
    config.rope_parameters = {"rope_type": "default", "rope_theta": base.theta}
    policy = Policy(init_tiny(config, seed=own), tokenizer, dialect_for(tokenizer, "words"))
    look_up(policy)
    shown = shown_of(task, seed, bases=bases)
    flat = flatten(shown, policy.dialect, instructions=lambda _: world.instructions, context=policy.context)
    learner = Learner(policy, weighted_nll, base.train.model_copy(update={"tokens": base.tokens}), seed=own)
    report = learner.fit(flat.sequences)
    note = {
        "task": task,
        "seed": seed,
        "shown": len(shown),
        "parameters": policy.parameters(),
        "learned": report.tokens,
        "fed": report.fed,
        "loss": round(float(np.mean(report.losses[-50:])), 4),
        "cpu_s": round(time.process_time() - began, 1),
    }
    return learner.policy.next_version(), note
