"""Panels and samples: the shapes of each tier, the tools they use, and the number of tasks of each kind.

| tier | tools | shapes |
|---|---|---|
| seen | domains in training | simple, multiple; one of ten irrelevant, one of ten missing |
| evo | the same | parallel, parallel_multiple |
| combo | domains without a tool in training | all of one turn, abstentions in the same share as in seen |
| longer | as seen | multi_turn, and three calls of different tools, among five or six tools |

All tools of a task, unneeded ones included, belong to the task's split. There is no training on combo, which
has no training tools, and on longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.messages import CallSample
from evolvent.trajectory import Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import TIERS
from evolvent.worlds.functions.catalogue import select_entries
from evolvent.worlds.functions.naming import canonical_names, rename_talk
from evolvent.worlds.functions.requests import SHAPES, Draft, draw_draft
from evolvent.worlds.functions.tasks import CallConversation, build_sample, build_spec, conversation_of_draft
from evolvent.worlds.panel import UNTRAINED, Sizes, check_names

__all__ = ["NAME", "VERSION", "build_panel", "build_task", "call_samples", "canonical_key"]

NAME = "functions"
VERSION = "1"
_SHAPES_BY_TIER: Mapping[str, tuple[str, ...]] = {
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
_MAX_DRAFTS = 500  # drafts that may be passed over for one task


def canonical_key(talk: CallConversation) -> str:
    """Returns the canonical form of a conversation, equal for conversations that differ in names only."""
    return canonical_json(build_spec(rename_talk(talk, canonical_names(talk.tools))))


def build_task(talk: CallConversation, *, kind: str, tier: str, split: str) -> Task:
    """Builds a task from a conversation."""
    return Task(NAME, VERSION, build_spec(talk), kind, tier, split)


def build_panel(split: str, tier: str, sizes: Sizes) -> tuple[Task, ...]:
    """Builds the task panel of a split and tier: without duplicates, in dev and test at most `per_kind` tasks of a
    kind.

    Raises:
        ConfigError: an unknown name, or sizes that the tools cannot fill.
    """
    check_names(split, tier, TIERS)
    if split == "train" and tier in UNTRAINED:
        return ()
    tasks: list[Task] = []
    kinds: Counter[str] = Counter()
    keys: set[str] = set()
    for index in range(sizes.of(split)):
        shape = _SHAPES_BY_TIER[tier][index % len(_SHAPES_BY_TIER[tier])]
        for draft in _draw_drafts(split, tier, shape, index, stream="panel"):
            talk = conversation_of_draft(draft)
            key = canonical_key(talk)
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
        tasks.append(build_task(talk, kind=draft.kind, tier=tier, split=split))
    return tuple(tasks)


def _draw_drafts(split: str, tier: str, shape: str, index: int, *, stream: str) -> Iterator[Draft]:
    pool = select_entries(split, is_unseen=tier == "combo")
    for attempt in range(_MAX_DRAFTS):
        rng = sample_rng(NAME, stream, split, tier, shape, index, attempt)
        yield draw_draft(shape, pool, rng, split=split, is_long=tier == "longer")


def call_samples(
    split: str, tier: str, count: int, *, kinds: Sequence[str] | None = None, seed: int = 0
) -> tuple[CallSample, ...]:
    """Draws samples as data for training and measurements: one for every turn, independent of the panels.

    Args:
        split, tier: select the tools; "train" has all tiers but combo.
        count: number of samples.
        kinds: shapes that take turns; None: the shapes of the tier, in their shares.
        seed: different seeds give different samples.
    Returns:
        Samples with unique ids. Those of "dev" and "test" share tools with the panels, those of "train" do not.
    Raises:
        ConfigError: an unknown name, a negative count, or a split and tier without tools.
    """
    check_names(split, tier, TIERS)
    shapes = _SHAPES_BY_TIER[tier] if kinds is None else tuple(kinds)
    problems = [unknown_name_problem("kind", shape, SHAPES) for shape in shapes if shape not in SHAPES]
    if count < 0 or not shapes:
        problems.append(Problem("count", f"{count} samples of {len(shapes)} kinds", "give at least 0, and a kind"))
    if not select_entries(split, is_unseen=tier == "combo"):
        problems.append(Problem("tier", f"{split!r} has no tools of {tier!r}", "use dev or test"))
    if problems:
        raise ConfigError(problems)
    samples: dict[str, CallSample] = {}
    index = 0
    while len(samples) < count:
        shape = shapes[index % len(shapes)]
        draft = next(_draw_drafts(split, tier, shape, index, stream=f"samples {seed}"))
        task = build_task(conversation_of_draft(draft), kind=draft.kind, tier=tier, split=split)
        for turn in range(len(draft.rounds)):
            sample = build_sample(task, turn)
            name = f"{draft.kind}/{sample_seed(sample.id):016x}"
            samples.setdefault(name, replace(sample, id=name))
        index += 1
    return tuple(samples.values())[:count]
