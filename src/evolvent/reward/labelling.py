"""Settings for labeling spans of solutions by completions, and the rows that store the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.engine.asks import Job, Sampling
from evolvent.errors import ConfigError, Problem
from evolvent.models.policy import Policy
from evolvent.reward.labels import SpanLabels
from evolvent.reward.omega import OmegaConfig, build_omega_tree
from evolvent.reward.rollouts import Completer, Rollout, correct_ratio, grade_responses, sample_completions
from evolvent.reward.solutions import Solution
from evolvent.reward.states import extract_solution
from evolvent.search.writing import Writing
from evolvent.trajectory import Annotation, AnnotationTarget, Json, JsonObject, Trajectory, sample_seed

__all__ = ["LabelledSolution", "LabellingConfig", "label_spans", "rows_to_solutions"]


@dataclass(frozen=True, slots=True)
class LabelledSolution:
    """A solution with the soft label of each span, and the costs.

    Attributes:
        solution: The solution.
        labels: Share of right completions from each span's end; None where none could be graded.
        rollouts: Number of sampled completions.
        ungraded: Number of completions that could not be graded; they are in no share.
        generated: Number of sampled tokens. Computed tokens are in the engine's `usage`.
    """

    solution: Solution
    labels: tuple[float | None, ...]
    rollouts: int
    ungraded: int
    generated: int

    def annotations(self, *, step: int = 0, generation: int = 0) -> list[Annotation]:
        """Returns the labels as annotations of the trajectory that the solution is named after."""
        return [
            Annotation(self.solution.name, "shepherd", AnnotationTarget(step, generation, span), label)
            for span, label in enumerate(self.labels)
            if label is not None
        ]

    def to_labels(self, question: str, text: Callable[[Sequence[int]], str]) -> SpanLabels:
        """Returns the labels with the texts of the spans."""
        spans = tuple(text(span) for span in self.solution.spans)
        return SpanLabels(question, spans, self.labels, "shepherd", {"name": self.solution.name})


def label_spans(solution: Solution, completer: Completer, *, count: int = 8, seed: int = 0) -> Job[LabelledSolution]:
    """Labels the spans of a solution, as a job for the driver: all completions are requested at once.

    A finished solution is graded itself: its last label is exact and takes no completion. The seeds depend on the
    solution's name, the span and the number of the completion alone.

    Args:
        count: completions from each span's end (N).
    Raises:
        ConfigError: `count` below 1.
    """
    if count < 1:
        raise ConfigError([Problem("count", f"{count} completions of a span", "give 1 or more")])
    prefixes = list(accumulate(solution.spans))
    seeds = [
        [sample_seed(seed, "shepherd", solution.name, span_index, k) for k in range(count)]
        for span_index in range(len(prefixes))
    ]
    rollouts_by_span = yield from sample_completions(solution.prompt, prefixes, completer, seeds=seeds)
    labels = [correct_ratio(rollouts) for rollouts in rollouts_by_span]
    if completer.is_finished(prefixes[-1]):
        (final_grade,) = yield from grade_responses(prefixes[-1:], completer)
        labels[-1] = None if final_grade is None else float(final_grade)
    all_rollouts: list[Rollout] = [rollout for rollouts in rollouts_by_span for rollout in rollouts]
    return LabelledSolution(
        solution,
        tuple(labels),
        len(all_rollouts),
        sum(rollout.correct is None for rollout in all_rollouts),
        sum(len(rollout.ids) for rollout in all_rollouts),
    )


Row = dict[str, Json]


class LabellingConfig(Config):
    """Settings of span labels."""

    kind: Literal["shepherd", "omega"] = Field(
        default="omega", description="completions after every span, or a tree with bisection for the first error"
    )
    count: int = Field(default=8, ge=1, description="completions of a prefix (N, k)")
    rollouts: int = Field(default=200, ge=1, description="most completions of a task (omega)")
    searches: int = Field(default=20, ge=1, description="most bisections of a task (omega)")
    temperature: float = Field(default=1.0, gt=0, description="of completions")
    top_k: int = Field(default=0, ge=0, description="likeliest tokens that are drawn from; 0: all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability that is drawn from")
    separators: tuple[str, ...] = Field(default=(";", "\n"), description="what ends a span")
    max_tokens: int = Field(default=256, ge=1, description="longest response")

    def work(
        self,
        policy: Policy,
        trajectory: Trajectory,
        correct: Callable[[str], bool | None],
        *,
        seed: int,
        slow: bool = False,
    ) -> Job[list[Row]]:
        """Labels one trajectory (shepherd), or explores its task (omega), as a job for the driver.

        The first row holds the costs. Where omega has nothing to label, because no completion was right, that row has
        no spans.

        Args:
            policy: The policy that completes.
            trajectory: The episode.
            correct: Returns whether a response is right; None: undecided.
            seed: Seed of the completions.
            slow: Whether to call `correct` off the driver's thread.
        Raises:
            SampleInvalid: an episode that is not a response of one turn.
        """
        writing = Writing.for_policy(policy, max_tokens=self.max_tokens, separators=self.separators)
        solution = extract_solution(trajectory, writing.spans)
        completer = Completer(
            writing.text,
            correct,
            self.max_tokens,
            policy.dialect.stop_ids,
            Sampling(self.temperature, self.top_k, self.top_p),
            policy.context,
            slow,
        )
        if self.kind == "shepherd":
            labelled = yield from label_spans(solution, completer, count=self.count, seed=seed)
            costs = {"rollouts": labelled.rollouts, "generated": labelled.generated}
            return [_row(solution, labelled.labels) | costs]
        config = OmegaConfig(completions=self.count, searches=self.searches, rollouts=self.rollouts)
        tree = yield from build_omega_tree(
            solution.prompt, completer, split=writing.spans, config=config, seed=seed, name=trajectory.task.id
        )
        labelled_rows = [
            _row(Solution(tree.prompt, spans, f"{trajectory.id}/{index}"), labels)
            for index, (spans, labels) in enumerate(tree.chains())
        ]
        labelled_rows = labelled_rows or [_row(Solution(tree.prompt, (), trajectory.id), ())]
        labelled_rows[0] |= {"rollouts": tree.rollouts, "generated": tree.generated}
        return labelled_rows


def _row(solution: Solution, labels: Iterable[float | None]) -> Row:
    return {
        "name": solution.name,
        "prompt": list(solution.prompt),
        "spans": [list(span) for span in solution.spans],
        "labels": list(labels),
    }


def rows_to_solutions(rows: Iterable[JsonObject]) -> Iterator[tuple[Solution, tuple[float | None, ...]]]:
    """Yields the solutions and labels of rows with spans, for `process.prepare_rows`. Raises SampleInvalid for an
    empty prompt.
    """
    for row in rows:
        spans = tuple(tuple(span) for span in row["spans"])
        if spans:
            yield Solution(tuple(row["prompt"]), spans, row["name"]), tuple(row["labels"])
