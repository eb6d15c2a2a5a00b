"""To-do lists: find tasks by description; complete, move or delete them, mark projects, and answer questions.

    complete the task with the longest duration in garden , then tell the due date of the task paint fern in attic
    get_projects  ->  id 31 name garden is_favorite false ; ...   get_tasks 31  ->  ...   get_task_duration 58  ->  ...
    complete_task 58  ->  ...   get_tasks 77  ->  ...   finish 2024-05-20

A kind is an action and a task selector per clause, each in another project. Only the last clause may be a
question.

Generated projects and tasks, drawn per task of the world, and the tools that read and change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from itertools import product
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import FINISH, State, ToolSpec, build_tool
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import Draw, Kind, digest_task
from evolvent.worlds.tools.scoring import same_answer
from evolvent.worlds.tools.world import DONE, ToolWorld

__all__ = ["NOUNS", "PROJECTS", "TOOLS", "VERBS", "Agenda", "Item", "Project", "Todo", "draw_agenda"]


PROJECTS: tuple[str, ...] = (
    "attic",
    "balcony",
    "cellar",
    "church",
    "club",
    "garage",
    "garden",
    "harbour",
    "kitchen",
    "library",
    "office",
    "orchard",
    "stable",
    "studio",
    "theatre",
    "workshop",
)
VERBS: tuple[str, ...] = (
    "borrow",
    "buy",
    "carry",
    "check",
    "clean",
    "count",
    "draw",
    "find",
    "fix",
    "hide",
    "label",
    "move",
    "order",
    "pack",
    "paint",
    "repair",
    "return",
    "sell",
    "sort",
    "wash",
)
NOUNS = NAMES
_MAX_TASKS_PER_PROJECT, _NUM_PROJECTS = 3, 3


@dataclass(frozen=True, slots=True)
class Project:
    """One project of an agenda."""

    id: int
    name: str
    is_favorite: bool


@dataclass(frozen=True, slots=True)
class Item:
    """One task of a project; duration in minutes, priority 1 to 4 (4: most urgent)."""

    id: int
    project: int
    content: str
    description: str
    duration: int
    priority: int
    due_date: str


@dataclass(frozen=True, slots=True)
class Agenda:
    """The state of the tools: the user's day and city, and all projects and open tasks."""

    today: str
    city: str
    projects: tuple[Project, ...]
    items: tuple[Item, ...]

    def comparable_state(self) -> object:
        """Returns the state without ids, as it is compared at the end."""
        names = {project.id: project.name for project in self.projects}
        items = [(names[item.project], replace(item, id=0, project=0)) for item in self.items]
        return [(project.name, project.is_favorite) for project in self.projects], items

    def day(self, offset: int) -> str:
        """Returns the date at an offset in days from today."""
        return (date.fromisoformat(self.today) + timedelta(days=offset)).isoformat()


def draw_agenda(draw: Draw) -> Agenda:
    """Draws three projects of two or three tasks. Due dates, priorities and durations differ within a project."""
    today = date(2024, draw.between(1, 12), draw.between(1, 14))
    ids = draw.sample(_NUM_PROJECTS * (1 + _MAX_TASKS_PER_PROJECT), range(10, 100))
    nouns = draw.sample(2 * _NUM_PROJECTS * _MAX_TASKS_PER_PROJECT, NOUNS)
    favorite = draw.below(_NUM_PROJECTS)
    projects, items = [], []
    for index, name in enumerate(draw.sample(_NUM_PROJECTS, PROJECTS)):
        projects.append(Project(ids.pop(), name, index == favorite))
        tasks = draw.between(2, _MAX_TASKS_PER_PROJECT)
        priorities, days = draw.sample(tasks, range(1, 5)), draw.sample(tasks, range(1, 14))
        for priority, offset, duration in zip(priorities, days, draw.sample(tasks, range(5, 65, 5)), strict=True):
            due = (today + timedelta(days=offset)).isoformat()
            content, description = f"{draw.choice(VERBS)} {nouns.pop()}", f"use {nouns.pop()}"
            items.append(Item(ids.pop(), projects[-1].id, content, description, duration, priority, due))
    return Agenda(today.isoformat(), draw.choice(CITIES), tuple(projects), tuple(items))


def _find_item(agenda: Agenda, arguments: Mapping[str, Any]) -> Item:
    for item in agenda.items:
        if item.id == arguments["task_id"]:
            return item
    raise InvalidAction("there is no task of that id", value=arguments["task_id"])


def _find_project(agenda: Agenda, arguments: Mapping[str, Any]) -> Project:
    for project in agenda.projects:
        if project.id == arguments["project_id"]:
            return project
    raise InvalidAction("there is no project of that id", value=arguments["project_id"])


def _summarize_item(item: Item, **extra_fields: Json) -> dict[str, Json]:
    return {"id": item.id, "content": item.content, **extra_fields}


def _project_row(project: Project) -> dict[str, Json]:
    return {"id": project.id, "name": project.name, "is_favorite": project.is_favorite}


def _list_projects(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    return agenda, [_project_row(project) for project in agenda.projects]


def _update_project(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    old = _find_project(agenda, arguments)
    new = replace(old, is_favorite=arguments["is_favorite"])
    projects = tuple(new if project is old else project for project in agenda.projects)
    return replace(agenda, projects=projects), {"updated": _project_row(new)}


def _list_tasks(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    project = _find_project(agenda, arguments)
    rows = [item for item in agenda.items if item.project == project.id]
    return agenda, [_summarize_item(item, priority=item.priority, due_date=item.due_date) for item in rows]


def _read_description(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    item = _find_item(agenda, arguments)
    return agenda, _summarize_item(item, description=item.description)


def _read_duration(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    item = _find_item(agenda, arguments)
    return agenda, _summarize_item(item, duration=item.duration)


def _make_remover(message: str) -> Any:
    def run(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
        removed = _find_item(agenda, arguments)
        items = tuple(item for item in agenda.items if item is not removed)
        return replace(agenda, items=items), {message: _summarize_item(removed)}

    return run


def _update_task(agenda: Agenda, arguments: Mapping[str, Any]) -> tuple[Agenda, Json]:
    old = _find_item(agenda, arguments)
    try:
        due = date.fromisoformat(arguments["due_date"]).isoformat()
    except ValueError as error:
        raise InvalidAction("expected a date like 2024-05-17", value=arguments["due_date"]) from error
    if not due.startswith("2024"):
        raise InvalidAction("expected a date in 2024", value=due)
    items = tuple(replace(item, due_date=due) if item is old else item for item in agenda.items)
    return replace(agenda, items=items), {"updated": _summarize_item(old, due_date=due)}


TOOLS: tuple[ToolSpec, ...] = (
    build_tool(lambda agenda, arguments: (agenda, agenda.today), "get_user_current_date()", "The user's date."),
    build_tool(lambda agenda, arguments: (agenda, agenda.city), "get_user_current_location()", "The user's city."),
    build_tool(_list_projects, "get_projects()", "All projects."),
    build_tool(
        _update_project,
        "update_project(project_id: integer, is_favorite: boolean)",
        "Make a project a favorite, or no favorite.",
    ),
    build_tool(_list_tasks, "get_tasks(project_id: integer)", "The open tasks of a project."),
    build_tool(_read_description, "get_task_description(task_id: integer)", "The description of a task."),
    build_tool(_read_duration, "get_task_duration(task_id: integer)", "How many minutes a task takes."),
    build_tool(_make_remover("completed"), "complete_task(task_id: integer)", "Mark a task as completed."),
    build_tool(_update_task, "update_task(task_id: integer, due_date: string)", "Give a task another due date."),
    build_tool(_make_remover("deleted"), "delete_task(task_id: integer)", "Delete a task."),
)
"""The tools of the todo world under their original names."""


_SELECTORS: Mapping[str, str] = {
    "named": "the task {}",
    "first": "the task with the earliest due date",
    "last": "the task with the latest due date",
    "urgent": "the task with the highest priority",
    "longest": "the task with the longest duration",
    "shortest": "the task with the shortest duration",
}
_EDITS: Mapping[str, str] = {
    "complete": "complete {}",
    "delete": "delete {}",
    "move": "set the due date of {} to {}",
    "tomorrow": "set the due date of {} to tomorrow",
}
_PROJECT_EDITS: Mapping[str, str] = {"favor": "make {} a favorite", "unfavor": "make {} no favorite"}
_QUERIES: Mapping[str, str] = {
    "due": "tell the due date of {}",
    "duration": "tell the duration of {}",
    "description": "tell the description of {}",
    "content": "tell the name of {}",
}
_PROJECT = "project"
_MAX_CALLS = 12  # with three tasks in a project; fewer words for small models


@dataclass(frozen=True, slots=True)
class _Clause:
    """One clause: an action, and the task and project it applies to; `content` and `due` are named in the question."""

    action: str
    selector: str
    project: str
    content: str
    due: str

    def __str__(self) -> str:
        if self.action in _PROJECT_EDITS:
            return _PROJECT_EDITS[self.action].format(self.project)
        task = f"{_SELECTORS[self.selector].format(self.content)} in {self.project}"
        return {**_EDITS, **_QUERIES}[self.action].format(task, self.due)


class Todo(ToolWorld):
    """The to-do world. The reward is 1 if answer and final state are right; see `ToolWorld` for the options."""

    name = "todo"
    horizon = 15
    specs = TOOLS
    trained_length = 4
    extra_instructions = "Where nothing is asked, the answer is done. "
    example = Call("update_task", {"task_id": 31, "due_date": "2024-05-17"})

    def kinds(self) -> Iterator[Kind]:
        """Yields one to three clauses, each (action, selector), within the horizon."""
        edits: list[Kind] = [*product(_EDITS, _SELECTORS), *((mark, _PROJECT) for mark in _PROJECT_EDITS)]
        final_clauses: list[Kind] = [
            *edits,
            *(
                (tell, selector)
                for tell, selector in product(_QUERIES, _SELECTORS)
                if (tell, selector) != ("content", "named")
            ),
        ]
        for last in final_clauses:
            yield last
            for first in edits:
                yield (*first, *last)
                for middle in edits:
                    kind = (*first, *middle, *last)
                    if _count_calls(kind) <= _MAX_CALLS:
                        yield kind

    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        draw = Draw("evolvent todo 1", *kind, seed)
        agenda = draw_agenda(draw)
        unused = draw.sample(len(agenda.projects), agenda.projects)
        clauses, extra = [], []
        for action, selector in _split_clauses(kind):
            project = next(
                (
                    candidate
                    for candidate in unused
                    if action not in _PROJECT_EDITS or candidate.is_favorite == (action == "unfavor")
                ),
                unused[0],
            )
            unused.remove(project)
            items = [item for item in agenda.items if item.project == project.id]
            item_index, due = draw.below(len(items)), agenda.day(draw.between(14, 17))
            clauses.append(_Clause(action, selector, project.name, items[item_index].content, due))
            extra.append([item_index if selector == "named" else None, due if action == "move" else None])
        question = " , then ".join(map(str, clauses))
        project_names = [clause.project for clause in clauses]
        digest = partial(_digest_quest, kind, agenda, (project_names, extra))
        return Quest(question, agenda, digest, tuple(clauses))

    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        answer: Json = DONE
        for clause in quest.notes:
            answer = _apply_clause(expert, clause)
        return expert.build_solution(answer)

    def completed_share(self, quest: Quest, solution: Solution, state: State, *, answer: Json) -> float:
        is_right = same_answer(solution.answer, answer) and state.comparable_state() == solution.goal.comparable_state()
        return float(is_right)

    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        agenda: Agenda = quest.start
        yield from (Call("get_projects"), Call("get_user_current_date"), Call("get_user_current_location"))
        for project in agenda.projects:
            yield Call("get_tasks", {"project_id": project.id})
            yield Call("update_project", {"project_id": project.id, "is_favorite": not project.is_favorite})
        due_dates = [str(call.arguments["due_date"]) for call in solution.plan if "due_date" in call.arguments]
        days = dict.fromkeys([agenda.day(1), agenda.day(14), *due_dates])  # any task might be moved to any of them
        for item in agenda.items:
            for name in ("get_task_description", "get_task_duration", "complete_task", "delete_task"):
                yield Call(name, {"task_id": item.id})
            yield from (Call("update_task", {"task_id": item.id, "due_date": day}) for day in days)
        yield from (Call(FINISH, {"answer": guess}) for guess in _list_guesses(agenda, solution.answer))

    def vocabulary_texts(self) -> Iterator[str]:
        yield from (*PROJECTS, *VERBS, *NOUNS, *CITIES)
        yield from map(str, [*range(100), 2024])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (*_SELECTORS.values(), *_EDITS.values(), *_PROJECT_EDITS.values(), *_QUERIES.values())
        yield "in then id name is_favorite content priority due_date description duration use true false"
        yield "updated completed deleted nothing"
        yield "there is no task project of that id expected a date like 2024-05-17 in 2024"


def _split_clauses(kind: Kind) -> list[tuple[str, str]]:
    return list(zip(kind[::2], kind[1::2], strict=True))


def _count_calls(kind: Kind) -> int:
    """Counts the calls that the expert needs, `finish` included."""
    num_calls = 2 + ("tomorrow" in kind)
    for action, selector in _split_clauses(kind):
        needs_durations = selector in ("longest", "shortest")
        num_calls += (
            1
            if action in _PROJECT_EDITS
            else 1
            + 3 * needs_durations
            + (action not in ("due", "content") and not (needs_durations and action == "duration"))
        )
    return num_calls


def _digest_quest(kind: Kind, agenda: Agenda, question_parts: tuple[list[str], list[Any]]) -> str:
    """Returns the canonical form: projects in the order of the question, without any names and ids."""
    entities: dict[str, tuple[Json, list[str]]] = {}
    for project in agenda.projects:
        items = [item for item in agenda.items if item.project == project.id]
        facts: list[Json] = [[item.priority, item.duration, item.due_date] for item in items]
        item_words = [word for item in items for word in (*item.content.split(), item.description)]
        entities[project.name] = [project.is_favorite, facts], item_words
    other_projects = [project.name for project in agenda.projects if project.name not in question_parts[0]]
    return digest_task(kind, [*question_parts[0], *other_projects], entities, extra=[agenda.today, *question_parts[1]])


def _apply_clause(expert: ToolExpert, clause: _Clause) -> Json:
    """Executes a clause and returns the answer that is right after it."""
    project = next(row for row in expert.query("get_projects") if row["name"] == clause.project)
    if clause.action in _PROJECT_EDITS:
        expert.execute("update_project", project_id=project["id"], is_favorite=clause.action == "favor")
        return DONE
    row = _select_row(expert, clause, expert.query("get_tasks", project_id=project["id"]))
    if clause.action in ("due", "content"):
        return row["due_date" if clause.action == "due" else "content"]  # type: ignore[no-any-return]
    if clause.action in _QUERIES:
        return expert.query(f"get_task_{clause.action}", task_id=row["id"])[clause.action]  # type: ignore[no-any-return]
    if clause.action in ("move", "tomorrow"):
        due = clause.due if clause.action == "move" else _next_day(expert.query("get_user_current_date"))
        expert.execute("update_task", task_id=row["id"], due_date=due)
    else:
        expert.execute(f"{clause.action}_task", task_id=row["id"])
    return DONE


def _next_day(day: str) -> str:
    return f"{day[:8]}{int(day[8:]) + 1:02}"  # days are drawn from the first half of a month


def _select_row(expert: ToolExpert, clause: _Clause, rows: list[Any]) -> Any:
    """Selects the row of the task that a clause refers to."""
    if clause.selector == "named":
        return next(row for row in rows if row["content"] == clause.content)
    if clause.selector in ("longest", "shortest"):
        durations = {row["id"]: expert.query("get_task_duration", task_id=row["id"])["duration"] for row in rows}
        return (max if clause.selector == "longest" else min)(rows, key=lambda row: durations[row["id"]])
    field = "priority" if clause.selector == "urgent" else "due_date"
    return (min if clause.selector == "first" else max)(rows, key=lambda row: row[field])


def _list_guesses(agenda: Agenda, answer: Json) -> list[Json]:
    """Returns answers of the same type as the right answer."""
    answer_groups: list[list[Json]] = [
        [getattr(item, field) for item in agenda.items] for field in ("due_date", "duration", "description", "content")
    ]
    return next((group for group in answer_groups if answer in group), [DONE])
