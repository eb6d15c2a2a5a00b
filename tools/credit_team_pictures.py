"""Draws the pictures of the pages of POAD, MAT and R3 from the kept results, and prints these pages' tables.

    python tools/credit_team_pictures.py

A picture or table depends on `benchmarks/results/credit_lengths.json`, `mat_sizes.json` or `r3_chains.json` alone; a
study that has no results yet has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evolvent.view.charts import ArmStyle, Frame, Line, Reference, legend_marker, line_chart

ROOT = Path(__file__).parents[1]
RESULTS, PAPERS = ROOT / "benchmarks" / "results", ROOT / "docs" / "papers"
LENGTH_ARMS: Mapping[str, tuple[str, ArmStyle]] = {
    "poad": ("POAD", "evolve"),
    "ntpo99": ("NTPO, .99 a token", "down"),
    "ntpo": ("NTPO, .9 a token", "control"),
    "ppo": ("PPO over actions", "base"),
    "etpo": ("ETPO", "up"),
    "twosome10": ("TWOSOME, 10 listed", "plus"),
    "twosome100": ("100 listed", "cross"),
    "twosome10000": ("10,000 listed", "expert"),
}
SIZE_ARMS: Mapping[str, tuple[str, ArmStyle]] = {
    "mat": ("MAT", "evolve"),
    "mat_dec": ("MAT-Dec", "down"),
    "mappo": ("MAPPO", "control"),
    "happo": ("HAPPO", "base"),
}
CHAIN_ARMS: Mapping[str, tuple[str, ArmStyle]] = {
    "base": ("base", "cross"),
    "outcome": ("outcomes alone", "control"),
    "staged": ("staged", "base"),
    "mixed": ("mixed (R3)", "evolve"),
    "sft": ("imitation", "up"),
}
_COLORS: Mapping[ArmStyle, str] = {
    "evolve": "#1b6e53",
    "control": "#b3541e",
    "down": "#d99a2b",
    "base": "#2f5d9e",
    "up": "#7a4a9e",
    "plus": "#666",
    "cross": "#888",
    "expert": "#aaa",
}
_STYLE = (
    "svg{font:11px system-ui,sans-serif;overflow:visible}"
    "text{fill:#333}.end{text-anchor:end}.middle{text-anchor:middle}"
    ".head{font-weight:600;font-size:12px}.grid{stroke:#e4e4e4;fill:none}.reference{stroke:#999;stroke-dasharray:3 3}"
    ".line{fill:none;stroke-width:1.6}.band{stroke:none;opacity:.14}.mark{stroke:#fff;stroke-width:.6}"
    + "".join(f".arm-{arm}{{stroke:{hue};fill:{hue}}}.line.arm-{arm}{{fill:none}}" for arm, hue in _COLORS.items())
    + ".mark{stroke:#fff}.band{stroke:none}"
)
_WIDTH, _HEIGHT, _GAP, _TOP = 330, 220, 24, 24


def draw_lengths(figures: Mapping[str, Any]) -> str:
    """Draws area by length of action, what POAD gains, and the learning curves of the longest actions."""
    areas = figures["area"]
    arms = [arm for arm in LENGTH_ARMS if any(arm in own for own in areas.values())]
    lines = [_draw_intervals(arm, {int(n): own[arm] for n, own in areas.items() if arm in own}) for arm in arms]
    gains = [
        _draw_intervals(arm, {int(n): own for n, own in figures.get(key, {}).items()})
        for arm, key in (("ppo", "poad_minus_action_ci"), ("ntpo99", "poad_minus_ntpo99_ci"))
        if figures.get(key)
    ]
    longest = max(areas, key=int)
    curves = [
        _draw_curve(arm, figures["curve"][longest][arm], figures["episodes"]) for arm in arms if arm in areas[longest]
    ]
    words = "words of the right action"
    lowest = min((low for line in gains for _, low, _ in line.band), default=0.0)
    return _compose(
        [
            ("Area under the learning curve", Frame("area", words, y_range=(0.0, 1.0)), lines, ()),
            (
                "Area of POAD minus that of the others",
                Frame("gain", words, y_range=(min(0.0, lowest), max(0.1, _highest(gains)))),
                gains,
                (Reference("no difference", 0.0),),
            ),
            (
                f"Return by episode, {longest} words; bands: all seeds",
                Frame("curve", "episodes", y_range=(0.0, 1.0)),
                curves,
                (),
            ),
        ],
        [LENGTH_ARMS[arm] for arm in arms],
    )


def draw_sizes(figures: Mapping[str, Any]) -> str:
    """Draws the return in `distinct` by number of agents: area, last return, and the curves of the largest team."""
    tasks = {int(task.split()[1]): task for task in figures["area"] if task.startswith("distinct ")}
    chance = tuple((agents, figures["chance"][task]) for agents, task in sorted(tasks.items()))
    panels: list[tuple[str, Frame, Sequence[Line], Sequence[Reference]]] = []
    for name, title in (("area", "Area under the learning curve"), ("last", "Return at the end of training")):
        lines = [
            Line("choice at random", "cross", chance, markers=False),
            *(
                _draw_intervals(method, {n: figures[name][task][method] for n, task in sorted(tasks.items())
                                         if method in figures[name][task]}, SIZE_ARMS)
                for method in SIZE_ARMS
            ),
        ]  # fmt: skip
        panels.append((title, Frame(name, "agents", y_range=(0.0, 1.0), whole_x=True), lines, ()))
    largest = tasks[max(tasks)]
    curves = [
        _draw_curve(method, curve, figures["decisions"], SIZE_ARMS)
        for method, curve in figures["curve"][largest].items()
    ]
    title = f"Return by decision, {max(tasks)} agents; bands: all seeds"
    panels.append((title, Frame("curve", "decisions", y_range=(0.0, 1.0)), curves, ()))
    return _compose(panels, [*SIZE_ARMS.values(), ("choice at random", "cross")])


def draw_chains(figures: Mapping[str, Any]) -> str:
    """Draws the success of hidden chains by their length, and R3 minus outcomes alone."""
    steps = "steps of the chain"
    lines = [
        _draw_intervals(arm, {int(n): own for n, own in figures["success"].get(arm, {}).items()}, CHAIN_ARMS)
        for arm in CHAIN_ARMS
    ]
    gain = _draw_intervals(
        "mixed", {int(n): own for n, own in figures["r3_minus_outcome_by_length"].items()}, CHAIN_ARMS
    )
    lowest = min((low for _, low, _ in gain.band), default=0.0)
    return _compose(
        [
            ("Sampled success from the beginning", Frame("success", steps, y_range=(0.0, 1.0)), lines, ()),
            (
                "Mixed starts (R3) minus outcomes alone",
                Frame("gain", steps, y_range=(min(0.0, lowest), max(1.0, _highest([gain])))),
                [gain],
                (Reference("no difference", 0.0),),
            ),
        ],
        list(CHAIN_ARMS.values()),
    )


def _highest(lines: Sequence[Line]) -> float:
    return max((high for line in lines for _, _, high in line.band), default=0.0)


def _draw_intervals(
    arm: str, intervals: Mapping[int, Sequence[float]], arms: Mapping[str, tuple[str, ArmStyle]] = LENGTH_ARMS
) -> Line:
    name, style = arms[arm]
    ordered = sorted(intervals.items())
    points = [(float(x), interval[0]) for x, interval in ordered]
    return Line(name, style, points, [(float(x), low, high) for x, (_, low, high) in ordered])


def _draw_curve(
    arm: str,
    curve: Mapping[str, Sequence[float]],
    extent: int,
    arms: Mapping[str, tuple[str, ArmStyle]] = LENGTH_ARMS,
) -> Line:
    name, style = arms[arm]
    distances = [extent * index / max(1, len(curve["mean"]) - 1) for index in range(len(curve["mean"]))]
    band = list(zip(distances, curve["low"], curve["high"], strict=True))
    return Line(name, style, list(zip(distances, curve["mean"], strict=True)), band, markers=False)


def _compose(
    panels: Sequence[tuple[str, Frame, Sequence[Line], Sequence[Reference]]], legend: Sequence[tuple[str, ArmStyle]]
) -> str:
    """Puts charts side by side under one legend, as a picture that stands alone."""
    width = len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + 26
    body, x = [], 0.0
    for name, style in legend:
        position = f'<svg x="{x:.0f}" y="{height - 18}" width="12" height="12" '
        marker = str(legend_marker(style)).replace("<svg ", position, 1)
        body.append(f'{marker}<text x="{x + 17:.0f}" y="{height - 8}">{name}</text>')
        x += 32 + 6.2 * len(name)
    for index, (title, frame, lines, references) in enumerate(panels):
        left = index * (_WIDTH + _GAP)
        chart = str(line_chart(replace(frame, width=_WIDTH, height=_HEIGHT), lines, references))
        position = f'<svg x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" '
        body.append(f'<text class="head" x="{left}" y="14">{title}</text>{chart.replace("<svg ", position, 1)}')
    background = f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{_STYLE}</style>{background}'
    return f"{head}{''.join(body)}</svg>\n"


def format_lengths(figures: Mapping[str, Any]) -> str:
    """Formats the table of areas by length of action."""
    arms = [arm for arm in LENGTH_ARMS if any(arm in own for own in figures["area"].values())]
    heads = ["words", *(LENGTH_ARMS[arm][0] for arm in arms), "POAD minus PPO over actions", "gates"]
    rows = [
        [
            length,
            *(_format_interval(own.get(arm)) for arm in arms),
            _format_interval(figures["poad_minus_action_ci"].get(length), sign="+"),
            "passed" if figures["gate_passed_by_length"].get(length) else "failed",
        ]
        for length, own in figures["area"].items()
    ]
    return _format_table(heads, rows)


def format_sizes(figures: Mapping[str, Any]) -> str:
    """Formats the table of areas by number of agents."""
    differences = [f"MAT minus {name}" for method, (name, _) in SIZE_ARMS.items() if method != "mat"]
    heads = ["task", *(name for name, _ in SIZE_ARMS.values()), "chance", *differences, "gates"]
    rows = []
    for task, own in figures["area"].items():
        minus, chance = figures["mat_minus_ci"].get(task, {}), figures["chance"].get(task)
        rows.append(
            [
                task,
                *(_format_interval(own.get(method)) for method in SIZE_ARMS),
                "" if chance is None else _format_number(chance),
                *(_format_interval(minus.get(method), sign="+") for method in SIZE_ARMS if method != "mat"),
                {True: "passed", False: "failed", None: "not complete"}[figures["gate_passed_by_task"].get(task)],
            ]
        )
    return _format_table(heads, rows)


def format_chains(figures: Mapping[str, Any]) -> str:
    """Formats the table of success by length of the chain."""
    heads = ["steps", *(name for name, _ in CHAIN_ARMS.values()), "mixed minus outcomes alone"]
    lengths = sorted(figures["r3_minus_outcome_by_length"], key=int)
    rows = [
        [
            length,
            *(_format_interval(figures["success"].get(arm, {}).get(length)) for arm in CHAIN_ARMS),
            _format_interval(figures["r3_minus_outcome_by_length"][length], sign="+"),
        ]
        for length in lengths
    ]
    return _format_table(heads, rows)


def _format_number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:{sign}.2f}"


def _format_interval(interval: Sequence[float] | None, sign: str = "") -> str:
    if interval is None:
        return ""
    mean, low, high = (_format_number(value, sign) for value in interval)
    return f"{mean} [{low}, {high}]"


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PICTURES = {
    "poad.svg": ("credit_lengths.json", draw_lengths),
    "mat.svg": ("mat_sizes.json", draw_sizes),
    "r3.svg": ("r3_chains.json", draw_chains),
}


def draw(picture: str) -> str:
    """Draws a picture from the kept results."""
    results, drawing = PICTURES[picture]
    return drawing(json.loads((RESULTS / results).read_text(encoding="utf-8")))


TABLES = {
    "poad.md": ("credit_lengths.json", format_lengths),
    "mat.md": ("mat_sizes.json", format_sizes),
    "r3.md": ("r3_chains.json", format_chains),
}


def format_table(page: str) -> str:
    """Formats the table of a page from the kept results."""
    results, formatting = TABLES[page]
    return formatting(json.loads((RESULTS / results).read_text(encoding="utf-8")))


def main() -> None:
    """Draws all pictures, and prints the tables."""
    for picture, (results, _) in PICTURES.items():
        if (RESULTS / results).exists():
            (PAPERS / picture).write_text(draw(picture), encoding="utf-8")
    for page, (results, _) in TABLES.items():
        if (RESULTS / results).exists():
            print(f"{page}\n{format_table(page)}")


if __name__ == "__main__":
    main()
