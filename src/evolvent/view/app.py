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
from evolvent.view.data import parsed_file
from evolvent.view.door import doored
from evolvent.view.library import Library, RunPlace
from evolvent.view.pages import Frame, Tab, asset, problem_page, ready, run_page, runs_page
from evolvent.view.pages_compare import STYLES, compare_page, versus
from evolvent.view.pages_more import beliefs_of, beliefs_page, boards_page, load_page, trees_page
from evolvent.view.pages_trajectories import Opened, list_page, list_window, query_of, trajectory_page
from evolvent.view.queries import Query, TrajectoryIndex
from evolvent.view.shading import credit_of
from evolvent.view.spelling import spelling_of
from evolvent.web import Access, App, guarded

__all__ = ["HEADERS", "Boards", "viewer_app"]

Boards = Callable[[Sequence[Path]], tuple[Mapping[str, Any] | None, list[tuple[str, str]]]]
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
_THEME = "evolvent-theme"
_ROWS, _MOST_ROWS = 100, 500  # of a window onto a list
_PATIENCE_S = 0.2  # for which a request reads on in a store that has not been read to its end
_COMPARED_S = 2.0  # the same, where all of it matters
_BOARD_FILE = "agent-eval.json"


@dataclass(frozen=True, slots=True)
class _Desk:
    """What every route has at hand."""

    library: Library
    boards: Boards
    tokenizer: Path | None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, as pages see it: its values are text, and none of them is trusted."""

    path: str
    query: str
    values: Mapping[str, str]
    runs: tuple[str, ...]
    theme: Any

    def number(self, name: str) -> int:
        """A whole number from 0 on; 0 where there is none."""
        text = self.values.get(name, "")[:12]
        return int(text) if text.isascii() and text.isdigit() else 0

    def frame(self, here: str, run: RunPlace | None = None, **more: Any) -> Frame:
        """What stands around its page."""
        back = f"{self.path}?{self.query}" if self.query else self.path
        return Frame(self.theme, back, here, run, _tabs(run) if run else (), **more)


def viewer_app(folder: Path, *, access: Access, token: str, boards: Boards, tokenizer: Path | None = None) -> App:
    """The application, guarded: a foreign Host or Origin, and whoever does not bear the token, is answered 403.

    Args:
        folder: a run, or a folder of runs. token: opens the door, see `view.door`.
        boards: makes the leaderboard from results files. tokenizer: a folder or file, for runs that hold none.
    Raises:
        ConfigError: there is no such folder.
    """
    desk = _Desk(Library(folder), boards, tokenizer)
    ready()
    pages = {
        "/": _runs,
        "/boards": _boards,
        "/compare": _compare,
        "/run/{key}": _run,
        "/run/{key}/trajectories": _trajectories,
        "/run/{key}/trajectory": _trajectory,
        "/run/{key}/rows": _rows,
        "/run/{key}/trees": _trees,
        "/run/{key}/beliefs": _beliefs,
        "/run/{key}/load": _load,
        "/pulse": _pulse,
    }
    routes = [Route(path, partial(_answered, desk, make)) for path, make in pages.items()]
    routes += [Route("/static/{name}", _static), Route("/theme", _theme, methods=["POST"]), Route("/health", _health)]
    missing = {HTTPException: _missing}
    app = Starlette(routes=routes, exception_handlers=missing)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    return guarded(doored(app, token), access)


# ---------------------------------------------------------------------- requests


async def _answered(desk: _Desk, make: Callable[[_Desk, _Asked, str], Response], request: Request) -> Response:
    """A page, made on a thread; what fails is said on a page."""
    values = {name: value for name, value in request.query_params.items() if len(value) <= 2000}
    theme = request.cookies.get(_THEME, "")
    asked = _Asked(
        request.url.path,
        request.url.query,
        values,
        tuple(request.query_params.getlist("run")),
        theme if theme in _THEMES else "",
    )
    try:
        with boundary(EvolventError, "this page could not be made"):
            answer = await run_in_threadpool(make, desk, asked, request.path_params.get("key", ""))
    except (ConfigError, SampleInvalid) as error:  # a run or a trajectory that is not there, or not any more
        return _html(problem_page(asked.frame(""), "There is nothing here", str(error)), 404)
    except EvolventError as error:
        _log.error("%s: %s", asked.path, error, exc_info=error)
        return _html(problem_page(asked.frame(""), "This cannot be shown", str(error)), 500)
    return answer


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, headers={**HEADERS, "cache-control": "no-store"})


async def _static(request: Request) -> Response:
    found = asset(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    kept = {**HEADERS, "cache-control": "private, max-age=31536000, immutable"}  # addresses change with what they hold
    return Response(found[0], media_type=found[1], headers=kept)


async def _theme(request: Request) -> Response:
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=4)
    theme, back = (fields.get(name, [""])[0] for name in ("theme", "back"))
    local = back if back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable() else "/"
    answer = RedirectResponse(local, 303, headers=HEADERS)
    answer.set_cookie(_THEME, theme if theme in _THEMES else "", max_age=31536000, httponly=True, samesite="lax")
    return answer


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers=HEADERS)


async def _missing(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return _html(problem_page(Frame(), "There is nothing here", "no page of this address"), 404)
    row = {"kind": "ConfigError", "message": error.detail, "expected": "GET", "status": error.status_code}
    return JSONResponse(row, error.status_code, headers={**HEADERS, **(error.headers or {})})


def _found(desk: _Desk, key: str) -> RunPlace:
    run = desk.library.run(key)
    if run is None:
        raise ConfigError("there is no such run", value=key, expected="one of the list of runs")
    return run


def _tabs(run: RunPlace) -> list[Tab]:
    """The pages of a run: those that would hold something."""
    base, folder = f"/run/{run.key}", run.folder
    tabs: list[Tab] = [("report", base, "Report", None)]
    if run.store.is_dir():
        tabs.append(("trajectories", f"{base}/trajectories", "Trajectories", None))
    for name, label in (("trees", "Search trees"), ("beliefs", "Belief maps")):
        count = sum(1 for _ in (folder / name).glob("*.json")) if (folder / name).is_dir() else 0
        if count:
            tabs.append((name, f"{base}/{name}", label, count))
    if (folder / "metrics.jsonl").is_file():
        tabs.append(("load", f"{base}/load", "Memory and throughput", None))
    return tabs


def _watched(run: RunPlace) -> dict[str, Any]:
    return {"pulse": f"/pulse?run={run.key}", "stamp": run.stamp, "live": run.live}


# ---------------------------------------------------------------------- pages


def _runs(desk: _Desk, asked: _Asked, key: str) -> Response:
    words = asked.values.get("q", "").lower().split()
    runs = [run for run in desk.library.runs() if all(word in f"{run.name} {run.method}".lower() for word in words)]
    told = [(run, desk.library.tail(run)) for run in runs]
    frame = asked.frame("runs", pulse="/pulse", stamp=_stamp(runs), live=any(run.live for run in runs))
    return _html(runs_page(frame, told, folder=str(desk.library.folder), q=asked.values.get("q", "")))


def _run(desk: _Desk, asked: _Asked, key: str) -> Response:
    run = _found(desk, key)
    return _html(run_page(asked.frame("report", run, **_watched(run)), run, desk.library.report(run)))


def _indexed(desk: _Desk, run: RunPlace, seconds: float = _PATIENCE_S) -> TrajectoryIndex:
    index = desk.library.index(run)
    index.advance(seconds)
    return index


def _trajectories(desk: _Desk, asked: _Asked, key: str) -> Response:
    run = _found(desk, key)
    frame = asked.frame("trajectories", run, **_watched(run))
    index, query = _indexed(desk, run), query_of(asked.values)
    return _html(list_page(frame, run, index=index, query=query, first=asked.number("first"), count=_ROWS))


def _rows(desk: _Desk, asked: _Asked, key: str) -> Response:
    run, query = _found(desk, key), query_of(asked.values)
    count = min(asked.number("count") or _ROWS, _MOST_ROWS)
    answer = _indexed(desk, run).ask(query, first=asked.number("first"), count=count)
    return JSONResponse(list_window(run, answer, query), headers={**HEADERS, "cache-control": "no-store"})


def _trajectory(desk: _Desk, asked: _Asked, key: str) -> Response:
    run, query, traj = _found(desk, key), query_of(asked.values), asked.values.get("id", "")
    index = _reached(desk, run, traj)
    one = index.get(traj)
    before, after = index.beside(query, traj)
    credit = credit_of(parsed_file(run.folder / "credit.json"), traj)
    opened = Opened(one, index.annotations(traj), credit, before, after)
    spelling = spelling_of(run.folder, desk.tokenizer)
    text = trajectory_page(
        asked.frame("trajectories", run),
        run,
        opened,
        query=query,
        colour=asked.values.get("colour", "logprob"),
        first=asked.number("first"),
        spelling=spelling,
    )
    return _html(text)


def _reached(desk: _Desk, run: RunPlace, traj: str) -> TrajectoryIndex:
    """The index, read on until it knows the trajectory, or to its end."""
    index = desk.library.index(run)
    while not index.advance(_PATIENCE_S) and not index.known([traj]):
        pass
    return index


def _trees(desk: _Desk, asked: _Asked, key: str) -> Response:
    run = _found(desk, key)
    frame = asked.frame("trees", run, **_watched(run))
    return _html(trees_page(frame, run, desk.library.report(run), name=asked.values.get("name", "")))


def _beliefs(desk: _Desk, asked: _Asked, key: str) -> Response:
    run = _found(desk, key)
    name, at = asked.values.get("name", ""), asked.number("at")
    return _html(beliefs_page(asked.frame("beliefs", run), run, beliefs_of(run, name), name=name, at=at))


def _load(desk: _Desk, asked: _Asked, key: str) -> Response:
    run = _found(desk, key)
    return _html(load_page(asked.frame("load", run, **_watched(run)), run, desk.library.report(run)))


def _compare(desk: _Desk, asked: _Asked, key: str) -> Response:
    keys = list(dict.fromkeys(asked.runs))[: len(STYLES)]
    runs = [run for one in keys if (run := desk.library.run(one)) is not None]
    if not runs:
        text = problem_page(asked.frame(""), "Nothing to compare", "mark two runs or more in the list of runs")
        return _html(text, 400)
    reports = [desk.library.report(run) for run in runs]
    which, pair = asked.values.get("which", "a"), None
    if len(runs) == 2:
        indexes = _indexed(desk, runs[0], _COMPARED_S), _indexed(desk, runs[1], _COMPARED_S)
        whole = all(index.ask(Query(), count=0).whole for index in indexes)
        pair = versus((reports[0], reports[1]), indexes, keys=(runs[0].key, runs[1].key), which=which, whole=whole)
    pulse = "/pulse?" + "&".join(f"run={run.key}" for run in runs)
    frame = asked.frame("runs", pulse=pulse, stamp=_stamp(runs), live=any(run.live for run in runs))
    return _html(compare_page(frame, runs, reports, versus=pair, which=which))


def _boards(desk: _Desk, asked: _Asked, key: str) -> Response:
    files = [path for run in desk.library.runs() if (path := run.folder / _BOARD_FILE).is_file()]
    data, unread = desk.boards(files)
    return _html(boards_page(asked.frame("boards"), data, unread=unread))


def _pulse(desk: _Desk, asked: _Asked, key: str) -> Response:
    """Whether anything has changed since a page was made: of some runs, or of all."""
    runs = [run for one in asked.runs[: len(STYLES)] if (run := desk.library.run(one)) is not None]
    runs = runs if asked.runs else desk.library.runs()
    row = {
        "stamp": runs[0].stamp if len(asked.runs) == 1 and runs else _stamp(runs),
        "live": any(run.live for run in runs),
    }
    return JSONResponse(row, headers={**HEADERS, "cache-control": "no-store"})


def _stamp(runs: Sequence[RunPlace]) -> str:
    return "-".join(sorted(f"{run.key}{run.stamp}{int(run.live)}" for run in runs))[:4000]
