"""The back office: work at the screens of five applications until the saved records are as the task demands.

    do this : set the state of the order of invoice 81 to shipped with what that needs . open customers , orders , ...
        open invoices  ->  invoices page 1 of 2 : number customer order total ; 81 evans 58 12 ; ...
        show 81        ->  invoice 81 : customer evans ; order 58 ; total 12 ; day none ; state open
        open orders    ->  ...   show 58  ->  ...   set state shipped  ->  order 58 not saved : ...
        save           ->  refused , a shipped order needs the city of its customer . order 58 not saved : ...
        open customers ->  ...   (and so on, back to the form that is not saved yet)  ->  save  ->  done

It is the case of robotic process automation: forms, tables, several windows, values carried from one to the other, and
validations whose bounds nobody knows before they refuse. An episode succeeds if at `done` the tables hold exactly what
they should and nothing else has changed; there is no other way to earn a reward. `draw` has the kinds and tiers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.backoffice.applications import Row
from evolvent.worlds.backoffice.draw import canonical_key, draw_task, is_kind, iterate_kinds
from evolvent.worlds.backoffice.expert import solve, thought_texts
from evolvent.worlds.backoffice.jobs import Job, carry_out, describe_job
from evolvent.worlds.backoffice.office import Office, State, contents
from evolvent.worlds.backoffice.rules import apply_act, find_obstacle
from evolvent.worlds.backoffice.text import (
    END_TEXTS,
    MALFORMED,
    OBSTACLE_TEXTS,
    legal_actions,
    parse_act,
    render_outcome,
    render_screen,
    vocabulary_texts,
)
from evolvent.worlds.base import TIERS, Grammar, Info, Parsed, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = ["Backoffice", "BackofficeEnv", "Scene"]

_KNOWN_TASKS = 1024  # offices kept ready
_HORIZON = 40


@dataclass(frozen=True)
class Scene:
    """An office, its jobs, and the records that are saved when all of them are done.

    Args:
        target_contents: the rows of each application, whatever their order.
    """

    office: Office
    jobs: tuple[Job, ...]
    target_contents: tuple[frozenset[Row], ...]

    @classmethod
    def of(cls, office: Office, jobs: Sequence[Job]) -> Scene:
        """Builds the scene of jobs that can be done.

        Raises:
            ConfigError: one of them is ambiguous, or would be refused.
        """
        tables = office.tables
        for job in jobs:
            next_tables = carry_out(office, tables, job)
            if next_tables is None:
                raise ConfigError("a job that cannot be done", value=job, expected="one record, and a valid change")
            tables = next_tables
        return cls(office, tuple(jobs), contents(tables))

    @property
    def first_observation(self) -> str:
        """Returns the first observation."""
        jobs = " ; then ".join(describe_job(self.office, job) for job in self.jobs)
        return f"do this : {jobs} . {render_screen(self.office, self.office.start)}"

    def is_solved(self, state: State) -> bool:
        """Returns whether exactly the target records are saved."""
        return contents(state.tables) == self.target_contents


class BackofficeEnv(StateEnv[State]):
    """One task at the screens. A fork keeps the state, which is replaced and never changed.

    `info` holds `admissible` (sorted) and, after the end, `won`.
    """

    def __init__(self, task: Task, scene: Scene, *, penalty: float) -> None:
        super().__init__(task, scene.office.start)
        self._scene, self._penalty = scene, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.first_observation, self._info(self._start)

    def _info(self, state: State) -> dict[str, object]:
        return {"admissible": legal_actions(self._scene.office, state)}

    def _transition(self, state: State, action: Value) -> tuple[State, Reply]:
        office, act = self._scene.office, parse_act(str(action))
        obstacle_text = act if isinstance(act, str) else OBSTACLE_TEXTS.get(find_obstacle(office, state, act), "")
        if isinstance(act, str) or obstacle_text:
            info = {**self._info(state), "invalid": True}
            return state, (obstacle_text or MALFORMED, self._penalty, False, False, info)
        outcome = apply_act(office, state, act)
        if outcome.status == "done":
            won = self._scene.is_solved(state)
            return state, (END_TEXTS[won], float(won), True, False, {**self._info(state), "won": won})
        return outcome.state, (render_outcome(office, outcome), 0.0, False, False, self._info(outcome.state))


class Backoffice:
    """The back office world.

    Args:
        penalty: the reward of an action that is none or cannot be done, 0 or less. A validation that refuses costs
            nothing: it is how the office tells its rules.
        sizes: the sizes of the panels.
        horizon: how many actions an episode may take.

    Raises:
        ConfigError: a horizon below 1, or a penalty that is positive or not finite.
    """

    name = "backoffice"
    version = "1"
    grammar: Grammar = Plain()
    tiers = TIERS
    run_in_thread = False
    instructions = (
        "Do the work at the screens of five applications. Only what is saved counts, and nothing else may change. "
        "Actions: open orders; find customer adams; next; show 58; new; set amount 7; save; delete; back; done. "
        "An application keeps its form while another is open; back drops what is not saved. If saving is refused, put "
        "right what is wrong. Say done at the end."
    )

    def __init__(self, *, penalty: float = 0.0, sizes: Sizes | None = None, horizon: int = _HORIZON) -> None:
        problems = [] if horizon >= 1 else [Problem("horizon", f"a horizon of {horizon} steps", "give at least 1")]
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.penalty, self.horizon = penalty, horizon
        self.reward_range = (min(0.0, penalty), 1.0)
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)
        self._scenes: dict[str, Scene] = {}

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end, of all kinds of the tier in turn, except those that take the expert too long."""
        for kind, seed in iterate_kinds(tier):
            office, jobs = draw_task(kind, seed)
            if len(solve(office, jobs)) <= self.horizon:
                spec: dict[str, Json] = {"kind": list(kind), "seed": seed}
                yield Candidate(spec, " ".join(kind), tier, canonical_key(kind, office, jobs))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names; panels are dealt by it."""
        scene = self.scene(task)
        return canonical_key(tuple(task.spec["kind"]), scene.office, scene.jobs)

    def make(self, task: Task) -> BackofficeEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: for a task of another world, or a spec that is none.
            VersionMismatch: for a task of another version.
        """
        return BackofficeEnv(task, self.scene(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = all records are as demanded at `done`; raw = the sum of the rewards, unit = 1
        or 0.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the actions of `explain`."""
        return [parsed.action for parsed in self.explain(task)]

    def explain(self, task: Task) -> Sequence[Parsed]:
        """Returns actions that solve the task, each with its thought; they follow from the contents of the screens."""
        scene = self.scene(task)
        return solve(scene.office, scene.jobs)

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations, legal actions, thoughts and instructions, sorted."""
        return sorted(
            {
                word
                for text in (*_TASK_TEXTS, *vocabulary_texts(), *thought_texts(), self.instructions)
                for word in words_of(text)
            }
        )

    def scene(self, task: Task) -> Scene:
        """Returns the office and the jobs of a task; raises as `make` does."""
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = Scene.of(*draw_task(*self._parse_spec(task)))
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _parse_spec(self, task: Task) -> tuple[tuple[str, ...], int]:
        """Parses kind and seed of a task's spec; raises ConfigError with all its errors."""
        check_task(self, task)
        kind, seed = task.spec.get("kind"), task.spec.get("seed")
        problems = []
        if not is_kind(kind):
            problems.append(Problem("kind", f"{kind!r} is no kind", "give one to three jobs: orders named set"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if problems:
            raise ConfigError(problems)
        return tuple(task.spec["kind"]), task.spec["seed"]


_TASK_TEXTS = (
    "do this : set the of the with and largest smallest to or as near as can be delete add a an for then ;",
    "with what that needs",
)
