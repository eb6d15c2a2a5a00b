"""Further pages of a run: its search trees, its belief maps, its memory and throughput; and leaderboards over runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evolvent.belief.traces import Trace
from evolvent.view import charts
from evolvent.view.beliefs import read_belief
from evolvent.view.charts import ArmStyle, Line, binned, line_chart
from evolvent.view.data import Metric, ReportData
from evolvent.view.leaderboard import board_picture, leaderboard_rows
from evolvent.view.library import RunPlace
from evolvent.view.pages import Frame, address, rendered
from evolvent.view.plume import belief_map
from evolvent.view.searchtree import draw_tree
from evolvent.view.sections import Figure
from evolvent.view.training import peak_memory

__all__ = ["beliefs_of", "beliefs_page", "boards_page", "load_page", "trees_page"]

_STYLES: tuple[ArmStyle, ...] = ("evolve", "up", "control", "down", "plus", "cross", "other")
_KINDS: Mapping[str, ArmStyle] = {"fit": "evolve", "collect": "up", "evaluate": "control", "practise": "down"}
_SPEEDS = (
    ("tokens_per_s", "Tokens a second"),
    ("env_steps_per_s", "Environment steps a second"),
    ("episodes_per_s", "Episodes a second"),
    ("gemm_share", "Share of the GEMM ceiling"),
    ("data_wait", "Waiting for data, share"),
    ("pad_fraction", "Padding, share"),
)
_SIZES = (
    ("peak_bytes", "peak"),
    ("parameters_bytes", "parameters"),
    ("gradients_bytes", "gradients"),
    ("optimizer_bytes", "optimizer state"),
    ("process_bytes", "before training"),
)
_BINS, _FILES, _LARGEST, _MOMENTS = 120, 200, 32 << 20, 60


def trees_page(frame: Frame, run: RunPlace, data: ReportData, *, name: str) -> str:
    """The trees of a run, or the one in a file of this name, to be unfolded."""
    file = next((one for one in data.trees if one.name == name), None)
    files = [(one, address(f"/run/{run.key}/trees", name=one.name)) for one in data.trees]
    title = f"Trees of {run.name}"
    drawing = draw_tree(file.tree) if file else ""
    return rendered("viewer_trees.html", frame, title=title, file=file, files=files, drawing=drawing)


# ---------------------------------------------------------------------- beliefs


def beliefs_of(run: RunPlace, name: str = "") -> dict[str, Trace]:
    """The traces in `beliefs/` of a run, by the names of their files; the one of this name alone, if it is there."""
    folder, found = run.folder / "beliefs", {}
    paths = sorted(folder.glob("*.json"))[:_FILES] if folder.is_dir() else []
    for path in [path for path in paths if path.stem == name] or paths:
        trace = read_belief(_document(path))
        if trace is not None:
            found[path.stem] = trace
    return found


def _document(path: Path) -> object:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None


def beliefs_page(frame: Frame, run: RunPlace, traces: Mapping[str, Trace], *, name: str, at: int) -> str:
    """The searches of a run, or the map of one at a moment."""
    base, one = f"/run/{run.key}/beliefs", traces.get(name)
    if one is None:
        rows = [(name, trace, address(base, name=name)) for name, trace in traces.items()]
        return rendered("viewer_beliefs.html", frame, title=f"Beliefs of {run.name}", one=None, traces=rows)
    last = len(one.looks) - 1
    at = max(0, min(at, last))
    step = max(1, (last + _MOMENTS) // _MOMENTS)
    shown = sorted({*range(0, last + 1, step), at, last})
    points = [(float(place), look.spread) for place, look in enumerate(one.looks)]
    here = charts.Event(f"step {at}", float(at))
    line = Line("spread", "evolve", points, markers=False)
    spread = line_chart(charts.Frame("Spread of the belief", "steps", width=380, height=190), [line], events=[here])
    ended = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}.get(one.ended_by, "ended")
    return rendered(
        "viewer_beliefs.html",
        frame,
        title=f"{one.name}, step {at}",
        one=one,
        at=at,
        spread=spread,
        map=belief_map(one, at),
        ended=f"{ended}, {'right' if one.right else 'wrong'} estimate",
        moments=[(place, address(base, name=name, at=place)) for place in shown],
        before=address(base, name=name, at=at - 1) if at else "",
        after=address(base, name=name, at=at + 1) if at < last else "",
    )


# ---------------------------------------------------------------------- memory and throughput


def load_page(frame: Frame, run: RunPlace, data: ReportData) -> str:
    """Memory at the peak and over time, and how fast everything went, over the time that the run took."""
    timed = list(_timed(data.metrics))
    speeds = [figure for name, title in _SPEEDS if (figure := _speed(timed, name, title)) is not None]
    sizes = _sizes(timed)
    memory = peak_memory(data.metrics)
    groups = [(title, found) for title, found in (("Throughput", speeds), ("Memory over time", sizes)) if found]
    kinds = [(kind, _KINDS.get(kind, "other")) for kind in dict.fromkeys(_kind(row) for _, row in timed)]
    return rendered(
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


def _timed(rows: Sequence[Metric]) -> Iterator[tuple[float, Metric]]:
    """Rows with the minutes since the run began; the clock begins anew in every process that went on with it."""
    before, spent = 0.0, 0.0
    for row in rows:
        if row.time_s < before:
            spent += before
        before = row.time_s
        yield (spent + row.time_s) / 60, row


def _speed(rows: Sequence[tuple[float, Metric]], name: str, title: str) -> Figure | None:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for minutes, row in rows:
        if name in row.values:
            found[_kind(row)].append((minutes, row.values[name]))
    lines = []
    for kind, points in found.items():
        means, band = binned(points, _BINS)
        lines.append(Line(kind, _KINDS.get(kind, "other"), means, band, markers=len(means) <= 12))
    if not lines:
        return None
    return Figure(title, line_chart(charts.Frame(title, "minutes", width=400, height=210), lines))


def _kind(row: Metric) -> str:
    """Which verb a row is of; those of a training alone name none."""
    return row.kind if row.kind in _KINDS else "fit" if not row.kind else "other"


def _sizes(rows: Sequence[tuple[float, Metric]]) -> list[Figure]:
    lines = []
    for (name, label), style in zip(_SIZES, _STYLES, strict=False):
        points = [(minutes, row.values[name] / 2**20) for minutes, row in rows if name in row.values]
        if points:
            means, _ = binned(points, _BINS)
            lines.append(Line(label, style, means, markers=len(means) == 1))
    if not lines:
        return []
    frame = charts.Frame("Memory", "minutes", "MiB", width=400, height=210)
    return [Figure(f"MiB: {', '.join(line.name for line in lines)}", line_chart(frame, lines))]


# ---------------------------------------------------------------------- leaderboards


def boards_page(frame: Frame, data: Mapping[str, Any] | None, *, unread: Sequence[tuple[str, str]]) -> str:
    """The leaderboard of all players found; `unread` are files that could not be read, each with the reason."""
    columns, rows = leaderboard_rows(data) if data else ((), [])
    picture = board_picture(data["players"]) if data else ""
    return rendered(
        "viewer_boards.html",
        frame,
        title="Leaderboards",
        data=data,
        columns=columns,
        rows=rows,
        picture=picture,
        unread=unread,
    )
