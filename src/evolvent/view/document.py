"""The report of a run: one HTML file that needs nothing else, no script, no network, no other file.

Everything in a run directory is untrusted. Each value passes through `escape` on its way into the page: `templating`
makes hidden characters visible in whatever a template prints, autoescaping does the rest, and no address becomes a link
or a picture. The content policy in the page forbids every request.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from math import isnan, log
from pathlib import Path
from typing import Any

from jinja2 import Environment

from evolvent.files import write_atomic
from evolvent.view import charts, sections
from evolvent.view.credit import credit_scale, credit_tokens, pictures
from evolvent.view.data import ReportData, Token, read_run
from evolvent.view.escape import clip, marked
from evolvent.view.outcome import headline, kinds, main_arm, pairs, panels
from evolvent.view.reinforcement import practised
from evolvent.view.search import searched
from evolvent.view.templating import environment_of, written
from evolvent.view.training import training_page

__all__ = ["environment", "page", "report", "report_values"]

_UNSURE = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a token changes


def report(run: Path, to: Path) -> None:
    """Write the report of the run directory `run` to the file `to`, whole or not at all.

    The run may still be going on: what is there is shown.

    Raises:
        ConfigError: there is no such directory. StoreError: a file cannot be read or written.
    """
    write_atomic(to, page(read_run(run)))


def page(data: ReportData) -> str:
    """The report as one HTML document."""
    return written(environment(), "report.html", report_values(data))


def report_values(data: ReportData) -> dict[str, Any]:
    """All that `report_body.html` shows, by the names that it has there."""
    shown, training, practice = panels(data), training_page(data), practised(data)
    return {
        "data": data,
        "info": data.info,
        "head": headline(data, shown),
        "main": main_arm(data),
        "panels": shown,
        "strips": sections.strips(data, shown),
        "practice": practice,
        "worlds": sections.multiples(data, shown, by="iteration" if practice else "round"),
        "pictures": pictures([row for row in data.credit if practice and row.stage == practice.stage]),
        "curves": [] if training else sections.curves(data),
        "speeds": [] if training else sections.speeds(data),
        "cost": sections.cost(data),
        "training": training,
        "search": None if training or practice else searched(data),
        "kinds": [(panel, kinds(panel)) for panel in shown],
        "pairs": pairs(data),
        "floors": sections.floors(data),
        "config": sections.flat(data.info.config),
        "versions": sections.flat(data.info.versions),
        "errors": [row for row in data.results if row.errors],
    }


# ---------------------------------------------------------------- templates


@cache
def environment() -> Environment:
    """The templates of this room with their filters; whatever they print is text unless it is markup."""
    return environment_of(
        {
            "arm": sections.arm_style,
            "count": _count,
            "credit_scale": credit_scale,
            "credit_tokens": credit_tokens,
            "marked": marked,
            "marker": charts.marker,
            "moment": _moment,
            "percent": _percent,
            "points": _points,
            "range": _range,
            "rate_of_work": _rate_of_work,
            "seconds": _seconds,
            "short": _short,
            "signed": _signed,
            "size": _size,
            "token_class": _token_class,
            "value": _value,
        }
    )


def _short(text: str) -> str:
    """A name for the head of the page."""
    return clip(text, 80)


def _moment(text: str) -> str:
    """A time stamp as people write it; other text as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z")
    except ValueError:
        return text or "–"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _points(value: float | None) -> str:
    if value is None or isnan(value):
        return "–"
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _range(low: float | None, high: float | None) -> str:
    return "no interval" if low is None or high is None or isnan(low) else f"{100 * low:.1f} to {100 * high:.1f}"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _value(value: float | None) -> str:
    """A number of any size in four digits."""
    if value is None:
        return "–"
    return (f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}").replace("-", "−")


def _signed(value: float) -> str:
    """A number with its sign, in three digits."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def _size(value: float | None) -> str:
    """Bytes in the unit that they fill."""
    if value is None:
        return "–"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 2**power:
            return f"{value / 2**power:.3g} {unit}" if value < 1000 * 2**power else f"{value / 2**power:,.0f} {unit}"
    return f"{value:.0f} B"


def _rate_of_work(value: float) -> str:
    """Operations per second."""
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{value:.1f} s"


def _token_class(token: Token) -> str:
    if not token.sampled or token.logprob is None:
        return "read"
    return f"unsure-{sum(token.logprob < log(chance) for chance in _UNSURE)}"
