"""Two little worlds of one response in two steps, and what a policy that was badly taught says in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import evolvent as ev
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.models.policy import Policy
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.trajectory import Start, sample_rng
from evolvent.worlds.base import Play, TextWorld

WORDS = ("red", "green", "blue", "grey")


class Spell(TextWorld):
    """Say both words that are shown, with a semicolon between."""

    name, horizon, run_in_thread = "spell", 1, False

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"words": [a, b], "copy": n} for a in WORDS for b in WORDS for n in range(4)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield "say " + " ".join(spec["words"])
        return float(said == " ; ".join(spec["words"]))

    def vocabulary(self) -> Sequence[str]:
        return ("say", ";", *WORDS)


class Hidden(Spell):
    """What is paid on training tasks is not told: a score is None there, and right ones on the others."""

    secret = frozenset({"train"})

    def make(self, task: ev.Task) -> ev.Env:
        env = super().make(task)
        if task.split not in self.secret:
            return env
        step = env.step
        env.step = lambda action: (lambda reply: (reply[0], None, *reply[2:]))(step(action))  # type: ignore
        return env


def verbs_of(world: ev.World, **more: Any) -> LocalBackend:
    train = TrainConfig(lr=3e-3, weight_decay=0.0, warmup_steps=2, batch_tokens=1024, epochs=4)
    panel = EvaluationPanel(limit=8, examples=1)
    return LocalBackend({world.name: world}, more.pop("train", train), panel, slots=64, max_tokens=8, **more)


def run_of(folder: Path, world: ev.World, **more: Any) -> ev.Run[Policy]:
    verbs = verbs_of(world, **more)
    return ev.Run(folder, verbs, settings=verbs.settings())


def tasks_of(world: ev.World, count: int | None = None) -> Sequence[ev.Task]:
    return world.tasks("train", "seen")[:count]


def babbling(folder: Path, world: ev.World, *, right: float = 0.4, tokens: int = 4000) -> Policy:
    """It writes two words with a semicolon between: each word is the right one that often in what it imitated."""

    def said(world: ev.World, task: ev.Task) -> list[str]:
        rng = sample_rng("babble", task.id)
        chosen = [word if rng.random() < right else WORDS[int(rng.integers(4))] for word in task.spec["words"]]
        return [" ; ".join(chosen)]

    plain = Spell()
    starts = [Start(task, n) for task in tasks_of(plain) for n in range(2)]
    shown = list(ev.collect({"spell": plain}, starts, ev.Script(said), engine=None))
    train = TrainConfig(lr=5e-3, warmup_steps=5, batch_tokens=512)
    with run_of(folder, plain, train=train) as run:
        return run.fit(make_policy([plain], seed=1, context=48), shown, weighted_nll, tokens=tokens)
