"""Tasks in the tracker: issues by number, title, label or assignee, merge requests, projects."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evolvent.worlds.site.database import USER, Database, Issue, MergeRequest, Project
from evolvent.worlds.site.evaluators import Evaluation, ProgramCheck
from evolvent.worlds.site.goals.base import Goal, Navigator, Slots, Source, pick
from evolvent.worlds.site.pages.tracker import HOST, issue_url, merge_request_url, project_url

__all__ = [
    "ISSUE_GOALS",
    "ISSUE_SOURCES",
    "ISSUE_TITLES",
    "NOTES",
    "PROJECT_GOALS",
    "PROJECT_SOURCES",
    "REQUEST_GOALS",
    "REQUEST_SOURCES",
]

NOTES = (
    "I will look into it tomorrow.",
    "This also happens on my machine.",
    "The fix is in the next release.",
    "Please add a test first.",
    "Who has time for this in July?",
    "I think that we can close this soon.",
    "See the log of last night.",
    "Thank you for the clear report.",
)
ISSUE_TITLES = (
    "The start page is empty",
    "Sort the list by name",
    "Write down how to release",
    "The window forgets its size",
    "Speed up the first start",
    "Add a dark theme",
    "Warn before a file is lost",
    "The clock is one hour late",
)


def _draw_issue(database: Database, rng: np.random.Generator) -> Issue:
    return pick(rng, database.issues[pick(rng, list(database.projects))])


def _draw_number(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    project = pick(rng, list(database.projects))
    numbers = [issue.number for issue in database.issues[project]]
    if is_missing:
        numbers = [number for number in range(1, max(numbers) + 9) if number not in numbers]
    return {"project": project, "number": pick(rng, numbers)}


def _resolve_number(database: Database, slots: Slots) -> Issue | None:
    issues = database.issues[str(slots["project"])]
    return next((issue for issue in issues if issue.number == slots["number"]), None)


def _open_issues(user: Navigator, slots: Slots) -> None:
    user.click(role="link", name=str(slots["project"]))
    user.click(role="link", name="Issues")


def _search_number(user: Navigator, slots: Slots) -> bool:
    _open_issues(user, slots)
    user.type("Search title or #number", f"#{slots['number']}", enter=True)
    return user.click(key="issue")


def _draw_title(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    issue = _draw_issue(database, rng)
    return {"project": issue.project, "title": pick(rng, ISSUE_TITLES) if is_missing else issue.title}


def _resolve_title(database: Database, slots: Slots) -> Issue | None:
    issues = database.issues[str(slots["project"])]
    return next((issue for issue in issues if issue.title == slots["title"]), None)


def _search_title(user: Navigator, slots: Slots) -> bool:
    _open_issues(user, slots)
    user.type("Search title or #number", slots["title"], enter=True)
    return user.click(role="link", name=str(slots["title"]), key="issue")


def _list_open(database: Database, project: object) -> list[Issue]:
    """Returns the open issues of a project, newest first."""
    return [issue for issue in reversed(database.issues[str(project)]) if issue.state == "open"]


def _draw_label(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    pairs = [(project.path, label) for project in database.projects.values() for label in project.labels]
    path, label = _pick_pair(rng, pairs, is_missing, lambda path, label: _is_labelled(database, path, label))
    return {"project": path, "tag": label}


def _pick_pair(
    rng: np.random.Generator,
    pairs: Sequence[tuple[str, str]],
    is_missing: bool,
    has_row: Callable[[str, str], bool],
) -> tuple[str, str]:
    """Draws one of the pairs that describe a row, or none where missing rows are asked for; any pair if all do."""
    return pick(rng, [pair for pair in pairs if has_row(*pair) != is_missing] or pairs)


def _list_members(database: Database) -> list[tuple[str, str]]:
    return [(project.path, member) for project in database.projects.values() for member in project.members]


def _is_labelled(database: Database, path: str, label: str) -> bool:
    return any(label in issue.labels for issue in _list_open(database, path))


def _resolve_label(database: Database, slots: Slots) -> Issue | None:
    return next((issue for issue in _list_open(database, slots["project"]) if slots["tag"] in issue.labels), None)


def _filter_label(user: Navigator, slots: Slots) -> bool:
    _open_issues(user, slots)
    user.click(role="link", name=f"Label: {slots['tag']}")
    return user.click(key="issue")


def _is_assigned(database: Database, path: str, member: str) -> bool:
    return any(issue.assignee == member for issue in _list_open(database, path))


def _draw_assignee(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    pairs = _list_members(database)
    path, member = _pick_pair(rng, pairs, is_missing, lambda path, member: _is_assigned(database, path, member))
    return {"project": path, "user": member}


def _resolve_assignee(database: Database, slots: Slots) -> Issue | None:
    return next((issue for issue in _list_open(database, slots["project"]) if issue.assignee == slots["user"]), None)


def _filter_assignee(user: Navigator, slots: Slots) -> bool:
    _open_issues(user, slots)
    user.type("Filter by assignee", slots["user"], enter=True)
    return user.click(key="issue")


ISSUE_SOURCES = (
    Source(
        "numbered issue",
        "issue",
        HOST,
        "issue #{number} of the project {project}",
        _draw_number,
        _resolve_number,
        _search_number,
    ),
    Source(
        "titled issue",
        "issue",
        HOST,
        "the issue {title!r} of the project {project}",
        _draw_title,
        _resolve_title,
        _search_title,
    ),
    Source(
        "labelled issue",
        "issue",
        HOST,
        "the newest open issue with the label {tag!r} in the project {project}",
        _draw_label,
        _resolve_label,
        _filter_label,
    ),
    Source(
        "assigned issue",
        "issue",
        HOST,
        "the newest open issue assigned to {user} in the project {project}",
        _draw_assignee,
        _resolve_assignee,
        _filter_assignee,
    ),
)


def _draw_request_number(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    project = pick(rng, list(database.projects))
    numbers = [request.number for request in database.merge_requests[project]]
    if is_missing:
        numbers = [number for number in range(1, max(numbers) + 9) if number not in numbers]
    return {"project": project, "number": pick(rng, numbers)}


def _resolve_request_number(database: Database, slots: Slots) -> MergeRequest | None:
    requests = database.merge_requests[str(slots["project"])]
    return next((request for request in requests if request.number == slots["number"]), None)


def _open_requests(user: Navigator, slots: Slots) -> None:
    user.click(role="link", name=str(slots["project"]))
    user.click(role="link", name="Merge requests")


def _search_request(user: Navigator, slots: Slots) -> bool:
    _open_requests(user, slots)
    user.type("Search title or #number", f"#{slots['number']}", enter=True)
    return user.click(key="merge_request")


def _has_request(database: Database, path: str, member: str) -> bool:
    return any(request.author == member for request in database.merge_requests[path])


def _draw_request_author(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    pairs = _list_members(database)
    path, member = _pick_pair(rng, pairs, is_missing, lambda path, member: _has_request(database, path, member))
    return {"project": path, "user": member}


def _resolve_request_author(database: Database, slots: Slots) -> MergeRequest | None:
    requests = reversed(database.merge_requests[str(slots["project"])])
    return next((request for request in requests if request.author == slots["user"]), None)


def _filter_requests(user: Navigator, slots: Slots) -> bool:
    _open_requests(user, slots)
    user.type("Filter by author", slots["user"], enter=True)
    return user.click(key="merge_request")


REQUEST_SOURCES = (
    Source(
        "numbered merge request",
        "merge request",
        HOST,
        "merge request #{number} of the project {project}",
        _draw_request_number,
        _resolve_request_number,
        _search_request,
    ),
    Source(
        "merge request of a user",
        "merge request",
        HOST,
        "the newest merge request by {user} in the project {project}",
        _draw_request_author,
        _resolve_request_author,
        _filter_requests,
    ),
)


def _open_project(user: Navigator, slots: Slots) -> bool:
    return user.click(role="link", name=str(slots["project"]))


PROJECT_SOURCES = (
    Source[Project](
        "project",
        "project",
        HOST,
        "the project {project}",
        lambda database, rng, is_missing: {"project": pick(rng, list(database.projects))},
        lambda database, slots: database.projects[str(slots["project"])],
        _open_project,
        can_miss=False,
    ),
)


# ------------------------------------------------------------------------------------------------------------ goals


def _click(user: Navigator, name: str) -> str:
    user.click(role="button", name=name)
    return ""


def _read_label(user: Navigator, key: str) -> str:
    """Returns what stands behind a label; `N/A` where it says None."""
    text = user.read_node(key)
    return "N/A" if text in ("", "None") else text


def _check_issue(issue: Issue, locator: str, text: str, *, is_exact: bool = False) -> Evaluation:
    return Evaluation(
        program_html=(ProgramCheck(issue_url(issue.project, issue.number), locator, (text,), is_exact=is_exact),)
    )


def _note(user: Navigator, slots: Slots) -> str:
    user.type("Write a comment", slots["note"])
    return _click(user, "Comment")


def _draw_note(database: Database, rng: np.random.Generator, row: object) -> Slots:
    return {"note": pick(rng, NOTES)}


def _draw_new_label(database: Database, rng: np.random.Generator, issue: Issue) -> Slots | None:
    return {
        "label": pick(rng, [label for label in database.projects[issue.project].labels if label not in issue.labels])
    }


def _label(user: Navigator, slots: Slots) -> str:
    user.type("Add label", slots["label"])
    return _click(user, "Apply label")


def _draw_new_assignee(database: Database, rng: np.random.Generator, issue: Issue) -> Slots | None:
    members = [member for member in database.projects[issue.project].members if member != issue.assignee]
    return {"member": pick(rng, members)}


def _assign(user: Navigator, slots: Slots) -> str:
    user.type("Set assignee", slots["member"])
    return _click(user, "Assign")


ISSUE_GOALS = (
    Goal[Issue](
        "author",
        "issue",
        ("Who opened {target}?", "Tell me the username of the author of {target}."),
        lambda database, issue, slots: Evaluation(exact_match=issue.author),
        lambda user, slots: user.read_node("author"),
        is_question=True,
    ),
    Goal[Issue](
        "assignee",
        "issue",
        ("Who is assigned to {target}?", "Tell me the assignee of {target}."),
        lambda database, issue, slots: Evaluation(exact_match=issue.assignee) if issue.assignee else None,
        lambda user, slots: _read_label(user, "assignee"),
        is_question=True,
    ),
    Goal[Issue](
        "open",
        "issue",
        ("Open {target}.", "Show me the page of {target}."),
        lambda database, issue, slots: Evaluation(reference_url=issue_url(issue.project, issue.number)),
        lambda user, slots: "",
    ),
    Goal[Issue](
        "close",
        "issue",
        ("Close {target}.", "Set {target} to closed."),
        lambda database, issue, slots: _check_issue(issue, "state", "closed", is_exact=True),
        lambda user, slots: _click(user, "Close issue"),
        lambda database, rng, issue: {} if issue.state == "open" else None,
    ),
    Goal[Issue](
        "comment",
        "issue",
        ("Comment on {target}: {note!r}.", "Write {note!r} as a comment on {target}."),
        lambda database, issue, slots: _check_issue(issue, "comments", str(slots["note"])),
        _note,
        _draw_note,
    ),
    Goal[Issue](
        "label",
        "issue",
        ("Add the label {label!r} to {target}.", "Give {target} the label {label!r} too."),
        lambda database, issue, slots: _check_issue(issue, "labels", str(slots["label"])),
        _label,
        _draw_new_label,
    ),
    Goal[Issue](
        "labels",
        "issue",
        ("Which labels does {target} have? Separate them by commas.", "List the labels of {target}, with commas."),
        lambda database, issue, slots: Evaluation(exact_match=", ".join(issue.labels)) if issue.labels else None,
        lambda user, slots: _read_label(user, "labels"),
        is_question=True,
    ),
    Goal[Issue](
        "assign",
        "issue",
        ("Assign {target} to {member}.", "Make {member} the assignee of {target}."),
        lambda database, issue, slots: _check_issue(issue, "assignee", str(slots["member"]), is_exact=True),
        _assign,
        _draw_new_assignee,
    ),
)
REQUEST_GOALS = (
    Goal[MergeRequest](
        "branch",
        "merge request",
        ("What is the source branch of {target}?", "Tell me the name of the branch of {target}."),
        lambda database, request, slots: Evaluation(exact_match=request.branch),
        lambda user, slots: user.read_node("branch"),
        is_question=True,
    ),
    Goal[MergeRequest](
        "state",
        "merge request",
        ("What is the state of {target}?", "Is {target} open, merged or closed? Answer with one word."),
        lambda database, request, slots: Evaluation(exact_match=request.state),
        lambda user, slots: user.read_node("state"),
        is_question=True,
    ),
    Goal[MergeRequest](
        "open",
        "merge request",
        ("Open {target}.", "Show me the page of {target}."),
        lambda database, request, slots: Evaluation(reference_url=merge_request_url(request.project, request.number)),
        lambda user, slots: "",
    ),
    Goal[MergeRequest](
        "reviewer",
        "merge request",
        ("Who reviews {target}?", "Tell me the reviewer of {target}."),
        lambda database, request, slots: Evaluation(exact_match=request.reviewer) if request.reviewer else None,
        lambda user, slots: _read_label(user, "reviewer"),
        is_question=True,
    ),
    Goal[MergeRequest](
        "comment",
        "merge request",
        ("Comment on {target}: {note!r}.", "Write {note!r} as a comment on {target}."),
        lambda database, request, slots: Evaluation(
            program_html=(
                ProgramCheck(merge_request_url(request.project, request.number), "comments", (str(slots["note"]),)),
            )
        ),
        _note,
        _draw_note,
    ),
)


def _create(user: Navigator, slots: Slots) -> str:
    user.click(role="link", name="Issues")
    user.click(role="link", name="New issue")
    user.type("Title", slots["title"])
    user.type("Assignee", slots["member"])
    user.type("Label", slots["label"])
    return _click(user, "Create issue")


def _draw_new_issue(database: Database, rng: np.random.Generator, project: Project) -> Slots:
    return {
        "title": pick(rng, ISSUE_TITLES),
        "member": pick(rng, project.members),
        "label": pick(rng, project.labels),
    }


def _check_new_issue(database: Database, project: Project, slots: Slots) -> Evaluation:
    url = f"func:latest_issue:{project.path}"
    names = {"title": "title", "member": "assignee", "label": "labels"}
    checks = tuple(ProgramCheck(url, key, (str(slots[slot]),), is_exact=True) for slot, key in names.items())
    return Evaluation(program_html=(*checks, ProgramCheck(url, "author", (USER.username,), is_exact=True)))


def _count_open(database: Database, project: Project, slots: Slots) -> Evaluation:
    return Evaluation(must_include=(f"{len(_list_open(database, project.path))}",))


PROJECT_GOALS = (
    Goal[Project](
        "create issue",
        "project",
        ("Create an issue in {target} with the title {title!r}, assigned to {member}, with the label {label!r}.",),
        _check_new_issue,
        _create,
        _draw_new_issue,
    ),
    Goal[Project](
        "number of open issues",
        "project",
        ("How many open issues does {target} have?",),
        _count_open,
        lambda user, slots: user.read_node("num_open"),
        is_question=True,
        is_count=True,
    ),
    Goal[Project](
        "star",
        "project",
        ("Star {target}.", "Give {target} a star."),
        lambda database, project, slots: Evaluation(
            program_html=(ProgramCheck(project_url(project.path), "starred", ("Starred by you",), is_exact=True),)
        ),
        lambda user, slots: _click(user, "Star"),
    ),
)
