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

The expert: does the jobs one after another, uses only information from its screens, and states its reasons.

It does not know the bounds of a field, what a state needs, or where a record stands, before a screen tells. Its
thoughts name what is to be done and what was seen, in the words of the world, so that a small model can learn them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem, WorldError
from evolvent.trajectory import Json, Score, Task, Value
from evolvent.worlds.backoffice.applications import Application, Cell, Row
from evolvent.worlds.backoffice.draw import canonical_key, draw_task, is_kind, iterate_kinds
from evolvent.worlds.backoffice.jobs import ADDITIONS, Job, Pick, carry_out, describe_job, describe_record
from evolvent.worlds.backoffice.office import PAGE, Office, State, Window, contents
from evolvent.worlds.backoffice.rules import Act, Refusal, apply_act, filter_rows, find_obstacle
from evolvent.worlds.backoffice.text import (
    END_TEXTS,
    MALFORMED,
    OBSTACLE_TEXTS,
    format_act,
    format_cell,
    legal_actions,
    parse_act,
    render_outcome,
    render_screen,
    vocabulary_texts,
)
from evolvent.worlds.base import TIERS, Grammar, Info, Parsed, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = ["Backoffice", "BackofficeEnv", "Scene", "solve", "thought_texts"]


_THOUGHTS = (
    "next i have to",
    "first i read the of",
    "i open",
    "i go back to the table of",
    "i look for with",
    "there is another page , it may be there",
    "i see , it is",
    "it should be , as has it",
    "at most least is let , so i take it",
    "it is refused , it needs the of its , which is",
    "i open a new",
    "all is filled in , i save",
    "this is what has to be deleted",
    "all is done",
)


def thought_texts() -> Sequence[str]:
    """Returns texts that hold every word and mark of thoughts that screens and tasks lack."""
    return _THOUGHTS


def solve(office: Office, jobs: Sequence[Job]) -> tuple[Parsed, ...]:
    """Returns actions that do the jobs in their order and finish, each with the thought that led to it."""
    clerk = _ScreenUser(office)
    for job in jobs:
        clerk.do_job(job)
    clerk.do(Act("done"), "all is done")
    return tuple(clerk.done)


class _ScreenUser:
    """A simulated user of the screens, which records its actions and thoughts."""

    def __init__(self, office: Office) -> None:
        self.office, self.state = office, office.start
        self.done: list[Parsed] = []
        self._aim = ""

    def do(self, act: Act, thought: str) -> Refusal | None:
        """Executes an act and records it with its thought; returns the refusal, if any."""
        obstacle = find_obstacle(self.office, self.state, act)
        if obstacle:
            raise WorldError("the expert of the back office is stuck", value=format_act(act), expected=obstacle)
        goal_text, self._aim = self._aim, ""
        self.done.append(Parsed(format_act(act), f"{goal_text}{thought}"))
        outcome = apply_act(self.office, self.state, act)
        self.state = outcome.state
        return outcome.refusal

    def do_job(self, job: Job) -> None:
        """Executes one job."""
        change = job.change
        self._aim = f"next i have to {describe_job(self.office, job)} . "
        if change.kind in ADDITIONS:
            self._add(job)
            return
        value: Cell = None
        if change.kind == "copy":
            source, key, source_field = change.source
            value = self._look_up(source, key, source_field)
        self._open_picked(job.application, job.pick)
        if change.kind == "drop":
            self.do(Act("delete"), "this is what has to be deleted")
            return
        field, new_value = change.fields[0]
        is_copy = change.kind == "copy"
        reason = f"{self._describe_record(change.source[0], change.source[1])} has it" if is_copy else ""
        self._fill(field, value if is_copy else new_value, reason)
        self._save(field)

    def _describe_record(self, name: str, key: Cell) -> str:
        return f"{self.office.applications[name].singular} {format_cell(key)}"

    @property
    def _window(self) -> Window:
        return self.state.windows[self.state.active]

    def _application(self) -> Application:
        return self.office.applications[self.office.names[self.state.active]]

    def _open_table(self, name: str) -> None:
        """Shows the whole table of an application."""
        if self.state.active < 0 or self.office.names[self.state.active] != name:
            self.do(Act("open", name), f"i open {name}")
        if self._window != Window():
            self.do(Act("back"), f"i go back to the table of {name}")

    def _open_record(self, name: str, key: Cell) -> None:
        """Opens the form of a record whose key is known."""
        self._open_table(name)
        self.do(Act("show", "", key), f"i open {self._describe_record(name, key)}")

    def _look_up(self, name: str, key: Cell, field: str) -> Cell:
        """Looks up a field of a record."""
        self._aim += f"first i read the {field} of {self._describe_record(name, key)} . "
        self._open_record(name, key)
        return self._cell(field)

    def _cell(self, field: str) -> Cell:
        """Returns a field of the form on the screen."""
        form, window = self._window.form or (), self._window
        index = self._application().field_index[field]
        return window.record if index == 0 and self._application().numbered else form[index]

    def _open_picked(self, name: str, pick: Pick) -> None:
        """Opens the form of the record that the task describes."""
        if pick.kind == "named":
            self._open_record(name, pick.value)
        elif pick.kind == "of":
            self._open_record(name, self._look_up(pick.second_name, pick.second_value, pick.field))
        else:
            self._open_table(name)
            if pick.kind in ("by", "both"):
                thought = f"i look for {name} with {pick.field} {format_cell(pick.value)}"
                self.do(Act("find", pick.field, pick.value), thought)
            key = self._find_key(pick)
            self.do(
                Act("show", "", key),
                f"i see {describe_record(self.office, name, pick=pick)} , it is {format_cell(key)}",
            )

    def _find_key(self, pick: Pick) -> Cell:
        """Finds the key of the described record in the rows on the screen and, where needed, on further pages."""
        application = self._application()
        visible_rows: list[Row] = []
        while True:
            visible_rows += self._page()
            if pick.kind not in ("largest", "smallest"):
                matches = [
                    row
                    for row in visible_rows
                    if pick.kind == "by" or row[application.field_index[pick.second_name]] == pick.second_value
                ]
                if matches:
                    return matches[0][0]
            elif not self._has_more_pages():
                column = application.field_index[pick.field]
                choose = max if pick.kind == "largest" else min
                return choose(visible_rows, key=lambda row: int(format_cell(row[column])))[0]
            self.do(Act("next"), "there is another page , it may be there")

    def _rows(self) -> tuple[Row, ...]:
        return filter_rows(self.state.tables[self.state.active], self._window)

    def _page(self) -> tuple[Row, ...]:
        """Returns the rows on the screen; only the cells of the table's columns may be used."""
        start = self._window.page * PAGE
        return self._rows()[start : start + PAGE]

    def _has_more_pages(self) -> bool:
        return (self._window.page + 1) * PAGE < len(self._rows())

    def _fill(self, field: str, value: Cell, reason: str = "") -> None:
        reason_text = f" , as {reason}" if reason else ""
        self.do(Act("set", field, value), f"{field} should be {format_cell(value)}{reason_text}")

    def _save(self, field: str = "") -> None:
        """Saves the form and corrects a refusal: a number out of bounds, or a value that another record must supply."""
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is None:
            return
        if refusal.reason == "bounds" and refusal.field == field:
            is_above = int(format_cell(self._cell(field))) > refusal.high
            bound, bound_word = (refusal.high, "most") if is_above else (refusal.low, "least")
            self.do(Act("set", field, bound), f"at {bound_word} {bound} is let , so i take it")
        elif refusal.need is not None:
            self._supply(refusal)
        self._save_again()

    def _save_again(self) -> None:
        refusal = self.do(Act("save"), "all is filled in , i save")
        if refusal is not None:
            raise WorldError("the expert of the back office was refused twice", value=refusal.field, expected="saved")

    def _supply(self, refusal: Refusal) -> None:
        """Looks up the value that a record needs of the record that it refers to, and fills it in."""
        if refusal.need is None:
            return
        name, need = self._application().name, refusal.need
        key, link = self._cell(need.link), self._application().field(need.link).link
        self._aim = f"it is refused , it needs the {need.field} of its {need.link} , which is {format_cell(key)} . "
        value = self._look_up(link, key, need.field)
        self.do(Act("open", name), f"i open {name}")
        self._fill(need.field, value, f"{self._describe_record(link, key)} has it")

    def _add(self, job: Job) -> None:
        """Adds a record for the described record."""
        name, parent, _ = ADDITIONS[job.change.kind]
        parent_word = self.office.applications[parent].singular
        values: dict[str, tuple[Cell, str]] = {}
        if job.pick.kind == "named" and parent == "customers":
            values[parent_word] = job.pick.value, ""
        else:
            self._open_picked(parent, job.pick)
            values[parent_word] = self._window.record, ""
            if parent == "orders":  # an invoice names the customer too, and the order is on the screen
                values["customer"] = (
                    self._cell("customer"),
                    f"{self._describe_record(parent, self._window.record)} has it",
                )
        values.update({field: (value, "") for field, value in job.change.fields})
        self._open_table(name)
        self.do(Act("new"), f"i open a new {self.office.applications[name].singular}")
        for field, (value, reason) in values.items():
            self._fill(field, value, reason)
        self._save()


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
                raise ConfigError("invalid job", value=job, expected="a single record and a valid change")
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


class Backoffice(DealtOnce):
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
        problems = [] if horizon >= 1 else [Problem("horizon", f"got {horizon} steps, expected at least 1")]
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.penalty, self.horizon = penalty, horizon
        self.reward_range = (min(0.0, penalty), 1.0)
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )
        self._scenes: dict[str, Scene] = {}

    def _draw(self, tier: str) -> Iterator[Candidate | None]:
        """Yields tasks without end, of all kinds of the tier in turn; None where one takes the expert too long."""
        for kind, seed in iterate_kinds(tier):
            office, jobs = draw_task(kind, seed)
            if len(solve(office, jobs)) > self.horizon:
                yield None
                continue
            spec: dict[str, Json] = {"kind": list(kind), "seed": seed}
            yield Candidate(spec, " ".join(kind), tier, canonical_key(kind, office, jobs))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names; panels are dealt by it."""
        kind, seed = self._parse_spec(task)
        scene = self._scenes.get(task.id)  # without one, the key needs no records of the outcome
        office, jobs = draw_task(kind, seed) if scene is None else (scene.office, scene.jobs)
        return canonical_key(kind, office, jobs)

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
            problems.append(Problem("kind", f"got {kind!r}, expected one to three jobs, for example: orders named set"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if problems:
            raise ConfigError(problems)
        return tuple(task.spec["kind"]), task.spec["seed"]


_TASK_TEXTS = (
    "do this : set the of the with and largest smallest to or as near as can be delete add a an for then ;",
    "with what that needs",
)
