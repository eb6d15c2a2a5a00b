"""Draws the pictures of docs/papers/tsllm.md, decision_transformer.md and etpo.md from the kept figures.

    python tools/gain_pictures.py

`search_gain.svg` shows what every search gains over best of n by the AUC of its judge, `dt_returns.svg` the scores of
cloning and Decision Transformer by task, with a dot for each seed, `etpo_language.svg` the return of ETPO and of PPO
over tokens by divergence. All are functions of `benchmarks/results` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "papers"
STYLE = (
    "<style>svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#333}.t{font-weight:600;font-size:12px}"
    ".g{stroke:#e4e4e4}.zero{stroke:#888}.e{text-anchor:end}.m{text-anchor:middle}.line{fill:none;stroke-width:1.5}"
    ".end{stroke-width:1.2;opacity:.55}.hollow{fill:#fff;stroke-width:1.6}.dot{opacity:.4}</style>"
)
COLORS = {
    "beam": "#2166ac",
    "mcts": "#c2570c",
    "gumbel": "#3a8f4d",
    "bc": "#8a8a8a",
    "dt": "#2166ac",
    "etpo": "#2166ac",
    "token_ppo": "#c2570c",
}
NAMES = {
    "beam": "beam",
    "mcts": "MCTS",
    "gumbel": "Gumbel",
    "bc": "cloning",
    "dt": "Decision Transformer",
    "etpo": "ETPO",
    "token_ppo": "PPO over tokens",
}
WIDE, HIGH, LEFT, TOP = 300.0, 210.0, 46.0, 84.0
AUC_RANGE = (0.5, 1.0)


def _wrap(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{STYLE}{"".join(parts)}</svg>\n'


def _legend(names: Sequence[str], y: float) -> list[str]:
    return [
        f'<circle cx="{LEFT + 4 + 90 * number:g}" cy="{y - 4:g}" r="4" fill="{COLORS[name]}"/>'
        f'<text x="{LEFT + 13 + 90 * number:g}" y="{y:g}">{NAMES[name]}</text>'
        for number, name in enumerate(names)
    ]


# ---------------------------------------------------------------- gain against AUC


def draw_gain(figures: Mapping[str, Any]) -> str:
    """Draws success minus best of n over the AUC of the judge, a panel for each size of task."""
    gains = figures["search_minus_bon"]
    intervals = [interval for panel in gains.values() for by_judge in panel.values() for interval in by_judge.values()]
    ends = [end for mean, *bar in intervals for end in ([mean, *bar] if bar[1] - bar[0] <= 1.0 else [mean])]
    low, high = min(-0.1, *ends), max(0.1, *ends)
    searches = list(next(iter(gains.values())))
    title = "Points of success above best of n, at equal written tokens, by the AUC of the judge of states"
    parts = [
        f'<text class="t" x="{LEFT:g}" y="20">{title}</text>',
        f'<text x="{LEFT:g}" y="38">AUC among positions with as many numbers. Filled: known AUC; hollow: learned. '
        "Bars: 95 %, up to 100 points.</text>",
        *_legend(searches, 58),
    ]
    for number, (size, by_search) in enumerate(gains.items()):
        panel = _draw_gain_panel(size, by_search, figures["judge_auc"][size], (low, high))
        parts.append(f'<g transform="translate({LEFT + number * (WIDE + 56):g} {TOP:g})">{panel}</g>')
    return _wrap(LEFT + len(gains) * (WIDE + 56), TOP + HIGH + 44, title, parts)


def _draw_gain_panel(
    size: str, by_search: Mapping[str, Any], aucs: Mapping[str, Any], y_range: tuple[float, float]
) -> str:
    def x(auc: float) -> float:
        return (auc - AUC_RANGE[0]) / (AUC_RANGE[1] - AUC_RANGE[0]) * WIDE

    def y(gain: float) -> float:
        gain = min(max(gain, -1.0), 1.0)
        return HIGH - (gain - y_range[0]) / (y_range[1] - y_range[0]) * HIGH

    parts = [f'<text class="t" x="0" y="-8">{size} numbers</text>']
    for tenths in range(5, 11):
        parts.append(f'<path class="g" d="M{x(tenths / 10):.1f} 0V{HIGH:g}"/>')
        parts.append(f'<text class="m" x="{x(tenths / 10):.1f}" y="{HIGH + 15:g}">{tenths / 10:g}</text>')
    for fifths in range(-5, 6):
        if y_range[0] <= fifths / 5 <= y_range[1]:
            style = "g" if fifths else "zero"
            parts.append(f'<path class="{style}" d="M0 {y(fifths / 5):.1f}H{WIDE:g}"/>')
            parts.append(f'<text class="e" x="-5" y="{y(fifths / 5) + 4:.1f}">{20 * fifths:+d}</text>')
    parts.append(f'<text class="m" x="{WIDE / 2:g}" y="{HIGH + 32:g}">AUC of the judge</text>')
    for offset, (search, by_judge) in enumerate(by_search.items()):
        color, shift = COLORS[search], 2.5 * (offset - 1)
        points = sorted((aucs[judge]["within_levels"], judge) for judge in by_judge)
        known = [(auc, by_judge[judge][0]) for auc, judge in points if judge != "learned"]
        line = "L".join(f"{x(auc) + shift:.1f} {y(gain):.1f}" for auc, gain in known)
        parts.append(f'<path class="line" stroke="{color}" d="M{line}"/>')
        for auc, judge in points:
            gain, low, high = by_judge[judge]
            style = f'class="hollow" stroke="{color}"' if judge == "learned" else f'fill="{color}"'
            center = x(auc) + shift
            if high - low <= 1.0:
                parts.append(f'<path class="end" stroke="{color}" d="M{center:.1f} {y(low):.1f}V{y(high):.1f}"/>')
            parts.append(
                f'<circle {style} cx="{center:.1f}" cy="{y(gain):.1f}" r="4"><title>{NAMES[search]}, judge {judge}, '
                f"AUC {auc:.2f}: {100 * gain:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]</title></circle>"
            )
    return "".join(parts)


# ---------------------------------------------------------------- returns by task


def draw_returns(family: Mapping[str, Any]) -> str:
    """Draws the scores of cloning and Decision Transformer by task: bars are means, dots are seeds."""
    title = "Decision Transformer beside cloning by the same network"
    parts = [
        f'<text class="t" x="{LEFT:g}" y="20">{title}</text>',
        f'<text x="{LEFT:g}" y="38">Percent of the best score: means (bars) and seeds (dots). Below: difference in '
        "points of the score, 95 % over seeds.</text>",
        *_legend(("bc", "dt"), 58),
    ]
    step = 132.0
    width = LEFT + step * len(family["tasks"])
    for percent in range(0, 101, 25):
        height = TOP + HIGH - percent / 110 * HIGH
        parts.append(f'<path class="g" d="M{LEFT:g} {height:.1f}H{width:g}"/>')
        parts.append(f'<text class="e" x="{LEFT - 5:g}" y="{height + 4:.1f}">{percent}</text>')
    for number, (name, task) in enumerate(family["tasks"].items()):
        parts.append(_draw_task(name, task, left=LEFT + step * number, judged=name in family["judged"]))
    return _wrap(width + 8, TOP + HIGH + 58, title, parts)


def _draw_task(name: str, task: Mapping[str, Any], *, left: float, judged: bool) -> str:
    def y(score: float) -> float:
        share = min(max(score / task["best"], -0.02), 1.1)
        return TOP + HIGH - share / 1.1 * HIGH

    parts = []
    for position, method in enumerate(("bc", "dt")):
        start, scores = left + 22 + 44 * position, task[method]
        top = y(max(0.0, mean(scores)))
        parts.append(
            f'<rect x="{start:g}" y="{top:.1f}" width="36" height="{TOP + HIGH - top:.1f}" fill="{COLORS[method]}" '
            f'opacity=".8"><title>{NAMES[method]}, {name}: {mean(scores):.1f}</title></rect>'
        )
        for seed, score in zip(task["seeds"], scores, strict=True):
            shift = 4 + 28 * (task["seeds"].index(seed) + 0.5) / len(scores)
            parts.append(f'<circle class="dot" cx="{start + shift:.1f}" cy="{y(score):.1f}" r="2.6" fill="#111"/>')
    difference, low, high = task["difference"]
    middle = left + 62
    parts.append(f'<text class="m t" x="{middle:g}" y="{TOP + HIGH + 16:g}">{name}</text>')
    interval = f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]"
    parts.append(f'<text class="m" x="{middle:g}" y="{TOP + HIGH + 32:g}">{interval}</text>')
    if not judged:
        parts.append(f'<text class="m" x="{middle:g}" y="{TOP + HIGH + 47:g}">not judged: no room above cloning</text>')
    return "".join(parts)


# ---------------------------------------------------------------- return by divergence


def draw_frontier(figures: Mapping[str, Any]) -> str:
    """Draws the return of every measured policy over its divergence from the base, and the largest that there is."""
    farthest, width = 1.0, 2 * WIDE
    title = "Reward against language: return by divergence from the base"

    def x(nats: float) -> float:
        return LEFT + nats / farthest * width

    def y(share: float) -> float:
        return TOP + HIGH - share * HIGH / 0.8

    parts = [
        f'<text class="t" x="{LEFT:g}" y="20">{title}</text>',
        f'<text x="{LEFT:g}" y="38">A dot: a policy on its way, of a seed and coefficient. Line: the largest return '
        "at a divergence.</text>",
        *_legend(("etpo", "token_ppo"), 58),
    ]
    for fifth in range(5):
        parts.append(f'<path class="g" d="M{LEFT:g} {y(fifth / 5):.1f}H{LEFT + width:g}"/>')
        parts.append(f'<text class="e" x="{LEFT - 5:g}" y="{y(fifth / 5) + 4:.1f}">{fifth / 5:g}</text>')
        nats = fifth / 4 * farthest
        parts.append(f'<text class="m" x="{x(nats):.1f}" y="{TOP + HIGH + 15:g}">{nats:g}</text>')
    parts.append(f'<text class="m" x="{LEFT + width / 2:g}" y="{TOP + HIGH + 32:g}">nats a token</text>')
    line = "L".join(f"{x(nats):.1f} {y(share):.1f}" for nats, share in figures["frontier"] if nats <= farthest)
    parts.append(f'<path class="line" stroke="#888" d="M{line}"/>')
    for arm, points in figures["points"].items():
        parts += [
            f'<circle class="dot" cx="{x(nats):.1f}" cy="{y(share):.1f}" r="2.6" fill="{COLORS[arm]}"/>'
            for nats, share in points
            if 0 <= nats <= farthest
        ]
    return _wrap(LEFT + width + 24, TOP + HIGH + 44, title, parts)


def draw_pictures() -> dict[str, str]:
    """Draws the pictures; returns their text by file name."""
    search = json.loads((RESULTS / "search_hard.json").read_text(encoding="utf-8"))
    sequence = json.loads((RESULTS / "sequence.json").read_text(encoding="utf-8"))
    language = json.loads((RESULTS / "credit_language.json").read_text(encoding="utf-8"))
    return {
        "search_gain.svg": draw_gain(search),
        "dt_returns.svg": draw_returns(sequence["family"]),
        "etpo_language.svg": draw_frontier(language),
    }


def main() -> None:
    """Writes the pictures."""
    for name, text in draw_pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
