"""Worlds behind foreign protocols that have no panels: the caller gives the tasks, and what no server tells.

OpenEnv and MCP servers know neither tasks nor splits, horizons or scores. `Panels` deals what a caller gives into
splits, `Rules` holds the rest, `Patience` how long a client waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.trajectory import Score, Task, canonical_json
from evolvent.worlds.base import SPLITS, Info, score_of, split_of
from evolvent.worlds.grammar import Grammar, Plain

__all__ = ["Given", "GivenWorld", "Panels", "Patience", "Rules"]

Spec = Mapping[str, Any]
Given = Sequence[Spec] | Mapping[str, Sequence[Spec]]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a server does not tell of its world.

    Args:
        horizon: how many steps an episode may take.
        reward_range: smallest and largest reward of one step.
        success: the sum of rewards from which on an episode has succeeded; None: the largest reward.
        instructions: what an agent is told first; None: what the server says about itself.
        grammar: how model text becomes an action.
    """

    horizon: int = 30
    reward_range: tuple[float, float] = (0.0, 1.0)
    success: float | None = None
    instructions: str | None = None
    grammar: Grammar = field(default_factory=Plain)


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of a client: seconds for connecting, for a reset and for a step; bytes of one message of the server."""

    connect_s: float = 10.0
    reset_s: float = 60.0
    step_s: float = 60.0
    message_bytes: int = 8 << 20


class Panels:
    """The tasks of a world as a caller gave them.

    Args:
        world, version: of the tasks.
        given: specs, dealt to train, dev and test by their hash; or specs by split, as they are.

    Raises:
        ConfigError: no tasks, an unknown split, a spec that is no JSON object, or one that is given twice.
    """

    tiers: tuple[str, ...] = ("seen",)

    def __init__(self, world: str, version: str, given: Given) -> None:
        self._panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        by_split = given if isinstance(given, Mapping) else {"": given}
        problems = [unknown("split", split, SPLITS) for split in by_split if split and split not in SPLITS]
        seen: set[str] = set()
        for split, specs in by_split.items():
            for number, spec in enumerate(specs):
                wrong = _wrong(spec)
                if wrong:
                    problems.append(Problem(f"tasks[{number}]", wrong))
                    continue
                task = Task(world, version, dict(spec), world, "seen", split or split_of(spec, salt=world))
                if task.id in seen:
                    problems.append(Problem(f"tasks[{number}]", f"{dict(spec)!r} is given twice"[:200]))
                seen.add(task.id)
                self._panel.get(task.split, []).append(task)
        if not seen and not problems:
            problems.append(Problem("tasks", "got none, expected at least one", "give what to reset with"))
        if problems:
            raise ConfigError(problems)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split; ConfigError for names that do not exist."""
        problems = [unknown("split", split, SPLITS)] if split not in SPLITS else []
        if tier not in self.tiers:
            problems.append(unknown("tier", tier, self.tiers))
        if problems:
            raise ConfigError(problems)
        return self._panel[split]


class GivenWorld:
    """What a world of a server that lists no tasks and tells no score has in common with others of its kind."""

    tiers: tuple[str, ...] = Panels.tiers
    blocking = True
    reward_range: tuple[float, float]
    _panels: Panels
    _success: float | None

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split, as they were given."""
        return self._panels.tasks(split, tier)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """By the sum of the rewards; unscored where one of them is None."""
        return score_of(rewards, self.reward_range, success=self._success)

    def expert(self, task: Task) -> Sequence[str] | None:
        """None: a server tells none."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None


def _wrong(spec: object) -> str | None:
    """What is wrong with a spec, if anything."""
    if not isinstance(spec, Mapping):
        return f"got {type(spec).__name__}, expected an object of JSON values"
    try:
        canonical_json(dict(spec))
    except (TypeError, ValueError) as error:
        return f"no JSON: {error}"
    return None
