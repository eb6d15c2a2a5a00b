"""Further pages of a run: its search trees, belief maps, memory and throughput; and leaderboards over runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evolvent.belief.traces import Trace
from evolvent.trajectory import JsonObject
from evolvent.view import charts
from evolvent.view.beliefs import parse_belief
from evolvent.view.charts import ArmStyle, Line, bin_points, line_chart
from evolvent.view.data import Metric, ReportData
from evolvent.view.leaderboard import draw_board, tabulate_leaderboard
from evolvent.view.library import RunEntry
from evolvent.view.pages import Frame, build_address, render_template
from evolvent.view.plume import belief_map
from evolvent.view.searchtree import draw_tree
from evolvent.view.sections import Figure
from evolvent.view.training import summarize_memory

__all__ = ["beliefs_page", "boards_page", "load_page", "read_beliefs", "trees_page"]

_STYLES: tuple[ArmStyle, ...] = ("evolve", "up", "control", "down", "plus", "cross", "other")
_KIND_STYLES: Mapping[str, ArmStyle] = {"fit": "evolve", "collect": "up", "evaluate": "control", "practise": "down"}
_SPEED_METRICS = (
    ("tokens_per_s", "Tokens a second"),
    ("env_steps_per_s", "Environment steps a second"),
    ("episodes_per_s", "Episodes a second"),
    ("gemm_share", "Share of the GEMM ceiling"),
    ("data_wait", "Waiting for data, share"),
    ("pad_fraction", "Padding, share"),
)
_MEMORY_METRICS = (
    ("peak_bytes", "peak"),
    ("parameters_bytes", "parameters"),
    ("gradients_bytes", "gradients"),
    ("optimizer_bytes", "optimizer state"),
    ("process_bytes", "before training"),
)
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
    sizes = _draw_memory(timed_rows)
    memory = summarize_memory(data.metrics)
    groups = [(title, figures) for title, figures in (("Throughput", speeds), ("Memory over time", sizes)) if figures]
    kinds = [(kind, _KIND_STYLES.get(kind, "other")) for kind in dict.fromkeys(_kind_of(row) for _, row in timed_rows)]
    return render_template(
        "viewer_load.html",
        frame,
        title=f"Memory and throughput of {run.name}",
        groups=groups,
        kinds=kinds,
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


def _draw_memory(rows: Sequence[tuple[float, Metric]]) -> list[Figure]:
    lines = []
    for (name, label), style in zip(_MEMORY_METRICS, _STYLES, strict=False):
        points = [(minutes, row.values[name] / 2**20) for minutes, row in rows if name in row.values]
        if points:
            means, _ = bin_points(points, _NUM_BINS)
            lines.append(Line(label, style, means, markers=len(means) == 1))
    if not lines:
        return []
    frame = charts.Frame("Memory", "minutes", "MiB", width=400, height=210)
    return [Figure(f"MiB: {', '.join(line.name for line in lines)}", line_chart(frame, lines))]


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
