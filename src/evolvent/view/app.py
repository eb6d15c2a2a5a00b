"""The viewer: runs, trajectories, trees, beliefs and leaderboards of a folder as a local web application.

It only reads. Addresses name runs by keys and everything else by values that are looked up, so nothing a browser sends
becomes a path. Pages are made on the server, load one sheet and one script of our own, and their content policy lets
nothing else run or load; what models wrote is escaped text.

Further pages of a run: its search trees, belief maps, memory and throughput; and leaderboards over runs.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from evolvent.belief.traces import Trace
from evolvent.errors import ConfigError, EvolventError, SampleInvalid, boundary
from evolvent.trajectory import JsonObject
from evolvent.view import charts
from evolvent.view.beliefs import parse_belief
from evolvent.view.charts import ArmStyle, Line, bin_points, line_chart
from evolvent.view.data import Metric, ReportData, read_json_file
from evolvent.view.door import require_token
from evolvent.view.leaderboard import draw_board, tabulate_leaderboard
from evolvent.view.library import Library, RunEntry
from evolvent.view.pages import (
    Frame,
    Tab,
    build_address,
    problem_page,
    read_asset,
    render_template,
    run_page,
    runs_page,
    warm_up,
)
from evolvent.view.pages_trajectories import (
    STYLES,
    TrajectoryView,
    compare_page,
    compare_runs,
    list_page,
    list_window,
    parse_query,
    trajectory_page,
)
from evolvent.view.plume import belief_map
from evolvent.view.queries import Query, TrajectoryIndex
from evolvent.view.searchtree import draw_tree
from evolvent.view.sections import Figure
from evolvent.view.shading import find_credit
from evolvent.view.spelling import find_token_texts
from evolvent.view.training import summarize_memory
from evolvent.web import Access, App, guard_app

__all__ = ["HEADERS", "Boards", "beliefs_page", "boards_page", "load_page", "read_beliefs", "trees_page", "viewer_app"]


_KIND_STYLES: Mapping[str, ArmStyle] = {"fit": "evolve", "collect": "up", "evaluate": "control", "practise": "down"}
_SPEED_METRICS = (
    ("tokens_per_s", "Tokens a second"),
    ("env_steps_per_s", "Environment steps a second"),
    ("episodes_per_s", "Episodes a second"),
    ("gemm_share", "Share of the GEMM ceiling"),
    ("data_wait", "Waiting for data, share"),
    ("pad_fraction", "Padding, share"),
)
_MEMORY_METRICS: tuple[tuple[str, str, ArmStyle], ...] = (  # in the colors of the bar, where it has them
    ("peak_bytes", "peak", "other"),
    ("parameters_bytes", "parameters", "evolve"),
    ("gradients_bytes", "gradients", "up"),
    ("optimizer_bytes", "optimizer state", "control"),
    ("process_bytes", "before training", "plus"),
)
_MEMORY_FRAME = charts.Frame("Memory", "minutes", "MiB", width=400, height=210)
_NUM_BINS, _MAX_FILES, _MAX_FILE_BYTES, _MAX_MOMENTS = 120, 200, 32 << 20, 60


def trees_page(frame: Frame, run: RunEntry, data: ReportData, *, name: str) -> str:
    """Renders the trees of a run, or the tree of the file named `name`, which the reader can expand."""
    file = next((tree_entry for tree_entry in data.trees if tree_entry.name == name), None)
    files = [(tree_entry, build_address(f"/run/{run.key}/trees", name=tree_entry.name)) for tree_entry in data.trees]
    title = f"Trees of {run.name}"
    drawing = draw_tree(file.tree) if file else ""
    return render_template("viewer_trees.html", frame, title=title, file=file, files=files, drawing=drawing)


# ---------------------------------------------------------------------- beliefs


def read_beliefs(run: RunEntry, name: str = "") -> dict[str, Trace]:
    """Reads the traces in `beliefs/` of a run, by file name; only the trace of this name, if it is there."""
    folder, traces = run.folder / "beliefs", {}
    paths = sorted(folder.glob("*.json"))[:_MAX_FILES] if folder.is_dir() else []
    for path in [path for path in paths if path.stem == name] or paths:
        trace = parse_belief(_read_document(path))
        if trace is not None:
            traces[path.stem] = trace
    return traces


def _read_document(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def beliefs_page(frame: Frame, run: RunEntry, traces: Mapping[str, Trace], *, name: str, look_index: int) -> str:
    """Renders the list of searches of a run, or the map of one search at a step."""
    base_path, selected_trace = f"/run/{run.key}/beliefs", traces.get(name)
    if selected_trace is None:
        rows = [(name, trace, build_address(base_path, name=name)) for name, trace in traces.items()]
        return render_template("viewer_beliefs.html", frame, title=f"Beliefs of {run.name}", one=None, traces=rows)
    last = len(selected_trace.looks) - 1
    look_index = max(0, min(look_index, last))
    step = max(1, (last + _MAX_MOMENTS) // _MAX_MOMENTS)
    linked_looks = sorted({*range(0, last + 1, step), look_index, last})
    points = [(float(index), look.spread) for index, look in enumerate(selected_trace.looks)]
    current_event = charts.Event(f"step {look_index}", float(look_index))
    line = Line("spread", "evolve", points, markers=False)
    spread = line_chart(
        charts.Frame("Spread of the belief", "steps", width=380, height=190), [line], events=[current_event]
    )
    outcome = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}.get(
        selected_trace.ended_by, "ended"
    )
    return render_template(
        "viewer_beliefs.html",
        frame,
        title=f"{selected_trace.name}, step {look_index}",
        one=selected_trace,
        at=look_index,
        spread=spread,
        map=belief_map(selected_trace, look_index),
        ended=f"{outcome}, {'right' if selected_trace.right else 'wrong'} estimate",
        moments=[(index, build_address(base_path, name=name, at=index)) for index in linked_looks],
        before=build_address(base_path, name=name, at=look_index - 1) if look_index else "",
        after=build_address(base_path, name=name, at=look_index + 1) if look_index < last else "",
    )


# ---------------------------------------------------------------------- memory and throughput


def load_page(frame: Frame, run: RunEntry, data: ReportData) -> str:
    """Renders memory at the peak and over time, and the throughput over the duration of the run."""
    timed_rows = list(_add_minutes(data.metrics))
    speeds = [figure for name, title in _SPEED_METRICS if (figure := _draw_speed(timed_rows, name, title)) is not None]
    memory_lines = _memory_lines(timed_rows)
    sizes = [Figure("Memory", line_chart(_MEMORY_FRAME, memory_lines))] if memory_lines else []
    memory = summarize_memory(data.metrics)
    kinds = [(kind, _KIND_STYLES.get(kind, "other")) for kind in dict.fromkeys(_kind_of(row) for _, row in timed_rows)]
    sections = (
        ("Throughput", kinds, speeds),
        ("Memory over time", [(line.name, line.arm) for line in memory_lines], sizes),
    )
    groups = [(title, legend, figures) for title, legend, figures in sections if figures]
    return render_template(
        "viewer_load.html",
        frame,
        title=f"Memory and throughput of {run.name}",
        groups=groups,
        memory=memory.kinds,
        bar=memory.bar,
        peak=memory.peak,
        process=memory.process,
    )


def _add_minutes(rows: Sequence[Metric]) -> Iterator[tuple[float, Metric]]:
    """Yields rows with the minutes since the run began; the clock restarts in every process that resumed it."""
    previous_s, offset_s = 0.0, 0.0
    for row in rows:
        if row.time_s < previous_s:
            offset_s += previous_s
        previous_s = row.time_s
        yield (offset_s + row.time_s) / 60, row


def _draw_speed(rows: Sequence[tuple[float, Metric]], name: str, title: str) -> Figure | None:
    points_per_kind: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for minutes, row in rows:
        if name in row.values:
            points_per_kind[_kind_of(row)].append((minutes, row.values[name]))
    lines = []
    for kind, points in points_per_kind.items():
        means, band = bin_points(points, _NUM_BINS)
        lines.append(Line(kind, _KIND_STYLES.get(kind, "other"), means, band, markers=len(means) <= 12))
    if not lines:
        return None
    return Figure(title, line_chart(charts.Frame(title, "minutes", width=400, height=210), lines))


def _kind_of(row: Metric) -> str:
    """Returns the verb of a row; rows of a plain training have none."""
    return row.kind if row.kind in _KIND_STYLES else "fit" if not row.kind else "other"


def _memory_lines(rows: Sequence[tuple[float, Metric]]) -> list[Line]:
    """Returns what was logged of memory over the duration of the run, in MiB."""
    lines = []
    for name, label, style in _MEMORY_METRICS:
        points = [(minutes, row.values[name] / 2**20) for minutes, row in rows if name in row.values]
        if points:
            means, _ = bin_points(points, _NUM_BINS)
            lines.append(Line(label, style, means, markers=len(means) == 1))
    return lines


# ---------------------------------------------------------------------- leaderboards


def boards_page(frame: Frame, data: JsonObject | None, *, unreadable: Sequence[tuple[str, str]]) -> str:
    """Renders the leaderboard of all players; `unreadable` lists files that could not be read, each with the reason."""
    columns, rows = tabulate_leaderboard(data) if data else ((), [])
    picture = draw_board(data["players"]) if data else ""
    return render_template(
        "viewer_boards.html",
        frame,
        title="Leaderboards",
        data=data,
        columns=columns,
        rows=rows,
        picture=picture,
        unread=unreadable,
    )


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
        raise ConfigError("unknown run", value=key, expected="a run of the list")
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
