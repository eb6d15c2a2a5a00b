"""Labelling as settings: how spans of solutions get labels by going on from them, and the rows that keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.engine.asks import Sampling, Work
from evolvent.models.policy import Policy
from evolvent.reward.omega import Omega, omega
from evolvent.reward.rollouts import Completer
from evolvent.reward.shepherd import shepherd
from evolvent.reward.solutions import Solution
from evolvent.reward.states import solution_of
from evolvent.search.writing import Writing
from evolvent.trajectory import Trajectory

__all__ = ["Labelling", "solutions_of"]

Row = dict[str, Any]


class Labelling(Config):
    """What can be chosen about the labels of spans."""

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
    ) -> Work[list[Row]]:
        """Label one trajectory (shepherd), or explore the task that it is of (omega), as a work for the driver.

        The first row says what that took. Where omega finds nothing to label, because no completion came right, that
        row has no spans.

        Args:
            correct: whether a response is right; None: nobody can say. slow: ask it off the driver's thread.
        Raises:
            SampleInvalid: an episode that is no response of one turn.
        """
        writing = Writing.of(policy, max_tokens=self.max_tokens, separators=self.separators)
        solution = solution_of(trajectory, writing.spans)
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
            labelled = yield from shepherd(solution, completer, count=self.count, seed=seed)
            spent = {"rollouts": labelled.rollouts, "generated": labelled.generated}
            return [_row(solution, labelled.labels) | spent]
        config = Omega(completions=self.count, searches=self.searches, rollouts=self.rollouts)
        tree = yield from omega(
            solution.prompt, completer, split=writing.spans, config=config, seed=seed, name=trajectory.task.id
        )
        found = [
            _row(Solution(tree.prompt, spans, f"{trajectory.id}/{at}"), labels)
            for at, (spans, labels) in enumerate(tree.chains())
        ]
        found = found or [_row(Solution(tree.prompt, (), trajectory.id), ())]
        found[0] |= {"rollouts": tree.rollouts, "generated": tree.generated}
        return found


def _row(solution: Solution, labels: Iterable[float | None]) -> Row:
    return {
        "name": solution.name,
        "prompt": list(solution.prompt),
        "spans": [list(span) for span in solution.spans],
        "labels": list(labels),
    }


def solutions_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Solution, tuple[float | None, ...]]]:
    """What rows with spans say, for `process.prepare`. Raises SampleInvalid for a row of an empty prompt or span."""
    for row in rows:
        spans = tuple(tuple(span) for span in row["spans"])
        if spans:
            yield Solution(tuple(row["prompt"]), spans, row["name"]), tuple(row["labels"])
