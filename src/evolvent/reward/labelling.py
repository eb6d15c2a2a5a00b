"""Settings for labeling spans of solutions by completions, and the rows that store the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.engine.asks import Job, Sampling
from evolvent.models.policy import Policy
from evolvent.reward.omega import OmegaConfig, build_omega_tree
from evolvent.reward.rollouts import Completer
from evolvent.reward.shepherd import label_spans
from evolvent.reward.solutions import Solution
from evolvent.reward.states import extract_solution
from evolvent.search.writing import Writing
from evolvent.trajectory import Trajectory

__all__ = ["LabellingConfig", "rows_to_solutions"]

Row = dict[str, Any]


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


def rows_to_solutions(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Solution, tuple[float | None, ...]]]:
    """Yields the solutions and labels of rows with spans, for `process.prepare_rows`. Raises SampleInvalid for an
    empty prompt.
    """
    for row in rows:
        spans = tuple(tuple(span) for span in row["spans"])
        if spans:
            yield Solution(tuple(row["prompt"]), spans, row["name"]), tuple(row["labels"])
