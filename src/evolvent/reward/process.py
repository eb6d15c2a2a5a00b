"""The discriminative process reward model: after a span, a tag; at the tag, the logits of two label words.

`p(good) = exp(a) / (exp(a) + exp(b))` of the two logits at the tag (Math-Shepherd, arXiv 2312.08935; OpenR,
arXiv 2410.09671). Here the tag is a branch off the span's end and not a token of the text: later spans never
see earlier tags, training rows are trees, and scoring costs one token a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Job
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.trees import add_branches
from evolvent.reward.endings import Ending, PathCache, Scorer, check_scores, query_endings, two_way_probability
from evolvent.reward.labels import STEP_TAG
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "WORD_TAGS",
    "Ending",
    "LabelTags",
    "PreparedRows",
    "Scorer",
    "SpanScorer",
    "TagIds",
    "build_tagged_tree",
    "default_tags",
    "prepare_rows",
]


@dataclass(frozen=True, slots=True)
class TagIds:
    """Token ids of the tag and the two label words."""

    tag: int
    good: int
    bad: int


@dataclass(frozen=True, slots=True)
class LabelTags:
    """The tag and the label words as text, each one token of the model's vocabulary (as in OpenR)."""

    tag: str = STEP_TAG
    good: str = "+"
    bad: str = "-"

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> TagIds:
        """Returns their token ids in a tokenizer.

        Raises:
            ConfigError: for each text that is not one token, or unknown; and where good and bad are the same.
        """
        token_ids, problems = {}, []
        for name in ("tag", "good", "bad"):
            text = getattr(self, name)
            ids = list(tokenizer.encode(text, add_special_tokens=False)) if text else []
            is_unknown = len(ids) == 1 and ids[0] == tokenizer.unk_token_id and text != tokenizer.unk_token
            if len(ids) != 1 or is_unknown:
                observed = "not in the vocabulary" if is_unknown else f"{len(ids)} tokens"
                problems.append(Problem(name, f"{text!r} is {observed}", "use a text that is one token"))
            else:
                token_ids[name] = int(ids[0])
        if not problems and token_ids["good"] == token_ids["bad"]:
            problems.append(Problem("bad", f"{self.bad!r} is the same token as {self.good!r}", "use another text"))
        if problems:
            raise ConfigError(problems)
        return TagIds(**token_ids)


WORD_TAGS = LabelTags(tag="<obs>", good="<act>", bad="<bos>")
"""For closed vocabularies of words: control words that every one of them has, and that never follow inside a turn."""


def default_tags(tokenizer: PreTrainedTokenizerBase) -> TagIds:
    """Returns `WORD_TAGS` where a tokenizer has these words, otherwise those of OpenR.

    Raises:
        ConfigError: a tokenizer that has neither as single tokens.
    """
    has_control_words = {WORD_TAGS.tag, WORD_TAGS.good, WORD_TAGS.bad} <= set(tokenizer.get_vocab())
    return (WORD_TAGS if has_control_words else LabelTags()).encode(tokenizer)


# ------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Training rows, and the solutions that gave none, each with its reason."""

    sequences: list[TokenSequence]
    refused: list[Problem]


def build_tagged_tree(solution: Solution, labels: Sequence[float | None], tags: TagIds) -> TokenSequence:
    """Builds the tree of one solution: off the end of each labeled span the tag, after it the target.

    What is learned are the columns "teacher_ids" `[2]` (good, bad) and "label", by
    `learn.objectives.span_labels_objective`; the weight is 1 at the targets and 0 everywhere else.

    Raises:
        SampleInvalid: as many labels as spans are not there.
    """
    if len(labels) != len(solution.spans):
        raise SampleInvalid(
            f"number of labels does not match the spans of solution {solution.name!r}",
            value=len(labels),
            expected=len(solution.spans),
        )
    labeled_ends = [(end - 1, label) for end, label in zip(solution.ends, labels, strict=True) if label is not None]
    trunk = solution.to_sequence()
    size = len(trunk)
    teacher_ids, no_labels = np.zeros((size, 2), np.int64), np.zeros(size, np.float32)
    trunk = replace(trunk, columns={"teacher_ids": teacher_ids, "label": no_labels})
    if not labeled_ends:
        return trunk
    tails: dict[str, NDArray[Any]] = {
        "teacher_ids": np.tile(np.asarray([tags.good, tags.bad], np.int64), (2 * len(labeled_ends), 1)),
        "label": np.repeat(np.asarray([label for _, label in labeled_ends], np.float32), 2),
    }
    tree = add_branches(trunk, [(position, (tags.tag, tags.good)) for position, _ in labeled_ends], tails)
    weight = tree.weight.copy()
    weight[size::2] = 0.0  # the tags themselves are given
    return replace(tree, weight=weight)


def prepare_rows(
    rows: Iterable[tuple[Solution, Sequence[float | None]]], tags: TagIds, *, context: int
) -> PreparedRows:
    """Builds the training rows of labeled solutions: trees, to be collated by `learn.trees.collate`.

    Args:
        rows: Solutions with a label for each span; None: nothing is learned there.
        tags: Token ids of the tag and the label words.
        context: Longer solutions, their tag included, are refused; so are those without any label.
    """
    sequences, refused = [], []
    for solution, labels in rows:
        try:
            tree = build_tagged_tree(solution, labels, tags)
        except SampleInvalid as error:
            refused.append(Problem(solution.name, str(error)))
            continue
        needed = len(solution.ids) + 2
        if not tree.weight.any():
            refused.append(Problem(solution.name, "no span is labeled"))
        elif needed > context:
            refused.append(Problem(solution.name, f"{needed} tokens do not fit the context of {context}"))
        else:
            sequences.append(tree)
    return PreparedRows(sequences, refused)


# ------------------------------------------------------------------ scoring


@dataclass(slots=True)
class SpanScorer:
    """Scores p(good) of spans under a model that was trained on rows of `prepare_rows`.

    Each token of a path is computed once, and one tag for each queried span.

    Args:
        tags: As in training.
        model: Name of the engine; None: the only one.
        paths: Prefixes whose keys and values are kept.
    """

    tags: TagIds
    model: str | None = None
    paths: PathCache = field(default_factory=PathCache, repr=False)

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Computes p(good) at each end, for a whole frontier at once.

        Raises:
            ScoringError: number of scores does not match the spans. Errors of the engine.
        """
        logits_by_query = yield from query_endings(queries, self.paths, tail=(self.tags.tag,))
        probabilities = [
            [two_way_probability(logits[self.tags.good], logits[self.tags.bad]) for logits in query_logits]
            for query_logits in logits_by_query
        ]
        return check_scores(queries, probabilities)

    def most(self, ends: int, length: int) -> Spent:
        """Returns the cost of one tag for each end, besides the path itself."""
        return Spent(computed=ends)
