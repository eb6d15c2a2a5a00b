"""The generative reward model: a question about the solution so far, answered by Yes or No.

The score is `P(Yes) / (P(Yes) + P(No))` of the next word (generative verifiers, arXiv 2408.15240; OpenR, arXiv
2410.09671). The question is a branch off the span's end, or the verifier's own prompt about the rendered solution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.learn.token_sequences import Parts
from evolvent.learn.trees import branched
from evolvent.reward.endings import Ending, Paths, chance, checked, read_endings
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

__all__ = ["GenerativeScorer", "Verdict", "verdict_parts"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a verifier is asked: the tokens of the question, and the two words it may answer with.

    Raises:
        ConfigError: no question, or the same word twice.
    """

    question: tuple[int, ...]
    yes: int
    no: int

    def __post_init__(self) -> None:
        if not self.question or self.yes == self.no:
            raise ConfigError(
                "a verdict needs a question and two different words", value=(self.yes, self.no), expected="token ids"
            )


@dataclass(slots=True)
class GenerativeScorer:
    """`P(Yes) / (P(Yes) + P(No))` after the question, at each span's end.

    Args:
        verdict: the question and the words.
        render: the verifier's prompt about a path of tokens, up to the question; for a model with a tokenizer or a form
            of its own. None: the question follows the path itself, which is then computed once for all its ends.
        model: which engine of several answers; None: the only one.
        paths: the prefixes whose keys and values are held.
    """

    verdict: Verdict
    render: Callable[[Sequence[int]], Sequence[int]] | None = None
    model: str | None = None
    paths: Paths = field(default_factory=Paths, repr=False)

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """The chance of Yes at each end, for a whole frontier at once.

        Raises:
            ScoringError: not one score for each span. ConfigError: an empty rendering. Errors of the engine.
        """
        prompts = list(asked) if self.render is None else [one for item in asked for one in self._rendered(item)]
        found = yield from read_endings(prompts, self.paths, tail=self.verdict.question)
        flat = [chance(logits[self.verdict.yes], logits[self.verdict.no]) for own in found for logits in own]
        cuts = np.cumsum([0, *(len(item.ends) for item in asked)]).tolist()
        return checked(asked, [flat[a:b] for a, b in pairwise(cuts)])

    def most(self, ends: int, length: int) -> Spent:
        """The question at each end; a rendering, not known before, is taken to be as long as the path."""
        again = 0 if self.render is None else length
        return Spent(computed=ends * (len(self.verdict.question) + again))

    def _rendered(self, item: Ending) -> list[Ending]:
        """One prompt for each end of a path."""
        if self.render is None:
            return [item]
        before = [] if item.node is None else item.node.tokens()
        prompts = [tuple(self.render([*before, *item.tokens[:end]])) for end in item.ends]
        return [Ending(None, prompt, (len(prompt),)) for prompt in prompts]


def verdict_parts(solution: Solution, labels: Sequence[float | None], verdict: Verdict) -> Parts:
    """Text to learn verdicts from: off each labelled span's end the question and the right word.

    The word alone is learned, by `learn.objectives.weighted_nll`: Yes where the label is above one half.

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
    trunk, size = solution.parts(), len(solution.ids)
    if not known:
        return trunk
    words = [verdict.yes if label > 0.5 else verdict.no for _, label in known]
    branches = [(place, (*verdict.question, word)) for (place, _), word in zip(known, words, strict=True)]
    tree = branched(trunk, branches, {})
    weight = np.zeros_like(tree.weight)
    weight[size + len(verdict.question) :: len(verdict.question) + 1] = 1.0
    return replace(tree, weight=weight)
