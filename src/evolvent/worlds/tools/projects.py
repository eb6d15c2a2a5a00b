"""Invented projects and tasks, drawn per task of the world, and the tools that read and change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, tool
from evolvent.worlds.tools.kinds import Draw

__all__ = ["PROJECTS", "THINGS", "TOOLS", "VERBS", "Agenda", "Item", "Project", "draw_agenda"]

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
THINGS = NAMES
_PER_PROJECT, _PROJECTS = 3, 3


@dataclass(frozen=True, slots=True)
class Project:
    """One project."""

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

    def visible(self) -> object:
        """The state without ids: what is compared at the end."""
        names = {project.id: project.name for project in self.projects}
        items = [(names[item.project], replace(item, id=0, project=0)) for item in self.items]
        return [(project.name, project.is_favorite) for project in self.projects], items

    def day(self, offset: int) -> str:
        """The date so many days from today."""
        return (date.fromisoformat(self.today) + timedelta(days=offset)).isoformat()


def draw_agenda(draw: Draw) -> Agenda:
    """Three projects of two or three tasks. Due dates, priorities and durations differ within a project."""
    today = date(2024, draw.between(1, 12), draw.between(1, 14))
    ids = draw.some(_PROJECTS * (1 + _PER_PROJECT), range(10, 100))
    things = draw.some(2 * _PROJECTS * _PER_PROJECT, THINGS)
    favorite = draw.below(_PROJECTS)
    projects, items = [], []
    for at, name in enumerate(draw.some(_PROJECTS, PROJECTS)):
        projects.append(Project(ids.pop(), name, at == favorite))
        tasks = draw.between(2, _PER_PROJECT)
        priorities, days = draw.some(tasks, range(1, 5)), draw.some(tasks, range(1, 14))
        for priority, offset, duration in zip(priorities, days, draw.some(tasks, range(5, 65, 5)), strict=True):
            due = (today + timedelta(days=offset)).isoformat()
            content, description = f"{draw.choice(VERBS)} {things.pop()}", f"use {things.pop()}"
            items.append(Item(ids.pop(), projects[-1].id, content, description, duration, priority, due))
    return Agenda(today.isoformat(), draw.choice(CITIES), tuple(projects), tuple(items))


def _item(agenda: Agenda, given: Mapping[str, Any]) -> Item:
    for item in agenda.items:
        if item.id == given["task_id"]:
            return item
    raise InvalidAction("there is no task of that id", value=given["task_id"])


def _project(agenda: Agenda, given: Mapping[str, Any]) -> Project:
    for project in agenda.projects:
        if project.id == given["project_id"]:
            return project
    raise InvalidAction("there is no project of that id", value=given["project_id"])


def _short(item: Item, **more: Json) -> dict[str, Json]:
    return {"id": item.id, "content": item.content, **more}


def _row(project: Project) -> dict[str, Json]:
    return {"id": project.id, "name": project.name, "is_favorite": project.is_favorite}


def _projects(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    return agenda, [_row(project) for project in agenda.projects]


def _update_project(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    old = _project(agenda, given)
    new = replace(old, is_favorite=given["is_favorite"])
    projects = tuple(new if project is old else project for project in agenda.projects)
    return replace(agenda, projects=projects), {"updated": _row(new)}


def _tasks(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    project = _project(agenda, given)
    rows = [item for item in agenda.items if item.project == project.id]
    return agenda, [_short(item, priority=item.priority, due_date=item.due_date) for item in rows]


def _description(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    item = _item(agenda, given)
    return agenda, _short(item, description=item.description)


def _duration(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    item = _item(agenda, given)
    return agenda, _short(item, duration=item.duration)


def _take_away(message: str) -> Any:
    def run(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
        gone = _item(agenda, given)
        items = tuple(item for item in agenda.items if item is not gone)
        return replace(agenda, items=items), {message: _short(gone)}

    return run


def _update_task(agenda: Agenda, given: Mapping[str, Any]) -> tuple[Agenda, Json]:
    old = _item(agenda, given)
    try:
        due = date.fromisoformat(given["due_date"]).isoformat()
    except ValueError as error:
        raise InvalidAction("expected a date like 2024-05-17", value=given["due_date"]) from error
    if not due.startswith("2024"):
        raise InvalidAction("expected a date in 2024", value=due)
    items = tuple(replace(item, due_date=due) if item is old else item for item in agenda.items)
    return replace(agenda, items=items), {"updated": _short(old, due_date=due)}


TOOLS: tuple[ToolSpec, ...] = (
    tool(lambda agenda, given: (agenda, agenda.today), "get_user_current_date()", "The user's date."),
    tool(lambda agenda, given: (agenda, agenda.city), "get_user_current_location()", "The user's city."),
    tool(_projects, "get_projects()", "All projects."),
    tool(
        _update_project,
        "update_project(project_id: integer, is_favorite: boolean)",
        "Make a project a favorite, or no favorite.",
    ),
    tool(_tasks, "get_tasks(project_id: integer)", "The open tasks of a project."),
    tool(_description, "get_task_description(task_id: integer)", "The description of a task."),
    tool(_duration, "get_task_duration(task_id: integer)", "How many minutes a task takes."),
    tool(_take_away("completed"), "complete_task(task_id: integer)", "Mark a task as completed."),
    tool(_update_task, "update_task(task_id: integer, due_date: string)", "Give a task another due date."),
    tool(_take_away("deleted"), "delete_task(task_id: integer)", "Delete a task."),
)
"""The tools of the todo world under their original names."""
