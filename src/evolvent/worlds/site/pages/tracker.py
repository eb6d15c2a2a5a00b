"""The project tracker: projects, their issues and merge requests, labels, assignees and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from evolvent.worlds.site.database import USER, Comment, Issue, MergeRequest, format_day
from evolvent.worlds.site.nodes import Builder, Command, Outcome, Page, build_url
from evolvent.worlds.site.records import View

__all__ = ["HOST", "issue_url", "merge_request_url", "project_url", "render", "run"]

HOST = "tracker.com"
_TITLE = "Tracker"
_PER_PAGE = 10


def project_url(path: str) -> str:
    """Returns the address of a project."""
    return build_url(HOST, path)


def issue_url(project: str, number: int) -> str:
    """Returns the address of an issue."""
    return build_url(HOST, f"{project}/issues/{number}")


def merge_request_url(project: str, number: int) -> str:
    """Returns the address of a merge request."""
    return build_url(HOST, f"{project}/merge_requests/{number}")


def render(view: View, path: Sequence[str], query: Mapping[str, str], url: str) -> Page | None:
    """Renders a page of the tracker; returns None where there is none."""
    if not path:
        return _render_front(view, url)
    if list(path) == ["dashboard", "issues"]:
        return _render_own_issues(view, url)
    project, rest = "/".join(path[:2]), list(path[2:])
    if project not in view.database.projects:
        return None
    match rest:
        case []:
            return _render_project(view, project, url)
        case ["issues"]:
            return _render_issues(view, project, query, url)
        case ["issues", "new"]:
            return _render_new_issue(view, project, url)
        case ["issues", number] if re.fullmatch(r"[0-9]{1,9}", number):
            issue = view.get_issue(project, int(number))
            return _render_issue(view, issue, url) if issue is not None else None
        case ["merge_requests"]:
            return _render_merge_requests(view, project, query, url)
        case ["merge_requests", number] if re.fullmatch(r"[0-9]{1,9}", number):
            request = view.get_merge_request(project, int(number))
            return _render_merge_request(request, url) if request is not None else None
    return None


def _begin(title: str, url: str, project: str = "") -> Builder:
    page = Builder(url, f"{title} - {_TITLE}" if title else _TITLE)
    page.link("Projects", build_url(HOST))
    page.link("Issues assigned to me", build_url(HOST, "dashboard/issues"))
    page.text(f"Signed in as {USER.username}")
    if project:
        page.link(project, project_url(project))
        page.link("Issues", build_url(HOST, f"{project}/issues"))
        page.link("Merge requests", build_url(HOST, f"{project}/merge_requests"))
    return page


def _render_front(view: View, url: str) -> Page:
    page = _begin("", url)
    page.heading("Projects")
    for project in view.database.projects.values():
        page.link(project.path, project_url(project.path))
        page.text(project.description, depth=2)
    return page.build()


def _add_issues(page: Builder, issues: Sequence[Issue]) -> None:
    if not issues:
        page.text("There are no issues to show.")
    for issue in issues:
        page.link(issue.title, issue_url(issue.project, issue.number), key="issue")
        parts = (f"#{issue.number}", f"opened {format_day(issue.day)} by {issue.author}", issue.state, *issue.labels)
        page.text(", ".join(parts), depth=2)


def _render_own_issues(view: View, url: str) -> Page:
    page = _begin("Issues assigned to me", url)
    page.heading("Open issues assigned to me")
    issues = [issue for project in view.database.projects for issue in view.list_issues(project)]
    open_issues = [issue for issue in issues if issue.state == "open" and issue.assignee == USER.username]
    _add_issues(page, open_issues[: 2 * _PER_PAGE])
    return page.build()


def _render_project(view: View, path: str, url: str) -> Page:
    project, page = view.database.projects[path], _begin(path, url, path)
    page.heading(path)
    page.text(project.description)
    is_starred = path in view.starred
    page.text(f"{project.stars + is_starred} stars")
    page.text("Starred by you" if is_starred else "Not starred by you", key="starred")
    page.button("Unstar" if is_starred else "Star", ("star", path, int(not is_starred)))
    num_open = sum(issue.state == "open" for issue in view.list_issues(path))
    page.text(f"{num_open} open issues", key="num_open")
    page.text(f"Members: {', '.join(project.members)}")
    page.text(f"Labels: {', '.join(project.labels)}")
    return page.build()


def _render_issues(view: View, path: str, query: Mapping[str, str], url: str) -> Page:
    page, here = _begin(f"Issues of {path}", url, path), f"{path}/issues"
    search, state, label, assignee = (query.get(name, "") for name in ("search", "state", "label", "assignee"))
    page.heading("Issues, newest first")
    page.link("New issue", build_url(HOST, f"{here}/new"))
    for name in ("open", "closed", "all"):
        page.link(f"State: {name}", build_url(HOST, here, state=name))
    for name in view.database.projects[path].labels:
        page.link(f"Label: {name}", build_url(HOST, here, label=name))
    page.textbox("Search title or #number", "search", ("search_issues", path))
    page.textbox("Filter by assignee", "assignee", ("filter_issues", path))
    wanted_state = state or ("all" if search else "open")
    issues = [
        issue
        for issue in view.list_issues(path)
        if wanted_state in ("all", issue.state)
        and (not label or label in issue.labels)
        and (not assignee or assignee == issue.assignee)
        and _matches(search, issue.number, issue.title)
    ]
    _add_issues(page, issues[:_PER_PAGE])
    if len(issues) > _PER_PAGE:
        page.text(f"{len(issues) - _PER_PAGE} more; search or filter to see them.")
    return page.build()


def _matches(search: str, number: int, title: str) -> bool:
    text = search.strip().lower()
    return f"#{number}" == text if text.startswith("#") else text in title.lower()


def _add_notes(page: Builder, notes: Sequence[Comment]) -> None:
    page.heading("Activity, oldest first")
    for note in notes:
        page.text(note.author, key="commenter")
        page.text(note.text, key="comments", depth=2)


def _render_issue(view: View, issue: Issue, url: str) -> Page:
    project, page = view.database.projects[issue.project], _begin(issue.title, url, issue.project)
    key = (issue.project, issue.number)
    page.heading(issue.title, key="title")
    page.text(f"#{issue.number}, opened {format_day(issue.day)} by")
    page.text(issue.author, key="author", depth=2)
    page.text("State:")
    page.text(issue.state, key="state", depth=2)
    page.text(issue.description, key="description")
    page.text("Assignee:")
    page.text(issue.assignee or "None", key="assignee", depth=2)
    page.text("Labels:")
    page.text(", ".join(issue.labels) or "None", key="labels", depth=2)
    is_open = issue.state == "open"
    page.button("Close issue" if is_open else "Reopen issue", ("state", *key, "closed" if is_open else "open"))
    page.combobox("Set assignee", "assignee", project.members)
    page.button("Assign", ("assign", *key))
    page.combobox("Add label", "label", project.labels)
    page.button("Apply label", ("label", *key))
    _add_notes(page, issue.comments)
    page.textbox("Write a comment", "note")
    page.button("Comment", ("note", *key))
    return page.build()


def _render_new_issue(view: View, path: str, url: str) -> Page:
    project, page = view.database.projects[path], _begin("New issue", url, path)
    page.heading("New issue")
    page.textbox("Title", "title")
    page.textbox("Description", "description")
    page.combobox("Assignee", "assignee", project.members)
    page.combobox("Label", "label", project.labels)
    page.button("Create issue", ("create", path))
    return page.build()


def _render_merge_requests(view: View, path: str, query: Mapping[str, str], url: str) -> Page:
    page = _begin(f"Merge requests of {path}", url, path)
    search, author = query.get("search", ""), query.get("author", "")
    page.heading("Merge requests, newest first")
    page.textbox("Search title or #number", "search", ("search_requests", path))
    page.textbox("Filter by author", "author", ("filter_requests", path))
    requests = [
        request
        for request in view.list_merge_requests(path)
        if (not author or author == request.author) and _matches(search, request.number, request.title)
    ]
    if not requests:
        page.text("There are no merge requests to show.")
    for request in requests:
        page.link(request.title, merge_request_url(path, request.number), key="merge_request")
        page.text(f"#{request.number}, opened {format_day(request.day)} by {request.author}, {request.state}", depth=2)
    return page.build()


def _render_merge_request(request: MergeRequest, url: str) -> Page:
    page = _begin(request.title, url, request.project)
    page.heading(request.title, key="title")
    page.text(f"#{request.number}, opened {format_day(request.day)} by")
    page.text(request.author, key="author", depth=2)
    page.text("State:")
    page.text(request.state, key="state", depth=2)
    page.text("Source branch:")
    page.text(request.branch, key="branch", depth=2)
    page.text("Reviewer:")
    page.text(request.reviewer or "None", key="reviewer", depth=2)
    _add_notes(page, request.comments)
    page.textbox("Write a comment", "note")
    page.button("Comment", ("merge_note", request.project, request.number))
    return page.build()


def run(view: View, command: Command, fields: Mapping[str, str]) -> Outcome:
    """Runs a command of a page of the tracker."""
    match command:
        case ["search_issues" | "search_requests" as name, str(path)]:
            part = "issues" if name == "search_issues" else "merge_requests"
            return Outcome(build_url(HOST, f"{path}/{part}", search=fields.get("search", "").strip()))
        case ["filter_issues", str(path)]:
            return Outcome(build_url(HOST, f"{path}/issues", assignee=fields.get("assignee", "").strip()))
        case ["filter_requests", str(path)]:
            return Outcome(build_url(HOST, f"{path}/merge_requests", author=fields.get("author", "").strip()))
        case ["star", str(path), int(is_starred)]:
            return Outcome("", ("star", path, is_starred))
        case ["state", str(path), int(number), str(state)]:
            return Outcome("", ("state", path, number, state))
        case ["assign", str(path), int(number)]:
            assignee = fields.get("assignee", "").strip()
            if assignee not in view.database.projects[path].members:
                return Outcome(notice="Choose a member of the project.")
            return Outcome("", ("assign", path, number, assignee))
        case ["label", str(path), int(number)]:
            label = fields.get("label", "").strip()
            if label not in view.database.projects[path].labels:
                return Outcome(notice="Choose a label of the project.")
            return Outcome("", ("label", path, number, label))
        case ["note" | "merge_note" as name, str(path), int(number)]:
            text = fields.get("note", "").strip()
            return Outcome("", (name, path, number, text)) if text else Outcome(notice="The comment is empty.")
        case ["create", str(path)]:
            return _create_issue(view, path, fields)
    return Outcome()


def _create_issue(view: View, path: str, fields: Mapping[str, str]) -> Outcome:
    project = view.database.projects[path]
    title, description, assignee, label = (
        fields.get(name, "").strip() for name in ("title", "description", "assignee", "label")
    )
    if not title:
        return Outcome(notice="The title is empty.")
    if assignee and assignee not in project.members:
        return Outcome(notice="Choose a member of the project.")
    if label and label not in project.labels:
        return Outcome(notice="Choose a label of the project.")
    number = view.list_issues(path)[0].number + 1
    return Outcome(issue_url(path, number), ("issue", path, title, description, assignee, label))
