"""Panels and samples: which shapes a tier has, out of which tools, and how many of each kind.

| tier | tools | shapes |
|---|---|---|
| seen | domains that training knows | simple, multiple; one of ten irrelevant, one of ten missing |
| evo | the same | parallel, parallel_multiple |
| combo | domains of which training has no tool | all of one turn, abstentions in the same share as in seen |
| longer | as seen | multi_turn, and three calls of different tools, among five or six tools |

All tools of a task, those that are not needed too, are of the task's split. Nobody trains on combo, for which there are
no tools, and on longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.messages import CallSample
from evolvent.trajectory import Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import TIERS
from evolvent.worlds.functions.catalogue import entries
from evolvent.worlds.functions.naming import canonical_names, renamed_talk
from evolvent.worlds.functions.requests import SHAPES, Draft, draw
from evolvent.worlds.functions.tasks import Talk, sample_at, spec_of, talk_of
from evolvent.worlds.panel import UNTRAINED, Sizes, check_names

__all__ = ["NAME", "VERSION", "call_samples", "key_of", "panel", "task_from"]

NAME = "functions"
VERSION = "1"
_TURNS: Mapping[str, tuple[str, ...]] = {
    "seen": (
        "simple",
        "multiple",
        "irrelevant",
        "multiple",
        "simple",
        "multiple",
        "simple",
        "missing",
        "multiple",
        "simple",
    ),
    "evo": ("parallel", "parallel_multiple"),
    "combo": (
        "simple",
        "multiple",
        "irrelevant",
        "parallel",
        "multiple",
        "simple",
        "parallel_multiple",
        "missing",
        "multiple",
        "multiple",
    ),
    "longer": ("multi_turn", "parallel_multiple", "multi_turn", "multi_turn", "parallel_multiple"),
}
"""The shapes of a tier in turn: task n has shape n, and so on from the beginning."""
_TRIES = 500  # drafts that may be passed over for one task


def key_of(talk: Talk) -> str:
    """The canonical form of a conversation: equal for conversations that differ in names only."""
    return canonical_json(spec_of(renamed_talk(talk, canonical_names(talk.tools))))


def task_from(talk: Talk, *, kind: str, tier: str, split: str) -> Task:
    """A conversation as a task."""
    return Task(NAME, VERSION, spec_of(talk), kind, tier, split)


def panel(split: str, tier: str, sizes: Sizes) -> tuple[Task, ...]:
    """The task panel of a split and tier: no two tasks alike, in dev and test at most `per_kind` of a kind.

    Raises:
        ConfigError: a name that does not exist, or sizes that the tools cannot fill.
    """
    check_names(split, tier, TIERS)
    if split == "train" and tier in UNTRAINED:
        return ()
    tasks: list[Task] = []
    kinds: Counter[str] = Counter()
    keys: set[str] = set()
    for place in range(sizes.of(split)):
        shape = _TURNS[tier][place % len(_TURNS[tier])]
        for draft in _drafts(split, tier, shape, place, stream="panel"):
            talk = talk_of(draft)
            key = key_of(talk)
            if key not in keys and (split == "train" or kinds[draft.kind] < sizes.per_kind):
                break
        else:
            raise ConfigError(
                f"the panel {split}/{tier} of {NAME!r} cannot be filled",
                value=len(tasks),
                expected=sizes.of(split),
                hint="use smaller panels, or more tasks of a kind",
            )
        keys.add(key)
        kinds[draft.kind] += 1
        tasks.append(task_from(talk, kind=draft.kind, tier=tier, split=split))
    return tuple(tasks)


def _drafts(split: str, tier: str, shape: str, place: int, *, stream: str) -> Iterator[Draft]:
    pool = entries(split, unseen=tier == "combo")
    for attempt in range(_TRIES):
        rng = sample_rng(NAME, stream, split, tier, shape, place, attempt)
        yield draw(shape, pool, rng, split=split, many=tier == "longer")


def call_samples(
    split: str, tier: str, count: int, *, kinds: Sequence[str] | None = None, seed: int = 0
) -> tuple[CallSample, ...]:
    """Samples as data for training and for measurements: one for every turn, drawn apart from the panels.

    Args:
        split, tier: whose tools; of "train" all tiers but combo.
        count: how many.
        kinds: shapes in turn; None: those of the tier, in their shares.
        seed: another one gives other samples.
    Returns:
        Samples with different ids. Those of "dev" and "test" share tools with the panels, those of "train" do not.
    Raises:
        ConfigError: a name that does not exist, a count below 0, or tools that there are not.
    """
    check_names(split, tier, TIERS)
    shapes = _TURNS[tier] if kinds is None else tuple(kinds)
    problems = [unknown("kind", shape, SHAPES) for shape in shapes if shape not in SHAPES]
    if count < 0 or not shapes:
        problems.append(Problem("count", f"{count} samples of {len(shapes)} kinds", "give at least 0, and a kind"))
    if not entries(split, unseen=tier == "combo"):
        problems.append(Problem("tier", f"{split!r} has no tools of {tier!r}", "use dev or test"))
    if problems:
        raise ConfigError(problems)
    found: dict[str, CallSample] = {}
    place = 0
    while len(found) < count:
        shape = shapes[place % len(shapes)]
        draft = next(_drafts(split, tier, shape, place, stream=f"samples {seed}"))
        task = task_from(talk_of(draft), kind=draft.kind, tier=tier, split=split)
        for turn in range(len(draft.rounds)):
            sample = sample_at(task, turn)
            name = f"{draft.kind}/{sample_seed(sample.id):016x}"
            found.setdefault(name, replace(sample, id=name))
        place += 1
    return tuple(found.values())[:count]
