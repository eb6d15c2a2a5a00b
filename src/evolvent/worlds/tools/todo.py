"""To-do lists: find tasks by what is said of them, complete, move or delete them, mark projects, tell what is asked.

    complete the task with the longest duration in garden , then tell the due date of the task paint fern in attic
    get_projects  ->  id 31 name garden is_favorite false ; ...   get_tasks 31  ->  ...   get_task_duration 58  ->  ...
    complete_task 58  ->  ...   get_tasks 77  ->  ...   finish 2024-05-20

A kind is what is done and to which task, clause after clause, each in another project. Only the last clause may ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import CITIES
from evolvent.worlds.tools.engine import FINISH
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.kinds import Draw, Kind, canonical
from evolvent.worlds.tools.projects import PROJECTS, THINGS, TOOLS, VERBS, Agenda, draw_agenda
from evolvent.worlds.tools.scoring import same_answer
from evolvent.worlds.tools.world import DONE, ToolWorld

__all__ = ["Todo"]

_WHICH: Mapping[str, str] = {
    "named": "the task {}",
    "first": "the task with the earliest due date",
    "last": "the task with the latest due date",
    "urgent": "the task with the highest priority",
    "longest": "the task with the longest duration",
    "shortest": "the task with the shortest duration",
}
_DO: Mapping[str, str] = {
    "complete": "complete {}",
    "delete": "delete {}",
    "move": "set the due date of {} to {}",
    "tomorrow": "set the due date of {} to tomorrow",
}
_MARK: Mapping[str, str] = {"favor": "make {} a favorite", "unfavor": "make {} no favorite"}
_TELL: Mapping[str, str] = {
    "due": "tell the due date of {}",
    "duration": "tell the duration of {}",
    "description": "tell the description of {}",
    "content": "tell the name of {}",
}
_PROJECT = "project"
_MOST_CALLS = 12  # with three tasks in a project; fewer words for small models


@dataclass(frozen=True, slots=True)
class _Clause:
    """One clause: what is done, to which task of which project; `content` and `due` are what the question names."""

    do: str
    which: str
    project: str
    content: str
    due: str

    def __str__(self) -> str:
        if self.do in _MARK:
            return _MARK[self.do].format(self.project)
        task = f"{_WHICH[self.which].format(self.content)} in {self.project}"
        return {**_DO, **_TELL}[self.do].format(task, self.due)


class Todo(ToolWorld):
    """The to-do world. The reward is 1 where answer and final state are right; see `ToolWorld` for the options."""

    name = "todo"
    horizon = 15
    specs = TOOLS
    trained = 4
    hint = "Where nothing is asked, the answer is done. "
    example = Call("update_task", {"task_id": 31, "due_date": "2024-05-17"})

    def kinds(self) -> Iterator[Kind]:
        """One to three clauses, each (what, which); within the horizon."""
        edits: list[Kind] = [*product(_DO, _WHICH), *((mark, _PROJECT) for mark in _MARK)]
        every: list[Kind] = [
            *edits,
            *((tell, which) for tell, which in product(_TELL, _WHICH) if (tell, which) != ("content", "named")),
        ]
        for last in every:
            yield last
            for first in edits:
                yield (*first, *last)
                for middle in edits:
                    kind = (*first, *middle, *last)
                    if _calls(kind) <= _MOST_CALLS:
                        yield kind

    def quest(self, kind: Kind, seed: int) -> Quest:
        draw = Draw("evolvent todo 1", *kind, seed)
        agenda = draw_agenda(draw)
        left = draw.some(len(agenda.projects), agenda.projects)
        clauses, extra = [], []
        for do, which in _pairs(kind):
            project = next((one for one in left if do not in _MARK or one.is_favorite == (do == "unfavor")), left[0])
            left.remove(project)
            items = [item for item in agenda.items if item.project == project.id]
            chosen, due = draw.below(len(items)), agenda.day(draw.between(14, 17))
            clauses.append(_Clause(do, which, project.name, items[chosen].content, due))
            extra.append([chosen if which == "named" else None, due if do == "move" else None])
        question = " , then ".join(map(str, clauses))
        named = [clause.project for clause in clauses]
        return Quest(question, agenda, _key(kind, agenda, (named, extra)), tuple(clauses))

    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        answer: Json = DONE
        for clause in quest.notes:
            answer = _carry_out(asker, clause)
        return asker.solution(answer)

    def finished(self, quest: Quest, solution: Solution, state: Any, *, answer: Json) -> float:
        right = same_answer(solution.answer, answer) and state.visible() == solution.goal.visible()
        return float(right)

    def around(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        agenda: Agenda = quest.start
        yield from (Call("get_projects"), Call("get_user_current_date"), Call("get_user_current_location"))
        for project in agenda.projects:
            yield Call("get_tasks", {"project_id": project.id})
            yield Call("update_project", {"project_id": project.id, "is_favorite": not project.is_favorite})
        moves = [str(call.arguments["due_date"]) for call in solution.plan if "due_date" in call.arguments]
        days = dict.fromkeys([agenda.day(1), agenda.day(14), *moves])  # any task might be moved to any of them
        for item in agenda.items:
            for name in ("get_task_description", "get_task_duration", "complete_task", "delete_task"):
                yield Call(name, {"task_id": item.id})
            yield from (Call("update_task", {"task_id": item.id, "due_date": day}) for day in days)
        yield from (Call(FINISH, {"answer": guess}) for guess in _guesses(agenda, solution.answer))

    def texts(self) -> Iterator[str]:
        yield from (*PROJECTS, *VERBS, *THINGS, *CITIES)
        yield from map(str, [*range(100), 2024])
        yield from (f"{number:02}" for number in range(1, 10))
        yield from (*_WHICH.values(), *_DO.values(), *_MARK.values(), *_TELL.values())
        yield "in then id name is_favorite content priority due_date description duration use true false"
        yield "updated completed deleted nothing"
        yield "there is no task project of that id expected a date like 2024-05-17 in 2024"


def _pairs(kind: Kind) -> list[tuple[str, str]]:
    return list(zip(kind[::2], kind[1::2], strict=True))


def _calls(kind: Kind) -> int:
    """How many calls the expert needs, `finish` included."""
    found = 2 + ("tomorrow" in kind)
    for do, which in _pairs(kind):
        long = which in ("longest", "shortest")
        found += 1 if do in _MARK else 1 + 3 * long + (do not in ("due", "content") and not (long and do == "duration"))
    return found


def _key(kind: Kind, agenda: Agenda, asked: tuple[list[str], list[Any]]) -> str:
    """The canonical form: projects in the order in which the question takes them, without any names and ids."""
    entities: dict[str, tuple[Json, list[str]]] = {}
    for project in agenda.projects:
        items = [item for item in agenda.items if item.project == project.id]
        facts = [[item.priority, item.duration, item.due_date] for item in items]
        words = [word for item in items for word in (*item.content.split(), item.description)]
        entities[project.name] = [project.is_favorite, facts], words
    rest = [project.name for project in agenda.projects if project.name not in asked[0]]
    return canonical(kind, [*asked[0], *rest], entities, extra=[agenda.today, *asked[1]])


def _carry_out(asker: Asker, clause: _Clause) -> Json:
    """Do what a clause says; the answer that is due after it."""
    project = next(row for row in asker.ask("get_projects") if row["name"] == clause.project)
    if clause.do in _MARK:
        asker.do("update_project", project_id=project["id"], is_favorite=clause.do == "favor")
        return DONE
    row = _select(asker, clause, asker.ask("get_tasks", project_id=project["id"]))
    if clause.do in ("due", "content"):
        return row["due_date" if clause.do == "due" else "content"]  # type: ignore[no-any-return]
    if clause.do in _TELL:
        return asker.ask(f"get_task_{clause.do}", task_id=row["id"])[clause.do]  # type: ignore[no-any-return]
    if clause.do in ("move", "tomorrow"):
        due = clause.due if clause.do == "move" else _after(asker.ask("get_user_current_date"))
        asker.do("update_task", task_id=row["id"], due_date=due)
    else:
        asker.do(f"{clause.do}_task", task_id=row["id"])
    return DONE


def _after(day: str) -> str:
    return f"{day[:8]}{int(day[8:]) + 1:02}"  # days are drawn from the first half of a month


def _select(asker: Asker, clause: _Clause, rows: list[Any]) -> Any:
    """The row that is meant."""
    if clause.which == "named":
        return next(row for row in rows if row["content"] == clause.content)
    if clause.which in ("longest", "shortest"):
        lasts = {row["id"]: asker.ask("get_task_duration", task_id=row["id"])["duration"] for row in rows}
        return (max if clause.which == "longest" else min)(rows, key=lambda row: lasts[row["id"]])
    field = "priority" if clause.which == "urgent" else "due_date"
    return (min if clause.which == "first" else max)(rows, key=lambda row: row[field])


def _guesses(agenda: Agenda, answer: Json) -> list[Json]:
    """Answers of the same sort as the right one."""
    sorts: list[list[Json]] = [
        [getattr(item, field) for item in agenda.items] for field in ("due_date", "duration", "description", "content")
    ]
    return next((sort for sort in sorts if answer in sort), [DONE])
