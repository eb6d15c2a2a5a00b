"""Content of a memory: steps of demonstrations, whole demonstrations, and the texts that retrieve steps."""

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
    "extract_instruction",
    "make_demonstration",
]

Field = Literal["thought", "observation", "metadata"]
_PARTS = ("full", "last_paragraph")
_AFTER = "after:"
_TASK = "task is to:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One environment step of a demonstration.

    Args:
        trajectory_id, step: Origin; steps count from 0.
        task: Instruction of the episode.
        kind: Type of the task, for filters.
        observation: Observation before acting.
        thought: Thought, "" for none.
        action: Action.
        key: Text by which it was retrieved; "" in a record that was not retrieved.
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
        trajectory_id: Id of the episode.
        task_id: Id of its task, for leaving out the task being played.
        task, kind: As in its records.
        metadata: Text that retrieves whole episodes.
        steps: Its steps in order.
        final_observation: Observation after the last step.
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
    """A retrieved step, and its cosine with the query, -1 to 1."""

    record: StepRecord
    score: float


@dataclass(frozen=True, slots=True)
class Key:
    """The text of a step that retrieves it. The same part is cut out of stored texts and of queries.

    Args:
        field: "thought", "observation", or "metadata" of the whole episode, which then is retrieved by its first
            step.
        part: "full"; "last_paragraph", the text after the last line break; or "after:MARKER", the first line after
            the last MARKER. A text without the marker, or with nothing after it, is used whole.
    Raises:
        ConfigError: another field or part.
    """

    field: Field = "thought"
    part: str = "full"

    def __post_init__(self) -> None:
        problems = []
        if self.field not in get_args(Field):
            problems.append(Problem("field", f"got {self.field!r}", f"choose from {', '.join(get_args(Field))}"))
        if self.part not in _PARTS and not self.part.startswith(_AFTER):
            problems.append(Problem("part", f"got {self.part!r}", f"choose from {', '.join(_PARTS)}, {_AFTER}MARKER"))
        if self.part == _AFTER:
            problems.append(Problem("part", f"got {self.part!r}, whose marker has no letter", "use after:MARKER"))
        if problems:
            raise ConfigError(problems)

    @property
    def name(self) -> str:
        """Returns the name `field/part`, which `from_name` parses."""
        return f"{self.field}/{self.part}"

    @classmethod
    def from_name(cls, name: str) -> Key:
        """Parses the key of a name such as `thought`, `observation/full` or `thought/after:next:`.

        Raises:
            ConfigError: no such field or part.
        """
        field, _, part = name.partition("/")
        return cls(field, part or "full")  # type: ignore[arg-type]

    def extract(self, text: str) -> str:
        """Extracts the relevant part of a text, stripped."""
        stripped = text.strip()
        if self.part == "last_paragraph":
            return stripped.rpartition("\n")[2].strip()
        if self.part.startswith(_AFTER):
            after_marker = (
                stripped.rpartition(self.part.removeprefix(_AFTER))[2].strip() if self._has_marker(stripped) else ""
            )
            return after_marker.partition("\n")[0].strip() or stripped
        return stripped

    def _has_marker(self, text: str) -> bool:
        return self.part.removeprefix(_AFTER) in text

    def step_texts(self, episode: Demonstration) -> list[str]:
        """Returns the text of every step of a demonstration, `[T]`; "" for a step that is not retrieved by this key."""
        if self.field == "metadata":
            return [self.extract(episode.metadata), *[""] * (len(episode.steps) - 1)][: len(episode.steps)]
        return [self.extract(getattr(step, self.field)) for step in episode.steps]


THOUGHT = Key("thought")
"""The key of TRAD's retrieval: the whole thought of a step."""
METADATA = Key("metadata")
"""The key of whole episodes."""


def extract_instruction(first_observation: str) -> str:
    """Extracts the task of a first observation: the line after its last "task is to:", otherwise the whole text."""
    _, marker, after_marker = first_observation.rpartition(_TASK)
    line = after_marker.strip().partition("\n")[0].strip()
    return line if marker and line else first_observation.strip()


def make_demonstration(
    trajectory: Trajectory, *, task: str | None = None, kind: str | None = None, metadata: str | None = None
) -> Demonstration:
    """Converts a trajectory to a demonstration of a memory.

    Args:
        trajectory: The trajectory.
        task: Its instruction; None: `meta["instruction"]` of the trajectory, otherwise that of its first
            observation.
        kind: Type of the task; None: the task's own kind.
        metadata: Text that retrieves the whole episode; None: the first observation, and the task where it is not
            part of it (Synapse's key for texts, without the name of a site).
    Raises:
        ConfigError: observations or actions that are arrays, which have no text.
    """
    arrays = [index for index, step in enumerate(trajectory.steps) if not _are_texts(step.observation, step.action)]
    if arrays or not isinstance(trajectory.final_observation, str):
        raise ConfigError(
            f"trajectory {trajectory.id!r} holds arrays",
            value=f"steps {arrays[:5]}",
            expected="texts",
            hint="a step memory indexes only text",
        )
    first = str(trajectory.steps[0].observation) if trajectory.steps else str(trajectory.final_observation)
    recorded_instruction = trajectory.meta.get("instruction")
    task = (
        task
        if task is not None
        else recorded_instruction
        if isinstance(recorded_instruction, str)
        else extract_instruction(first)
    )
    kind = trajectory.task.kind if kind is None else kind
    if metadata is None:
        metadata = first if task in first else f"{first}\n{task}"
    steps = tuple(
        StepRecord(
            trajectory_id=trajectory.id,
            step=index,
            task=task,
            kind=kind,
            observation=str(step.observation),
            thought=step.thought or "",
            action=str(step.action),
        )
        for index, step in enumerate(trajectory.steps)
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


def _are_texts(*values: object) -> bool:
    return all(isinstance(value, str) for value in values)
