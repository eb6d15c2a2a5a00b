"""The interface of a backend, which runs the operations of a run: `collect`, `search`, `label`, `fit`, `evaluate`,
`train_rl`.

A `RunStage` is one call of an operation; an `Evaluation` is the result of one measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from evolvent.rollout.evaluate import Evaluation
from evolvent.store.store import Store
from evolvent.trajectory import Json, Start, Trajectory

if TYPE_CHECKING:
    from evolvent.learn.objectives import Objective
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.reward.labelling import LabellingConfig
    from evolvent.rl.trainer import PolicyTrainer, RLSpec
    from evolvent.search.settings import SearchConfig

__all__ = ["Backend", "RunStage", "StageSettings", "Weighting"]

P = TypeVar("P")
Weighting = Callable[[Trajectory], float]


@dataclass(frozen=True)
class StageSettings:
    """The settings that the result of an operation depends on beside its arguments.

    Attributes:
        values: configurations and plain values; they are fingerprinted.
        version_1: the text that version 1 wrote of them, from which stage names and seeds derive.
    """

    values: tuple[object, ...]
    version_1: str = field(repr=False)


@dataclass(frozen=True)
class RunStage:
    """One call of an operation, with the names, folder and seed that it runs under.

    Attributes:
        name: unique in the run and the same when resumed; part of every trajectory id that the stage assigns.
        verb: the operation, such as "collect".
        arm, round: the arm and the round of the run that it belongs to.
        folder: where its checkpoints and its result go.
        seed: of this stage alone.
        store: where its trajectories go.
        log: appends numbers to the run's metrics.
        finished: trajectories of an earlier, interrupted attempt, by id.
        exclusive: context of a block in which nothing else runs. Where a stage uses it, the block alone is its cost: an
            evaluation does not pay for rollouts that a trainer prefetches before and after it.
    """

    name: str
    verb: str
    arm: str
    round: int
    folder: Path
    seed: int
    store: Store
    log: Callable[[Mapping[str, object]], None]
    finished: Mapping[str, Trajectory] = field(default_factory=dict)
    exclusive: Callable[[], AbstractContextManager[None]] = nullcontext


class Backend(Protocol[P]):
    """The operations that a run can have done, on one machine or many, and how policies are saved and loaded."""

    def collect(
        self,
        policy: P,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:
        """Plays the starts, at most `horizon` steps each; yields each trajectory when it is finished and stored."""
        ...

    def fit(
        self,
        policy: P,
        data: Sequence[Trajectory | TokenSequence],
        stage: RunStage,
        *,
        objective: Objective,
        weight: Weighting | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> P:
        """Trains on trajectories or on prepared token sequences; the policy that was passed in is unchanged."""
        ...

    def evaluate(
        self,
        policy: P,
        stage: RunStage,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: P | None = None,
    ) -> tuple[Sequence[Evaluation], Sequence[Mapping[str, Json]]]:
        """Plays the panels (of another split, or with a search); returns the rows, and example episodes."""
        ...

    def search(
        self, policy: P, starts: Sequence[Start], stage: RunStage, *, search: SearchConfig, value_model: P | None = None
    ) -> Iterator[Trajectory]:
        """Searches from the starts; yields the trajectory that each search chose when it is finished and stored."""
        ...

    def label(
        self, policy: P, data: Sequence[Trajectory], stage: RunStage, *, labeler: LabellingConfig
    ) -> Iterator[tuple[str, list[dict[str, Json]]]]:
        """Labels trajectories by continuing from their spans; yields (id, JSON rows) of each when it is finished."""
        ...

    def train_rl(self, policy: P, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        """Returns a trainer that plays and improves a copy of the policy from its last checkpoint; it has a
        `policy`.
        """
        ...

    def save(self, policy: P, folder: Path) -> None:
        """Saves a policy."""
        ...

    def load(self, folder: Path) -> P:
        """Loads a saved policy exactly."""
        ...

    def origin(self, policy: P) -> str:
        """Returns a digest of a policy that no stage of the run produced; it is part of the keys of stages that use
        it.
        """
        ...

    def usage(self) -> Mapping[str, int]:
        """Returns running totals of generated, computed and trained tokens."""
        ...
