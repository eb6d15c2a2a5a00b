"""Generated projects and tasks, drawn per task of the world, and the tools that read and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, build_tool
from evolvent.worlds.tools.kinds import Draw

__all__ = ["NOUNS", "PROJECTS", "TOOLS", "VERBS", "Agenda", "Item", "Project", "draw_agenda"]

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
