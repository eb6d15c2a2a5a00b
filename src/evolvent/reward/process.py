"""The discriminative process reward model: after a span, a tag; at the tag, which of two label words comes next.

`p(good) = exp(a) / (exp(a) + exp(b))` of the two logits at the tag (Math-Shepherd, arXiv 2312.08935; OpenR, arXiv
2410.09671). Here the tag is a branch off the span's end and no token of the text: later spans never see earlier tags,
training reads rows that are trees, and scoring costs one token a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.learn.token_sequences import Parts
from evolvent.learn.trees import branched
from evolvent.reward.endings import Ending, Paths, Scorer, chance, checked, read_endings
from evolvent.reward.formats import STEP_TAG
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

__all__ = [
    "WORD_TAGS",
    "Ending",
    "Prepared",
    "Scorer",
    "SpanScorer",
    "TagIds",
    "Tags",
    "default_tags",
    "labelled",
    "prepare",
]


@dataclass(frozen=True, slots=True)
class TagIds:
    """Token ids of the tag and the two label words."""

    tag: int
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class Tags:
    """The tag and the label words as text, each one token of the model's vocabulary (as OpenR has them)."""

    tag: str = STEP_TAG
    good: str = "+"
    bad: str = "-"

    def of(self, tokenizer: Any) -> TagIds:
        """Their ids in a tokenizer.

        Raises:
            ConfigError: for each text that is not one token, or unknown; and where good and bad are the same.
        """
        found, problems = {}, []
        for name in ("tag", "good", "bad"):
            text = getattr(self, name)
            ids = list(tokenizer.encode(text, add_special_tokens=False)) if text else []
            strange = len(ids) == 1 and ids[0] == tokenizer.unk_token_id and text != tokenizer.unk_token
            if len(ids) != 1 or strange:
                seen = "not in the vocabulary" if strange else f"{len(ids)} tokens"
                problems.append(Problem(name, f"{text!r} is {seen}", "give a text that is one token"))
            else:
                found[name] = int(ids[0])
        if not problems and found["good"] == found["bad"]:
            problems.append(Problem("bad", f"{self.bad!r} is the same token as {self.good!r}", "give another"))
        if problems:
            raise ConfigError(problems)
        return TagIds(**found)


WORD_TAGS = Tags(tag="<obs>", good="<act>", bad="<bos>")
"""For closed vocabularies of words: control words that every one of them has, and that never follow inside a turn."""


def default_tags(tokenizer: Any) -> TagIds:
    """`WORD_TAGS` where a tokenizer has these words, else those of OpenR.

    Raises:
        ConfigError: a tokenizer that has neither as single tokens.
    """
    words = {WORD_TAGS.tag, WORD_TAGS.good, WORD_TAGS.bad} <= set(tokenizer.get_vocab())
    return (WORD_TAGS if words else Tags()).of(tokenizer)


# ------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows to learn from, and the solutions that gave none, each with its reason."""

    parts: list[Parts]
    refused: list[Problem]


def labelled(solution: Solution, labels: Sequence[float | None], tags: TagIds) -> Parts:
    """One solution as a tree: off the end of each labelled span the tag, after it the target.

    What is learned are the columns "teacher_ids" `[2]` (good, bad) and "label", by `learn.objectives.span_labels`; the
    weight is 1 at the targets and 0 everywhere else.

    Raises:
        SampleInvalid: as many labels as spans are not there.
    """
    if len(labels) != len(solution.spans):
        raise SampleInvalid(
            f"solution {solution.name!r} has not one label for each span",
            value=len(labels),
            expected=len(solution.spans),
        )
    known = [(end - 1, label) for end, label in zip(solution.ends, labels, strict=True) if label is not None]
    trunk = solution.parts()
    size = len(trunk)
    words, none = np.zeros((size, 2), np.int64), np.zeros(size, np.float32)
    trunk = replace(trunk, columns={"teacher_ids": words, "label": none})
    if not known:
        return trunk
    tails: dict[str, NDArray[Any]] = {
        "teacher_ids": np.tile(np.asarray([tags.good, tags.bad], np.int64), (2 * len(known), 1)),
        "label": np.repeat(np.asarray([label for _, label in known], np.float32), 2),
    }
    tree = branched(trunk, [(place, (tags.tag, tags.good)) for place, _ in known], tails)
    weight = tree.weight.copy()
    weight[size::2] = 0.0  # the tags themselves are given
    return replace(tree, weight=weight)


def prepare(rows: Iterable[tuple[Solution, Sequence[float | None]]], tags: TagIds, *, context: int) -> Prepared:
    """The training rows of labelled solutions: trees, to be collated by `learn.trees.collate`.

    Args:
        rows: solutions with a label for each span; None: nothing is learned there.
        context: longer solutions, their tag included, are refused; so are those without any label.
    """
    parts, refused = [], []
    for solution, labels in rows:
        try:
            tree = labelled(solution, labels, tags)
        except SampleInvalid as error:
            refused.append(Problem(solution.name, str(error)))
            continue
        needed = len(solution.ids) + 2
        if not tree.weight.any():
            refused.append(Problem(solution.name, "no span of it is labelled"))
        elif needed > context:
            refused.append(Problem(solution.name, f"{needed} tokens do not fit the context of {context}"))
        else:
            parts.append(tree)
    return Prepared(parts, refused)


# ------------------------------------------------------------------ scoring


@dataclass(slots=True)
class SpanScorer:
    """p(good) of spans under a model that was trained on `prepare`d rows.

    Each token of a path is computed once, and one tag for each span that is asked about.

    Args:
        tags: as in training.
        model: which engine of several answers; None: the only one.
        paths: the prefixes whose keys and values are held.
    """

    tags: TagIds
    model: str | None = None
    paths: Paths = field(default_factory=Paths, repr=False)

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """p(good) at each end, for a whole frontier at once.

        Raises:
            ScoringError: not one score for each span. Errors of the engine.
        """
        found = yield from read_endings(asked, self.paths, tail=(self.tags.tag,))
        chosen = [[chance(logits[self.tags.good], logits[self.tags.bad]) for logits in own] for own in found]
        return checked(asked, chosen)

    def most(self, ends: int, length: int) -> Spent:
        """One tag for each end, beside the path itself."""
        return Spent(computed=ends)
