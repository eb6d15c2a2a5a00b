"""Which steps of experts are found by which key: the part of `benchmarks.trad` that needs no policy.

Episodes of the data are split by hash, one fifth to ask with and the rest to remember. For every step that is asked
with, K = 2 steps of episodes of the same task type are retrieved, and count by the share whose action has the type and
the class of object of the expert's next action. Two splits: `episode`, where an episode of the very same goal may be
remembered, which favors keys of metadata; and `goal`, where no goal is on both sides.

Keys: `thought` and `observation` give windows (B = 1, F = 2) around the step found; `metadata` gives whole episodes, of
which either the step of the same number counts (`metadata`), or all steps shown (`metadata_shown`); `random` draws.
`thought_wrong_30`: of the thoughts asked with, 30 % are those of another moment of another episode of the type.
`thought_wrong_30_remembered`: of the remembered ones, likewise. `thought_cut`: asked without the last sentence of the
thought, which mostly says what is done next.

What this cannot show: the thoughts of the data were written by a model that was told the action (hindsight), so that a
thought asked with says more than one made before acting would. The wrong and the cut ones stand for that, and no
model is run.

Tokens are words and marks of what would stand in the prompt, not those of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.memory.encoders import Encoder
from evolvent.memory.loaders import read_trad
from evolvent.memory.records import METADATA, THOUGHT, Demonstration, Key, StepRecord, make_demonstration
from evolvent.memory.steps import StepMemory
from evolvent.memory.windows import Window, cut_window
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["action_of", "match"]

K, BEFORE, AFTER = 2, 1, 2
WRONG = (0.1, 0.2, 0.3, 0.4, 0.5)
OBSERVATION = Key("observation")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_LAST = re.compile(r"(?:(?<=[.!?\n])|^)[^.!?\n]*[.!?]*$")
_ACTION = re.compile(r"(go to|take|put|move|open|close|clean|heat|cool|use|examine|slice) ([a-z]+)")


class Cached:
    """An encoder that embeds every text once."""

    def __init__(self, inner: Encoder) -> None:
        self.inner, self.id = inner, inner.id
        self.known: dict[str, NDArray[np.float32]] = {}

    def __call__(self, texts: Sequence[str]) -> ArrayLike:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, np.asarray(self.inner(new), np.float32), strict=True))
        return np.stack([self.known[text] for text in texts]) if texts else np.zeros((0, 1), np.float32)


def action_of(text: str) -> tuple[str, str]:
    """The type of an action and the class of its first object: ("take", "mug")."""
    found = _ACTION.match(text)
    return (found[1], found[2]) if found else (text.strip(), "")


def tokens(text: str) -> int:
    """Words and marks."""
    return len(_TOKEN.findall(text))


def without_last_sentence(thought: str) -> str:
    """A thought without the sentence in which it says what to do next."""
    return _LAST.sub("", thought.rstrip())


def shown(found: Window) -> int:
    """Tokens of a window as it stands in a prompt: what goes before, every step, what follows."""
    parts = [*(found.prefix or (found.task,)), found.next_observation]
    for step in found.steps:
        parts += [step.observation, step.thought, step.action]
    return sum(map(tokens, parts))


def split(data: Path, by: str, *, quick: bool) -> tuple[list[Demonstration], list[Demonstration]]:
    """(what is remembered, what is asked with)."""
    remembered: list[Demonstration] = []
    asked: list[Demonstration] = []
    for one in map(make_demonstration, read_trad(data).trajectories):
        goal = " ".join(
            sorted(set(re.findall(r"\w+", one.task)) - {"a", "some", "the", "put", "in", "on", "it", "and"})
        )
        draw = sample_seed("trad match", one.trajectory_id if by == "episode" else f"{one.kind} {goal}") % 5
        (remembered if draw else asked).append(one)
    asked.sort(key=lambda one: sample_seed("order", one.trajectory_id))
    return remembered, sorted(asked[: 60 if quick else None], key=lambda one: one.trajectory_id)


def wronged(episodes: Sequence[Demonstration], share: float, seed: str) -> list[Demonstration]:
    """The episodes with so many thoughts replaced by one of another episode of the type."""
    of_kind: dict[str, list[StepRecord]] = {}
    for one in episodes:
        of_kind.setdefault(one.kind, []).extend(one.steps)
    made = []
    for one in episodes:
        rng, pool = sample_rng(seed, one.trajectory_id), of_kind[one.kind]
        steps = []
        for step in one.steps:
            other = pool[int(rng.integers(len(pool)))]
            swap = rng.random() < share and other.trajectory_id != one.trajectory_id
            steps.append(replace(step, thought=other.thought) if swap else step)
        made.append(replace(one, steps=tuple(steps)))
    return made


class Asked:
    """The steps asked with, in order, and how each retrieval does on them."""

    def __init__(self, memory: StepMemory, asked: Sequence[Demonstration]) -> None:
        self.memory, self.asked = memory, asked
        self.steps = [step for one in asked for step in one.steps]
        self.wanted = [action_of(step.action) for step in self.steps]
        self.cost: dict[str, float] = {}
        self.scores: dict[str, list[float]] = {}

    def share(self, at: int, actions: Sequence[str]) -> float:
        """Of these actions, how many are like the expert's."""
        return float(np.mean([action_of(action) == self.wanted[at] for action in actions])) if actions else 0.0

    def by(self, name: str, key: Key, texts: Sequence[str], *, memory: StepMemory | None = None) -> None:
        """Windows around what a key finds."""
        memory, scores, cost = memory or self.memory, [0.0] * len(texts), [0.0] * len(texts)
        for kind in sorted({step.kind for step in self.steps}):
            mine = [at for at, step in enumerate(self.steps) if step.kind == kind]
            found = memory.query([texts[at] for at in mine], K, lookup_key=key, filters={"kind": kind})
            for at, hits in zip(mine, found, strict=True):
                scores[at] = self.share(at, [hit.record.action for hit in hits])
                if name in ("thought", "observation"):
                    cost[at] = sum(
                        shown(
                            cut_window(
                                memory.get_demonstration(hit.record.trajectory_id),
                                hit.record.step,
                                before=BEFORE,
                                after=AFTER,
                            )
                        )
                        for hit in hits
                    )
        self.scores[name] = scores
        if any(cost):
            self.cost[name] = float(np.mean(cost))

    def by_metadata(self) -> None:
        """Whole episodes: their step of the same number, and all their steps."""
        same: list[float] = []
        every: list[float] = []
        cost: list[int] = []
        for one in self.asked:
            (hits,) = self.memory.query([one.metadata], K, lookup_key=METADATA, filters={"kind": one.kind})
            whole = [self.memory.get_demonstration(hit.record.trajectory_id) for hit in hits]
            size = sum(shown(cut_window(found, 0, before=None, after=None)) for found in whole)
            for step in one.steps:
                at = len(same)
                same.append(
                    self.share(at, [found.steps[min(step.step, len(found.steps) - 1)].action for found in whole])
                )
                every.append(self.share(at, [other.action for found in whole for other in found.steps]))
                cost.append(size)
        self.scores |= {"metadata": same, "metadata_shown": every}
        self.cost["metadata"] = float(np.mean(cost))

    def at_random(self) -> None:
        """Steps of episodes of the type, drawn."""
        pools: dict[str, list[str]] = {}
        for name in self.memory.trajectory_ids:
            found = self.memory.get_demonstration(name)
            pools.setdefault(found.kind, []).extend(step.action for step in found.steps)
        drawn = []
        for at, step in enumerate(self.steps):
            rng = sample_rng("random step", step.trajectory_id, step.step)
            pool = pools[step.kind]
            drawn.append(self.share(at, [pool[int(place)] for place in rng.integers(len(pool), size=K)]))
        self.scores["random"] = drawn

    def gain(self, name: str, other: str | None = None) -> Interval:
        """The mean over steps, or the mean gain over another key; episodes drawn again within their types."""
        base = self.scores[other] if other else [0.0] * len(self.steps)
        episodes, kinds = ([getattr(step, field) for step in self.steps] for field in ("trajectory_id", "kind"))
        rng = sample_rng("trad match", name, other or "")
        return paired_interval(self.scores[name], base, levels=[episodes], strata=kinds, rng=rng)


def one_split(data: Path, encoder: Encoder, by: str, *, quick: bool) -> dict[str, Any]:
    """Everything about one way to split."""
    remembered, asked_with = split(data, by, quick=quick)
    memory = StepMemory.from_trajectories(remembered, encoder, [THOUGHT, OBSERVATION, METADATA])
    asked = Asked(memory, asked_with)
    asked.by("thought", THOUGHT, [step.thought for step in asked.steps])
    asked.by("thought_cut", THOUGHT, [without_last_sentence(step.thought) for step in asked.steps])
    asked.by("observation", OBSERVATION, [step.observation for step in asked.steps])
    asked.by_metadata()
    asked.at_random()
    for share in WRONG[2:3] if quick else WRONG:
        name = f"thought_wrong_{round(100 * share)}"
        thoughts = [step.thought for one in wronged(asked_with, share, "asked") for step in one.steps]
        asked.by(name, THOUGHT, thoughts)
        if share in (0.3, 0.5) and not quick:
            worse = StepMemory.from_trajectories(wronged(remembered, share, "remembered"), encoder, THOUGHT)
            asked.by(f"{name}_remembered", THOUGHT, [step.thought for step in asked.steps], memory=worse)
    base = max(("metadata", "metadata_shown"), key=lambda name: float(np.mean(asked.scores[name])))
    told = {name: rounded(asked.gain(name)) for name in asked.scores}
    return {
        "match": told,
        "match_gain_ci": rounded(asked.gain("thought", base)),
        "gain_over": base,
        "gain_when_wrong_ci": {name: rounded(asked.gain(name, base)) for name in asked.scores if "_wrong_" in name},
        "prompt_tokens": {name: round(value, 1) for name, value in asked.cost.items()},
        "match_per_1000_tokens": per_tokens(told, asked.cost),
        "episodes": [len(remembered), len(asked_with)],
        "steps": [len(memory), len(asked.steps)],
    }


def per_tokens(told: Mapping[str, Sequence[float]], cost: Mapping[str, float]) -> dict[str, float]:
    """Share that matches, for each thousand tokens of the prompt."""
    return {name: round(1000 * told[name][0] / value, 3) for name, value in cost.items()}


def rounded(found: Interval) -> list[float]:
    """[mean, low, high]"""
    return [round(value, 4) for value in (found.mean, found.low, found.high)]


def match(data: Path, encoder: Encoder, *, quick: bool = False) -> dict[str, Any]:
    """`match`, `match_gain_ci`, `prompt_tokens` of the split by episodes, and all of that by goals in `by_goal`."""
    cached = Cached(encoder)
    found = one_split(data, cached, "episode", quick=quick)
    return {**found, "encoder": encoder.id, "k": K, "by_goal": one_split(data, cached, "goal", quick=quick)}
