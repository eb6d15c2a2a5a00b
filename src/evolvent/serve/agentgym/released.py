"""Worlds of AgentGym's released tasks: played in this process where the original needs no server, else on its server.

    world = open_released_world("maze", "", Path("AgentEval"))
    world = open_released_world("webshop", "http://127.0.0.1:36001", Path("AgentEval/webshop_test.json"))

Both have the same name, tasks, texts and scores, so episodes of either compare. A task that this machine cannot play
as the server does is left out and listed in `problems`; none is replaced by one that is merely alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evolvent.data.agentgym_files import ENVIRONMENTS, find_task_files, name_environment, read_tasks
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.serve.agentgym.client import REFUSAL_MESSAGE, AgentGymWorld, build_panels, score_rewards
from evolvent.serve.agentgym.dialects import get_dialect
from evolvent.serve.agentgym.originals import Original, describe_need, open_original
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import SPLITS, Grammar, Info, Play, TextWorld, World

__all__ = ["ReleasedWorld", "is_address", "name_worlds", "open_numbered_world", "open_released_world"]


class ReleasedWorld(TextWorld):
    """The tasks of one of AgentGym's environments, played in this process.

    Args:
        dialect: the environment.
        original: plays its tasks.
        indices: the numbers of the tasks: by split, or all together (then a hash deals them to train, dev and test).
        skipped: tasks and rows that were left out, each with its reason.
    """

    version = AgentGymWorld.version

    def __init__(
        self,
        dialect: str,
        original: Original,
        indices: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        skipped: Sequence[Problem] = (),
    ) -> None:
        self.dialect = get_dialect(dialect)
        self.name = f"agentgym_{dialect}"
        self.horizon = self.dialect.horizon
        self.instructions = self.dialect.instructions
        self.grammar: Grammar = self.dialect.grammar
        self.reward_range = (-self.dialect.full, self.dialect.full)
        self.problems = tuple(skipped)
        self._original = original
        self._panels = build_panels(self.name, self.dialect, indices)

    def specs(self) -> list[Mapping[str, object]]:
        """Lists the specs of all tasks."""
        return [task.spec for tasks in self._panels.values() for task in tasks]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split; raises ConfigError for a split or tier that does not exist."""
        problems = [] if split in SPLITS else [unknown_name_problem("split", split, SPLITS)]
        problems += [] if tier in self.tiers else [unknown_name_problem("tier", tier, self.tiers)]
        if problems:
            raise ConfigError(problems)
        return self._panels[split]

    def play(self, spec: Mapping[str, object]) -> Play:
        """Plays an episode; actions are read as AgentGym's client reads them."""
        index = spec.get("index")
        if type(index) is not int:
            raise ConfigError("the task has no number", value=dict(spec), expected='{"index": 0}')
        self._original.check(index)
        episode = self._original.play(index)
        try:
            turn = next(episode)
            while True:
                text = self.dialect.grammar.to_wire((yield turn))
                while text is None:
                    text = self.dialect.grammar.to_wire((yield REFUSAL_MESSAGE, 0.0, {"invalid": True}))
                turn = episode.send(text)
        except StopIteration as end:
            last_turn: tuple[str, float] = end.value
            return last_turn
        finally:
            episode.close()

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode as `AgentGymWorld` does."""
        return score_rewards(rewards, self.dialect)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns actions that solve a task, None where they are not known."""
        return self._original.expert(int(task.spec["index"]))


def open_released_world(environment: str, source: str, path: Path, *, token: str | None = None) -> World:
    """Opens the tasks that released files name.

    Args:
        environment: AgentGym's name, such as `textcraft`.
        source: the address of the environment's server; else what its tasks are read from, empty where nothing is.
        path: a file of tasks, or the folder of the released files.
        token: sent to the server.
    Raises:
        ConfigError: an unknown environment; no file or no task; a source that the environment does not take.
        MissingExtra: the package that plays the environment is not installed.
    """
    get_dialect(environment)
    files = read_tasks(path, environment)
    if is_address(source):
        return AgentGymWorld(source, environment, files.indices, token=token, skipped=files.problems)
    original = open_original(environment, source, folder=path if path.is_dir() else path.parent)
    indices, problems = _select_known(original, files.indices, files.locations)
    if not any(indices.values()):
        raise ConfigError(problems)
    return ReleasedWorld(environment, original, indices, skipped=(*files.problems, *problems))


def _select_known(
    original: Original, indices: Mapping[str, Sequence[int]], locations: Mapping[int, str]
) -> tuple[dict[str, list[int]], list[Problem]]:
    """Selects the numbers that have a task here; returns them, and a problem for each of the others."""
    selected: dict[str, list[int]] = {split: [] for split in indices}
    problems = []
    for split, numbers in indices.items():
        for index in numbers:
            try:
                original.check(index)
            except ConfigError as error:
                problems.append(Problem(locations[index], str(error), "the task is left out"))
            else:
                selected[split].append(index)
    return selected, problems


def open_numbered_world(environment: str, source: str, indices: Sequence[int], *, token: str | None = None) -> World:
    """Opens tasks by their numbers, on a server or in this process; raises as `open_released_world`."""
    get_dialect(environment)
    if is_address(source):
        return AgentGymWorld(source, environment, indices, token=token)
    original = open_original(environment, source, folder=Path(source or "."))
    for index in indices:
        original.check(index)
    return ReleasedWorld(environment, original, indices)


def is_address(source: str) -> bool:
    """Returns whether a source is the address of a server."""
    return "://" in source


def name_worlds(path: Path, environments: Sequence[str] = (), sources: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names of the worlds that play released files, as `load_world` takes them.

    Args:
        path: a file of tasks, or the folder of the released files.
        environments: only these; empty: all that the files name.
        sources: `ENVIRONMENT=SOURCE`, see `open_released_world`.
    Raises:
        ConfigError: no released files, an unknown environment, a source of another form, and environments without a
            source that need one; all of them at once.
    """
    present = tuple(find_task_files(path)) if path.is_dir() else (name_environment(path),)
    problems = [
        unknown_name_problem("environment", name, present, location="environments")
        for name in environments
        if name not in present
    ]
    source_of: dict[str, str] = {}
    for entry in sources:
        name, equals, source = entry.partition("=")
        if not equals or not source:
            problems.append(Problem("sources", f"got {entry!r}, expected ENVIRONMENT=URL or ENVIRONMENT=PATH"))
        elif name not in ENVIRONMENTS:
            problems.append(unknown_name_problem("environment", name, ENVIRONMENTS, location="sources"))
        source_of[name] = source
    selected = [name for name in present if not environments or name in environments]
    for name in selected:
        if name not in source_of and (needed := describe_need(name)):
            hint = f"--sources {name}=..., or leave it out with --environments"
            problems.append(Problem(name, f"needs {needed}", hint))
    if problems:
        raise ConfigError(problems)
    return tuple(f"agentgym:{name}{'@' * (name in source_of)}{source_of.get(name, '')}#{path}" for name in selected)
