"""The records that the whole package shares: tasks, steps, generations, trajectories, annotations, starts, scores.

All records are frozen. A trajectory is written once; later findings about it are `Annotation` records beside
it. `None` as a reward or score means "not scored" (infrastructure failed, judge unreachable); it is never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ErrorRecord

__all__ = [
    "Annotation",
    "AnnotationTarget",
    "Array",
    "Branch",
    "EndedBy",
    "Generation",
    "Json",
    "JsonObject",
    "Score",
    "Start",
    "Step",
    "Task",
    "Trajectory",
    "Value",
    "canonical_json",
    "sample_rng",
    "sample_seed",
    "trajectory_name",
    "unscored",
]

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""A value of JSON, to write or to narrow."""
JsonObject: TypeAlias = Mapping[str, Any]
"""An object of JSON as it was read. Its reader knows its keys and checks what it takes from them."""
Array: TypeAlias = NDArray[Any]
"""An array of any dtype."""
Value = str | Array  # an observation or an action: text, or an array for control tasks
EndedBy = Literal["world", "horizon", "agent", "error"]


def canonical_json(value: object) -> str:
    """Formats a value as JSON with sorted keys and no spaces: equal values give equal text everywhere. NaN is
    refused.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sample_seed(*parts: object) -> int:
    """Returns a 63-bit seed from names and numbers (SHA-256), independent of machine, order and process."""
    digest = hashlib.sha256(canonical_json([str(part) for part in parts]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def sample_rng(*parts: object) -> np.random.Generator:
    """Returns a separate generator for each (run seed, task, sample, ...): results never depend on order or
    batching.
    """
    return np.random.default_rng(sample_seed(*parts))


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to be played: the same id is the same episode on every machine.

    Args:
        world, version: the world, and the version of its rules.
        spec: everything the world needs to build the episode (JSON values only).
        kind: the compositional kind; tiers are assigned by kind.
        tier: distance of the task from the demonstrations ("seen", "evo", "combo", "longer", or "all").
        split: "train", "dev" or "test", by hash of the spec within the tier.
        id: SHA-256 of the canonical JSON of (world, version, spec), 32 hex digits; computed.
    """

    world: str
    version: str
    spec: JsonObject
    kind: str = ""
    tier: str = "seen"
    split: str = "train"
    id: str = field(init=False)

    def __post_init__(self) -> None:
        text = canonical_json([self.world, self.version, dict(self.spec)])
        object.__setattr__(self, "id", hashlib.sha256(text.encode()).hexdigest()[:32])

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class Score:
    """The result of an episode: `raw` in the world's own scale, `unit` in 0..1, `success` or not. None = not scored."""

    raw: float | None = None
    unit: float | None = None
    success: bool | None = None


def unscored() -> Score:
    """Returns the score of an episode that could not be scored."""
    return Score(None, None, None)


@dataclass(frozen=True, slots=True)
class Branch:
    """The point at which a branch leaves its parent: the parent's trajectory id, the step, and the token in that
    step.
    """

    parent: str
    step: int
    token: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an episode: a task, a sample number, and a branch point (None: the beginning)."""

    task: Task
    sample: int = 0
    branch: Branch | None = None


def trajectory_name(start: Start, stage: str = "") -> str:
    """Returns the id of the trajectory that a start becomes in a stage: `stage/task/sample`."""
    return f"{stage}/{start.task.id}/{start.sample}" if stage else f"{start.task.id}/{start.sample}"


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The token ids of one model call, with the sampled ones marked.

    Args:
        ids: `[T]` int32, the tokens that are new in this generation (prompt and sampled tokens, in order).
        sampled: `[T]` bool, True for tokens that the model sampled.
        logprobs: `[T]` float32, log-probability of each sampled token under the distribution it was sampled from
            (after temperature, top-k and top-p); 0 where not sampled.
        extends: index, in the trajectory's order of generations, of the generation that this one continues; None: a
            new root.
        spans: `[S]` ends (exclusive token offsets into `ids`) of spans of reasoning.
        acted: whether its text became the step's action.
        policy_version: version of the policy that generated it.
        stop: why it ended: "stop" (a stop token or string), "length" (the limit), "choice" (among given
            candidates).
        model_logprobs: `[T]` float32, log-probability of each sampled token at temperature 1 over all tokens, where it
            was chosen at temperature 0 (`logprobs` is 0 there); 0 where not sampled. None: not known, or not chosen at
            temperature 0. It is shown, never learned from, and not compared: an endpoint does not return it.
    Raises:
        BatchMismatch: the arrays differ in length.
    """

    ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    extends: int | None = None
    spans: tuple[int, ...] = ()
    acted: bool = True
    policy_version: int = 0
    stop: str = "stop"
    model_logprobs: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        arrays = (self.ids, self.sampled, self.logprobs, self.model_logprobs)
        lengths = tuple(len(array) for array in arrays if array is not None)
        if len(set(lengths)) != 1:
            raise BatchMismatch("ids, sampled and logprobs of a generation differ in length", value=lengths)

    @property
    def informative_logprobs(self) -> NDArray[np.float32]:
        """`[T]` log-probabilities that tell how sure the model was: `model_logprobs` if known, else `logprobs`."""
        return self.logprobs if self.model_logprobs is None else self.model_logprobs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Generation):
            return NotImplemented
        return (
            (self.extends, self.spans, self.acted, self.policy_version, self.stop)
            == (other.extends, other.spans, other.acted, other.policy_version, other.stop)
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.sampled, other.sampled)
            and np.array_equal(self.logprobs, other.logprobs, equal_nan=True)
        )

    __hash__ = None  # type: ignore[assignment]


def _equal_values(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One environment step: observation, action and reward.

    Args:
        observation: the observation before the action.
        action: the action (for text worlds, the text passed to the environment).
        reward: of this step; None = not scored.
        thought: the reasoning that came with the action, if any.
        generations: the model calls of this step; none for planners, several for agents that search.
        agent: the agent that acted, in a team.
        info: notes about the step (JSON values), such as `{"invalid": true}`.
    """

    observation: Value
    action: Value
    reward: float | None = None
    thought: str | None = None
    generations: tuple[Generation, ...] = ()
    agent: str | None = None
    info: JsonObject = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Step):
            return NotImplemented
        return (
            (self.reward, self.thought, self.generations, self.agent, dict(self.info))
            == (other.reward, other.thought, other.generations, other.agent, dict(other.info))
            and _equal_values(self.observation, other.observation)
            and _equal_values(self.action, other.action)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One episode, from its task to its end.

    Args:
        id: unique in its store.
        task, sample, branch: where it started.
        steps: environment steps in order.
        final_observation: the observation after the last step.
        ended_by: "world" (terminated), "horizon" (truncated: steps or tokens ran out), "agent" (it decided to stop)
            or "error"; never two at once.
        score: of the whole episode.
        error: set exactly where `ended_by` is "error".
        group: trajectories that share a group are compared with each other (samples of one task).
        meta: JSON values about its origin and its end (`context_full`, for instance).
    """

    id: str
    task: Task
    steps: tuple[Step, ...]
    final_observation: Value = ""
    ended_by: EndedBy = "world"
    score: Score = field(default_factory=unscored)
    sample: int = 0
    branch: Branch | None = None
    error: ErrorRecord | None = None
    group: str | None = None
    meta: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.error is not None) != (self.ended_by == "error"):
            raise BatchMismatch(
                "ended_by and error of a trajectory contradict each other", value=(self.ended_by, self.error)
            )

    @property
    def terminated(self) -> bool:
        return self.ended_by == "world"

    @property
    def truncated(self) -> bool:
        return self.ended_by == "horizon"

    @property
    def success(self) -> bool | None:
        return self.score.success

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(step.reward for step in self.steps)

    @property
    def generations(self) -> Iterator[Generation]:
        """Returns all generations in the order that `Generation.extends` counts."""
        return (generation for step in self.steps for generation in step.generations)

    @property
    def actions(self) -> tuple[Value, ...]:
        return tuple(step.action for step in self.steps)

    @property
    def failure(self) -> str | None:
        """Returns why the episode could not be scored: its error, or the problem of its last step; None: it was."""
        if self.error is not None:
            return f"{self.error.kind}: {self.error.message}"
        problem = self.steps[-1].info.get("problem") if self.steps else None
        return str(problem) if problem is not None and self.score.raw is None else None

    def __repr__(self) -> str:
        task, plural = self.task, "" if len(self.steps) == 1 else "s"
        place = f"{task.world}/{task.tier}/{task.split}"
        outcome = f"success={self.success}, return={self.score.raw}, ended by {self.ended_by}"
        return f"Trajectory({self.id!r}, {place}, {len(self.steps)} step{plural}, {outcome})"

    def _repr_html_(self) -> str:
        items = "".join(
            f"<li><code>{escape(str(step.observation))}</code> → <b>{escape(str(step.action))}</b></li>"
            for step in self.steps[:20]
        )
        return f"<p>{escape(repr(self))}</p><ol>{items}</ol>"

    def count_generated_tokens(self) -> int:
        """Returns the number of tokens that the model sampled in this episode."""
        return sum(int(generation.sampled.sum()) for generation in self.generations)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        names = ("id", "task", "steps", "ended_by", "score", "sample", "branch", "error", "group")
        return (
            all(getattr(self, name) == getattr(other, name) for name in names)
            and dict(self.meta) == dict(other.meta)
            and _equal_values(self.final_observation, other.final_observation)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class AnnotationTarget:
    """The target of an annotation: the whole trajectory, or a step, generation, span or token of it (None = all)."""

    step: int | None = None
    generation: int | None = None
    span: int | None = None
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """A later finding about a trajectory: a process reward, a value, an advantage or a label."""

    trajectory: str
    scorer: str
    target: AnnotationTarget
    value: float | str | Sequence[float]
