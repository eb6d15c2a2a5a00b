"""What a memory holds: steps of demonstrations, whole demonstrations, and the texts by which steps are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Trajectory

__all__ = [
    "METADATA",
    "THOUGHT",
    "Demonstration",
    "Field",
    "Hit",
    "Key",
    "StepRecord",
    "demonstration",
    "instruction",
]

Field = Literal["thought", "observation", "metadata"]
_PARTS = ("full", "last_paragraph")
_AFTER = "after:"
_TASK = "task is to:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One environment step of a demonstration.

    Args:
        trajectory_id, step: where it is from; steps count from 0.
        task: the instruction of the episode. kind: the type of the task, for filters.
        observation: what was seen before acting. thought: what was thought, "" for nothing. action: what was done.
        key: the text by which it was found; "" in a record that was not looked up.
    """

    trajectory_id: str
    step: int
    task: str
    kind: str
    observation: str
    thought: str
    action: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One episode of a memory.

    Args:
        trajectory_id: its id. task_id: of the task that it played, for leaving out what is being played.
        task, kind: as in its records. metadata: the text by which whole episodes are found.
        steps: its steps in order. final_observation: what was seen after the last of them.
    """

    trajectory_id: str
    task_id: str
    task: str
    kind: str
    metadata: str
    steps: tuple[StepRecord, ...]
    final_observation: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A step that was found, and its cosine with what was asked for, -1 to 1."""

    record: StepRecord
    score: float


@dataclass(frozen=True, slots=True)
class Key:
    """Which text of a step it is found by. The part is cut out of both: what is remembered, and what is asked.

    Args:
        field: "thought", "observation", or "metadata" of the whole episode, which then is found by its first step.
        part: "full"; "last_paragraph", the text after the last line break; or "after:MARKER", the first line after the
            last MARKER. A text without the marker, or with nothing after it, is taken whole.
    Raises:
        ConfigError: another field or part.
    """

    field: Field = "thought"
    part: str = "full"

    def __post_init__(self) -> None:
        problems = []
        if self.field not in get_args(Field):
            problems.append(Problem("field", f"got {self.field!r}", f"one of {', '.join(get_args(Field))}"))
        if self.part not in _PARTS and not self.part.startswith(_AFTER):
            problems.append(Problem("part", f"got {self.part!r}", f"one of {', '.join(_PARTS)}, {_AFTER}MARKER"))
        if self.part == _AFTER:
            problems.append(Problem("part", f"got {self.part!r}, a marker without a letter", "after:MARKER"))
        if problems:
            raise ConfigError(problems)

    @property
    def name(self) -> str:
        """`field/part`, which `of_name` reads."""
        return f"{self.field}/{self.part}"

    @classmethod
    def of_name(cls, name: str) -> Key:
        """The key of a name such as `thought`, `observation/full` or `thought/after:next:`.

        Raises:
            ConfigError: no such field or part.
        """
        field, _, part = name.partition("/")
        return cls(field, part or "full")  # type: ignore[arg-type]

    def cut(self, text: str) -> str:
        """The part of a text that counts, stripped."""
        whole = text.strip()
        if self.part == "last_paragraph":
            return whole.rpartition("\n")[2].strip()
        if self.part.startswith(_AFTER):
            rest = whole.rpartition(self.part.removeprefix(_AFTER))[2].strip() if self._marked(whole) else ""
            return rest.partition("\n")[0].strip() or whole
        return whole

    def _marked(self, text: str) -> bool:
        return self.part.removeprefix(_AFTER) in text

    def texts(self, found: Demonstration) -> list[str]:
        """The text of every step of a demonstration, `[T]`; "" for a step that is not found by this key."""
        if self.field == "metadata":
            return [self.cut(found.metadata), *[""] * (len(found.steps) - 1)][: len(found.steps)]
        return [self.cut(getattr(step, self.field)) for step in found.steps]


THOUGHT = Key("thought")
"""The key of TRAD's retrieval: the whole thought of a step."""
METADATA = Key("metadata")
"""The key of whole episodes."""


def instruction(first_observation: str) -> str:
    """The task that a first observation tells: the line after its last "task is to:", else all of it."""
    _, marked, rest = first_observation.rpartition(_TASK)
    line = rest.strip().partition("\n")[0].strip()
    return line if marked and line else first_observation.strip()


def demonstration(
    trajectory: Trajectory, *, task: str | None = None, kind: str | None = None, metadata: str | None = None
) -> Demonstration:
    """A trajectory as a memory keeps it.

    Args:
        task: its instruction; None: `meta["instruction"]` of the trajectory, else what its first observation tells.
        kind: the type of the task; None: the task's own kind.
        metadata: the text by which the whole episode is found; None: the first observation, and the task where it is
            not told there (Synapse's key for texts, without the name of a site).
    Raises:
        ConfigError: observations or actions that are arrays, which have no text.
    """
    arrays = [at for at, step in enumerate(trajectory.steps) if not _texts(step.observation, step.action)]
    if arrays or not isinstance(trajectory.final_observation, str):
        raise ConfigError(
            f"trajectory {trajectory.id!r} holds arrays",
            value=f"steps {arrays[:5]}",
            expected="texts",
            hint="a memory of steps finds texts",
        )
    first = str(trajectory.steps[0].observation) if trajectory.steps else str(trajectory.final_observation)
    told = trajectory.meta.get("instruction")
    task = task if task is not None else told if isinstance(told, str) else instruction(first)
    kind = trajectory.task.kind if kind is None else kind
    if metadata is None:
        metadata = first if task in first else f"{first}\n{task}"
    steps = tuple(
        StepRecord(
            trajectory_id=trajectory.id,
            step=at,
            task=task,
            kind=kind,
            observation=str(step.observation),
            thought=step.thought or "",
            action=str(step.action),
        )
        for at, step in enumerate(trajectory.steps)
    )
    return Demonstration(
        trajectory_id=trajectory.id,
        task_id=trajectory.task.id,
        task=task,
        kind=kind,
        metadata=metadata,
        steps=steps,
        final_observation=trajectory.final_observation,
    )


def _texts(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)
