"""What a run hands its methods: the verbs `collect`, `search`, `label`, `fit`, `evaluate`, `practise`.

A `Stage` is one call of a verb, an `Evaluation` what measuring says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evolvent.rollout.evaluate import Evaluation
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory

__all__ = ["Stage", "StageSettings", "Verbs", "Weighting"]

P = TypeVar("P")
Weighting = Callable[[Trajectory], float]


@dataclass(frozen=True)
class StageSettings:
    """The settings that the result of a verb depends on beside its arguments.

    Attributes:
        values: configurations and plain values; they are fingerprinted.
        version_1: the text that version 1 wrote of them, from which stage names and seeds derive.
    """

    values: tuple[object, ...]
    version_1: str = field(repr=False)


@dataclass(frozen=True)
class Stage:
    """One call of a verb: what the verb is told about where it runs.

    Attributes:
        name: unique in the run and the same when resumed; part of every trajectory id it mints.
        folder: for its checkpoints and its result.
        seed: of this stage alone.
        log: appends numbers to the run's metrics.
        store: where its trajectories go; `done` are those of an earlier, interrupted try.
        alone: a block of its work in which nothing else happens. Where there is one, it is what the stage costs: what
            a practice plays ahead before and after a measurement is not the measurement's.
    """

    name: str
    verb: str
    arm: str
    round: int
    folder: Path
    seed: int
    store: Store
    log: Callable[[Mapping[str, Any]], None]
    done: Mapping[str, Trajectory] = field(default_factory=dict)
    alone: Callable[[], AbstractContextManager[None]] = nullcontext


class Verbs(Protocol[P]):
    """What a method can have done for it, wherever that happens; and how a policy is kept."""

    def collect(
        self, policy: P, starts: Sequence[Start], stage: Stage, *, temperature: float = 1.0, horizon: int | None = None
    ) -> Iterator[Trajectory]:
        """Play the starts, at most `horizon` steps each; yield each trajectory when it is finished and stored."""
        ...

    def fit(
        self,
        policy: P,
        data: Sequence[Any],
        stage: Stage,
        *,
        objective: Any,
        weight: Weighting | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Learn from trajectories, or from parts that were prepared; the handed-in policy is left as it was."""
        ...

    def evaluate(
        self, policy: P, stage: Stage, *, split: str | None = None, how: Any = None, judge: P | None = None
    ) -> tuple[Sequence[Evaluation], Sequence[Mapping[str, Any]]]:
        """Play the panels (of another split, by a search); returns the rows, and episodes to show as examples."""
        ...

    def search(
        self, policy: P, starts: Sequence[Start], stage: Stage, *, how: Any, judge: P | None = None
    ) -> Iterator[Trajectory]:
        """Search from the starts; yield what each search decided for when it is finished and stored."""
        ...

    def label(
        self, policy: P, data: Sequence[Trajectory], stage: Stage, *, how: Any
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Label trajectories by going on from their spans; yields (id, JSON rows) of each as it is finished."""
        ...

    def practise(self, policy: P, stage: Stage, *, setup: Any) -> Any:
        """What plays and improves a copy of the policy, going on from its last checkpoint; it has a `policy`."""
        ...

    def save(self, policy: P, folder: Path) -> None:
        """Keep a policy."""
        ...

    def load(self, folder: Path) -> P:
        """A kept policy, exactly."""
        ...

    def origin(self, policy: P) -> str:
        """A digest of a policy that no stage of the run made: part of the keys of the stages that use it."""
        ...

    def usage(self) -> Mapping[str, int]:
        """Running totals of what was generated, computed, trained."""
        ...
