"""The viewer: runs, trajectories, trees, beliefs and leaderboards of a folder as a local web application.

It only reads. Addresses name runs by keys and everything else by values that are looked up, so nothing a browser sends
becomes a path. Pages are made on the server, load one sheet and one script of our own, and their content policy lets
nothing else run or load; what models wrote is escaped text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from evolvent.errors import ConfigError, EvolventError, SampleInvalid, boundary
from evolvent.view.data import read_json_file
from evolvent.view.door import require_token
from evolvent.view.library import Library, RunEntry
from evolvent.view.pages import Frame, Tab, problem_page, read_asset, run_page, runs_page, warm_up
from evolvent.view.pages_compare import STYLES, compare_page, compare_runs
from evolvent.view.pages_more import beliefs_page, boards_page, load_page, read_beliefs, trees_page
from evolvent.view.pages_trajectories import TrajectoryView, list_page, list_window, parse_query, trajectory_page
from evolvent.view.queries import Query, TrajectoryIndex
from evolvent.view.shading import find_credit
from evolvent.view.spelling import find_token_texts
from evolvent.web import Access, App, guard_app

__all__ = ["HEADERS", "Boards", "viewer_app"]

Boards = Callable[[Sequence[Path]], tuple[Mapping[str, object] | None, list[tuple[str, str]]]]
"""From results files of agent-eval to the data of a leaderboard (None: there is none), and what could not be read."""

_log = logging.getLogger(__name__)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every answer."""

_THEMES = ("", "light", "dark")
_THEME_COOKIE = "evolvent-theme"
_WINDOW_ROWS, _MAX_WINDOW_ROWS = 100, 500  # of a window onto a list
_READ_S = 0.2  # for which a request reads on in a store that has not been read to its end
_COMPARE_READ_S = 2.0  # the same, where all of it matters
_BOARD_FILE = "agent-eval.json"


@dataclass(frozen=True, slots=True)
class _Context:
    """The objects that every route uses."""

    library: Library
    boards: Boards
    tokenizer: Path | None


@dataclass(frozen=True, slots=True)
class _PageRequest:
    """A request as text values, none of which is trusted."""

    path: str
    query: str
    values: Mapping[str, str]
    runs: tuple[str, ...]
    theme: Any

    def number(self, name: str) -> int:
        """Returns a nonnegative integer parameter; 0 where it is missing or invalid."""
        text = self.values.get(name, "")[:12]
        return int(text) if text.isascii() and text.isdigit() else 0

    def frame(self, tab: str, run: RunEntry | None = None, **frame_fields: Any) -> Frame:
        """Builds the frame of the requested page."""
        back = f"{self.path}?{self.query}" if self.query else self.path
        return Frame(self.theme, back, tab, run, _list_tabs(run) if run else (), **frame_fields)


def viewer_app(folder: Path, *, access: Access, token: str, boards: Boards, tokenizer: Path | None = None) -> App:
    """Builds the guarded application: requests with a foreign Host or Origin, or without the token, are answered
    403.

    Args:
        folder: a run, or a folder of runs. token: required by every request, see `view.door`.
        boards: makes the leaderboard from results files. tokenizer: a folder or file, for runs that hold none.
    Raises:
        ConfigError: there is no such folder.
    """
    context = _Context(Library(folder), boards, tokenizer)
    warm_up()
    page_makers = {
        "/": _serve_runs,
        "/boards": _serve_boards,
        "/compare": _serve_compare,
        "/run/{key}": _serve_run,
        "/run/{key}/trajectories": _serve_trajectories,
        "/run/{key}/trajectory": _serve_trajectory,
        "/run/{key}/rows": _serve_rows,
        "/run/{key}/trees": _serve_trees,
        "/run/{key}/beliefs": _serve_beliefs,
        "/run/{key}/load": _serve_load,
        "/pulse": _serve_pulse,
    }
    routes = [Route(path, partial(_respond, context, make)) for path, make in page_makers.items()]
    routes += [
        Route("/static/{name}", _serve_asset),
        Route("/theme", _set_theme, methods=["POST"]),
        Route("/health", _serve_health),
    ]
    handlers = {HTTPException: _handle_http_error}
    app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    return guard_app(require_token(app, token), access)


# ---------------------------------------------------------------------- requests


async def _respond(
    context: _Context, make_page: Callable[[_Context, _PageRequest, str], Response], request: Request
) -> Response:
    """Makes a page on a thread; failures are reported on a page."""
    values = {name: value for name, value in request.query_params.items() if len(value) <= 2000}
    theme = request.cookies.get(_THEME_COOKIE, "")
    page_request = _PageRequest(
        request.url.path,
        request.url.query,
        values,
        tuple(request.query_params.getlist("run")),
        theme if theme in _THEMES else "",
    )
    try:
        with boundary(EvolventError, "this page could not be made"):
            answer = await run_in_threadpool(make_page, context, page_request, request.path_params.get("key", ""))
    except (ConfigError, SampleInvalid) as error:  # a run or a trajectory that is not there, or not any more
        return _html_response(problem_page(page_request.frame(""), "There is nothing here", str(error)), 404)
    except EvolventError as error:
        _log.error("%s: %s", page_request.path, error, exc_info=error)
        return _html_response(problem_page(page_request.frame(""), "This cannot be shown", str(error)), 500)
    return answer


def _html_response(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers={**HEADERS, "cache-control": "no-store"})


async def _serve_asset(request: Request) -> Response:
    asset_and_type = read_asset(request.path_params["name"])
    if asset_and_type is None:
        raise HTTPException(404)
    headers = {
        **HEADERS,
        "cache-control": "private, max-age=31536000, immutable",
    }  # addresses change with what they hold
    return Response(asset_and_type[0], media_type=asset_and_type[1], headers=headers)


async def _set_theme(request: Request) -> Response:
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=4)
    theme, back = (fields.get(name, [""])[0] for name in ("theme", "back"))
    target = back if back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable() else "/"
    answer = RedirectResponse(target, 303, headers=HEADERS)
    answer.set_cookie(_THEME_COOKIE, theme if theme in _THEMES else "", max_age=31536000, httponly=True, samesite="lax")
    return answer


async def _serve_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=HEADERS)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return _html_response(problem_page(Frame(), "There is nothing here", "no page of this address"), 404)
    row = {"kind": "ConfigError", "message": error.detail, "expected": "GET", "status": error.status_code}
    return JSONResponse(row, error.status_code, headers={**HEADERS, **(error.headers or {})})


def _require_run(context: _Context, key: str) -> RunEntry:
    run = context.library.run(key)
    if run is None:
        raise ConfigError("there is no such run", value=key, expected="one of the list of runs")
    return run


def _list_tabs(run: RunEntry) -> list[Tab]:
    """Returns the pages of a run that have content."""
    base_path, folder = f"/run/{run.key}", run.folder
    tabs: list[Tab] = [("report", base_path, "Report", None)]
    if run.store.is_dir():
        tabs.append(("trajectories", f"{base_path}/trajectories", "Trajectories", None))
    for name, label in (("trees", "Search trees"), ("beliefs", "Belief maps")):
        count = sum(1 for _ in (folder / name).glob("*.json")) if (folder / name).is_dir() else 0
        if count:
            tabs.append((name, f"{base_path}/{name}", label, count))
    if (folder / "metrics.jsonl").is_file():
        tabs.append(("load", f"{base_path}/load", "Memory and throughput", None))
    return tabs


def _pulse_fields(run: RunEntry) -> dict[str, Any]:
    return {"pulse": f"/pulse?run={run.key}", "stamp": run.stamp, "live": run.live}


# ---------------------------------------------------------------------- pages


def _serve_runs(context: _Context, page_request: _PageRequest, key: str) -> Response:
    terms = page_request.values.get("q", "").lower().split()
    runs = [run for run in context.library.runs() if all(term in f"{run.name} {run.method}".lower() for term in terms)]
    run_rows = [(run, context.library.status(run)) for run in runs]
    frame = page_request.frame("runs", pulse="/pulse", stamp=_combine_stamps(runs), live=any(run.live for run in runs))
    return _html_response(
        runs_page(frame, run_rows, folder=str(context.library.folder), q=page_request.values.get("q", ""))
    )


def _serve_run(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run = _require_run(context, key)
    return _html_response(
        run_page(page_request.frame("report", run, **_pulse_fields(run)), run, context.library.report(run))
    )


def _advance_index(context: _Context, run: RunEntry, seconds: float = _READ_S) -> TrajectoryIndex:
    index = context.library.index(run)
    index.advance(seconds)
    return index


def _serve_trajectories(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run = _require_run(context, key)
    frame = page_request.frame("trajectories", run, **_pulse_fields(run))
    index, query = _advance_index(context, run), parse_query(page_request.values)
    return _html_response(
        list_page(frame, run, index=index, query=query, first=page_request.number("first"), count=_WINDOW_ROWS)
    )


def _serve_rows(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run, query = _require_run(context, key), parse_query(page_request.values)
    count = min(page_request.number("count") or _WINDOW_ROWS, _MAX_WINDOW_ROWS)
    answer = _advance_index(context, run).query(query, first=page_request.number("first"), count=count)
    return JSONResponse(list_window(run, answer, query), headers={**HEADERS, "cache-control": "no-store"})


def _serve_trajectory(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run, query, traj = _require_run(context, key), parse_query(page_request.values), page_request.values.get("id", "")
    index = _index_until(context, run, traj)
    trajectory = index.get(traj)
    before, after = index.neighbors(query, traj)
    credit = find_credit(read_json_file(run.folder / "credit.json"), traj)
    trajectory_view = TrajectoryView(trajectory, index.annotations(traj), credit, before, after)
    spelling = find_token_texts(run.folder, context.tokenizer)
    text = trajectory_page(
        page_request.frame("trajectories", run),
        run,
        trajectory_view,
        query=query,
        color_by=page_request.values.get("colour", "logprob"),
        first=page_request.number("first"),
        spelling=spelling,
    )
    return _html_response(text)


def _index_until(context: _Context, run: RunEntry, traj: str) -> TrajectoryIndex:
    """Returns the index, read on until it contains the trajectory, or to its end."""
    index = context.library.index(run)
    while not index.advance(_READ_S) and not index.select_stored([traj]):
        pass
    return index


def _serve_trees(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run = _require_run(context, key)
    frame = page_request.frame("trees", run, **_pulse_fields(run))
    return _html_response(trees_page(frame, run, context.library.report(run), name=page_request.values.get("name", "")))


def _serve_beliefs(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run = _require_run(context, key)
    name, look_index = page_request.values.get("name", ""), page_request.number("at")
    return _html_response(
        beliefs_page(page_request.frame("beliefs", run), run, read_beliefs(run, name), name=name, look_index=look_index)
    )


def _serve_load(context: _Context, page_request: _PageRequest, key: str) -> Response:
    run = _require_run(context, key)
    return _html_response(
        load_page(page_request.frame("load", run, **_pulse_fields(run)), run, context.library.report(run))
    )


def _serve_compare(context: _Context, page_request: _PageRequest, key: str) -> Response:
    keys = list(dict.fromkeys(page_request.runs))[: len(STYLES)]
    runs = [run for run_key in keys if (run := context.library.run(run_key)) is not None]
    if not runs:
        text = problem_page(page_request.frame(""), "Nothing to compare", "mark two runs or more in the list of runs")
        return _html_response(text, 400)
    reports = [context.library.report(run) for run in runs]
    which, comparison = page_request.values.get("which", "a"), None
    if len(runs) == 2:
        indexes = _advance_index(context, runs[0], _COMPARE_READ_S), _advance_index(context, runs[1], _COMPARE_READ_S)
        is_complete = all(index.query(Query(), count=0).whole for index in indexes)
        comparison = compare_runs(
            (reports[0], reports[1]), indexes, run_keys=(runs[0].key, runs[1].key), which=which, is_complete=is_complete
        )
    pulse = "/pulse?" + "&".join(f"run={run.key}" for run in runs)
    frame = page_request.frame("runs", pulse=pulse, stamp=_combine_stamps(runs), live=any(run.live for run in runs))
    return _html_response(compare_page(frame, runs, reports, versus=comparison, which=which))


def _serve_boards(context: _Context, page_request: _PageRequest, key: str) -> Response:
    files = [path for run in context.library.runs() if (path := run.folder / _BOARD_FILE).is_file()]
    data, unreadable = context.boards(files)
    return _html_response(boards_page(page_request.frame("boards"), data, unreadable=unreadable))


def _serve_pulse(context: _Context, page_request: _PageRequest, key: str) -> Response:
    """Returns whether any of some runs, or of all runs, has changed since a page was made."""
    runs = [run for run_key in page_request.runs[: len(STYLES)] if (run := context.library.run(run_key)) is not None]
    runs = runs if page_request.runs else context.library.runs()
    row = {
        "stamp": runs[0].stamp if len(page_request.runs) == 1 and runs else _combine_stamps(runs),
        "live": any(run.live for run in runs),
    }
    return JSONResponse(row, headers={**HEADERS, "cache-control": "no-store"})


def _combine_stamps(runs: Sequence[RunEntry]) -> str:
    return "-".join(sorted(f"{run.key}{run.stamp}{int(run.live)}" for run in runs))[:4000]
