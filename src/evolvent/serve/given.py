"""Worlds behind foreign protocols that have no panels: the caller gives the tasks, and the rules that no server
reports.

OpenEnv and MCP servers know neither tasks nor splits, horizons or scores. `TaskPanels` deals the caller's specs into
splits, `WorldRules` holds the rest, `ClientTimeouts` the limits of a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Score, Task, canonical_json
from evolvent.worlds.base import SPLITS, Grammar, Info, Plain, score_episode, split_of

__all__ = ["ClientTimeouts", "SpecWorld", "TaskPanels", "TaskSpecs", "WorldRules"]

Spec = Mapping[str, object]
TaskSpecs = Sequence[Spec] | Mapping[str, Sequence[Spec]]


@dataclass(frozen=True, slots=True)
class WorldRules:
    """Properties of a world that its server does not report.

    Args:
        horizon: maximum number of steps of an episode.
        reward_range: smallest and largest reward of one step.
        success: sum of rewards from which on an episode has succeeded; None: the largest reward.
        instructions: first message to an agent; None: the server's own description.
        grammar: converts model text to an action.
    """

    horizon: int = 30
    reward_range: tuple[float, float] = (0.0, 1.0)
    success: float | None = None
    instructions: str | None = None
    grammar: Grammar = field(default_factory=Plain)


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """Limits of a client: seconds for connecting, for a reset and for a step; bytes of one message of the server."""

    connect_s: float = 10.0
    reset_s: float = 60.0
    step_s: float = 60.0
    message_bytes: int = 8 << 20


class TaskPanels:
    """The tasks of a world, made from a caller's specs.

    Args:
        world: name of the world, in its tasks.
        version: version of the world, in its tasks.
        specs: specs, dealt to train, dev and test by their hash; or specs by split, as they are.

    Raises:
        ConfigError: no tasks, an unknown split, a spec that is not a JSON object, or a duplicate.
    """

    tiers: tuple[str, ...] = ("seen",)

    def __init__(self, world: str, version: str, specs: TaskSpecs) -> None:
        self._panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        by_split = specs if isinstance(specs, Mapping) else {"": specs}
        problems = [unknown_name_problem("split", split, SPLITS) for split in by_split if split and split not in SPLITS]
        task_ids: set[str] = set()
        for split, split_specs in by_split.items():
            for number, spec in enumerate(split_specs):
                problem = _find_spec_problem(spec)
                if problem:
                    problems.append(Problem(f"tasks[{number}]", problem))
                    continue
                task = Task(world, version, dict(spec), world, "seen", split or split_of(spec, salt=world))
                if task.id in task_ids:
                    problems.append(Problem(f"tasks[{number}]", f"{dict(spec)!r} occurs twice"[:200]))
                task_ids.add(task.id)
                self._panel.get(task.split, []).append(task)
        if not task_ids and not problems:
            problems.append(Problem("tasks", "got none, expected at least one", "pass the arguments of reset"))
        if problems:
            raise ConfigError(problems)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split; raises ConfigError for names that do not exist."""
        problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
        if tier not in self.tiers:
            problems.append(unknown_name_problem("tier", tier, self.tiers))
        if problems:
            raise ConfigError(problems)
        return self._panel[split]


class SpecWorld:
    """A base class for worlds of servers that list no tasks and report no score."""

    tiers: tuple[str, ...] = TaskPanels.tiers
    run_in_thread = True
    reward_range: tuple[float, float]
    _panels: TaskPanels
    _success: float | None

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split, as the caller gave them."""
        return self._panels.tasks(split, tier)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode by the sum of its rewards; unscored if a reward is None."""
        return score_episode(rewards, self.reward_range, success=self._success)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns None: a server has no expert."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None


def _find_spec_problem(spec: object) -> str | None:
    """Returns the problem of a spec, or None."""
    if not isinstance(spec, Mapping):
        return f"got {type(spec).__name__}, expected an object of JSON values"
    try:
        canonical_json(dict(spec))
    except (TypeError, ValueError) as error:
        return f"not valid JSON: {error}"
    return None
