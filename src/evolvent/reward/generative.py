"""The generative reward model: a question about the solution so far, answered by Yes or No.

The score is `P(Yes) / (P(Yes) + P(No))` of the next word (generative verifiers, arXiv 2408.15240; OpenR, arXiv
2410.09671). The question is a branch off the span's end, or part of the verifier's own prompt with the rendered
solution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from evolvent.engine.asks import Job
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.trees import add_branches
from evolvent.reward.endings import Ending, PathCache, check_scores, query_endings, two_way_probability
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

__all__ = ["GenerativeScorer", "VerdictPrompt", "build_verdict_tree"]


@dataclass(frozen=True, slots=True)
class VerdictPrompt:
    """The question to a verifier: its tokens, and the two words of the answer.

    Raises:
        ConfigError: no question, or the same word twice.
    """

    question: tuple[int, ...]
    yes: int
    no: int

    def __post_init__(self) -> None:
        if not self.question or self.yes == self.no:
            raise ConfigError(
                "the words for yes and no must be different single tokens",
                value=(self.yes, self.no),
                expected="token ids",
            )


@dataclass(slots=True)
class GenerativeScorer:
    """Scores `P(Yes) / (P(Yes) + P(No))` after the question, at each span's end.

    Args:
        verdict: The question and the words.
        render: Returns the verifier's prompt for a path of tokens, up to the question; for a model with another
            tokenizer or form. None: the question follows the path itself, which is then computed once for all its
            ends.
        model: Name of the engine; None: the only one.
        paths: Prefixes whose keys and values are kept.
    """

    verdict: VerdictPrompt
    render: Callable[[Sequence[int]], Sequence[int]] | None = None
    model: str | None = None
    paths: PathCache = field(default_factory=PathCache, repr=False)

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Computes the probability of Yes at each end, for a whole frontier at once.

        Raises:
            ScoringError: number of scores does not match the spans. ConfigError: an empty rendering. Errors of the
                engine.
        """
        prompts = (
            list(queries)
            if self.render is None
            else [prompt for query in queries for prompt in self._render_prompts(query)]
        )
        logits_by_prompt = yield from query_endings(prompts, self.paths, tail=self.verdict.question)
        flat = [
            two_way_probability(logits[self.verdict.yes], logits[self.verdict.no])
            for prompt_logits in logits_by_prompt
            for logits in prompt_logits
        ]
        cuts = np.cumsum([0, *(len(query.ends) for query in queries)]).tolist()
        return check_scores(queries, [flat[a:b] for a, b in pairwise(cuts)])

    def most(self, ends: int, length: int) -> Spent:
        """Returns the cost of the question at each end; the length of a rendering is estimated by that of the path."""
        rendered_length = 0 if self.render is None else length
        return Spent(computed=ends * (len(self.verdict.question) + rendered_length))

    def _render_prompts(self, query: Ending) -> list[Ending]:
        """Renders one prompt for each end of a path."""
        if self.render is None:
            return [query]
        prefix = [] if query.node is None else query.node.tokens()
        prompts = [tuple(self.render([*prefix, *query.tokens[:end]])) for end in query.ends]
        return [Ending(None, prompt, (len(prompt),)) for prompt in prompts]


def build_verdict_tree(
    solution: Solution, labels: Sequence[float | None], verdict_prompt: VerdictPrompt
) -> TokenSequence:
    """Builds training text for verdicts: a branch off each labeled span's end with the question and the right word.

    The word alone is learned, by `learn.objectives.weighted_nll`: Yes where the label is above one half.

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
    trunk, size = solution.to_sequence(), len(solution.ids)
    if not labeled_ends:
        return trunk
    target_words = [verdict_prompt.yes if label > 0.5 else verdict_prompt.no for _, label in labeled_ends]
    branches = [
        (position, (*verdict_prompt.question, target_word))
        for (position, _), target_word in zip(labeled_ends, target_words, strict=True)
    ]
    tree = add_branches(trunk, branches, {})
    weight = np.zeros_like(tree.weight)
    weight[size + len(verdict_prompt.question) :: len(verdict_prompt.question) + 1] = 1.0
    return replace(tree, weight=weight)
