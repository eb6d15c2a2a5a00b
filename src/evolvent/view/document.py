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

from jinja2 import Environment

from evolvent.files import write_atomic
from evolvent.view import charts, sections
from evolvent.view.credit import build_credit_scale, build_pictures, render_credit_tokens
from evolvent.view.data import ReportData, Token, read_run
from evolvent.view.escape import clip, mark_hidden
from evolvent.view.outcome import build_headline, build_panels, compare_kinds, main_arm, select_pairs
from evolvent.view.reinforcement import summarize_training
from evolvent.view.search import build_search_report
from evolvent.view.templating import build_environment, render_page
from evolvent.view.training import build_training_report

__all__ = ["page", "report", "report_environment", "report_values"]

_SHADE_PROBABILITIES = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a token changes


def report(run: Path, output_path: Path) -> None:
    """Write the report of the run directory `run` to the file `output_path`, whole or not at all.

    The run may still be going on: what is there is shown.

    Raises:
        ConfigError: there is no such directory. StoreError: a file cannot be read or written.
    """
    write_atomic(output_path, page(read_run(run)))


def page(data: ReportData) -> str:
    """Renders the report as one HTML document."""
    return render_page(report_environment(), "report.html", report_values(data))


def report_values(data: ReportData) -> dict[str, object]:
    """Returns the template variables of `report_body.html`."""
    evaluated_panels, training, rl_training = build_panels(data), build_training_report(data), summarize_training(data)
    return {
        "data": data,
        "info": data.info,
        "head": build_headline(data, evaluated_panels),
        "main": main_arm(data),
        "panels": evaluated_panels,
        "strips": sections.draw_strips(data, evaluated_panels),
        "practice": rl_training,
        "worlds": sections.draw_multiples(data, evaluated_panels, round_label="iteration" if rl_training else "round"),
        "pictures": build_pictures([row for row in data.credit if rl_training and row.stage == rl_training.stage]),
        "curves": [] if training else sections.draw_curves(data),
        "speeds": [] if training else sections.draw_speeds(data),
        "cost": sections.summarize_cost(data),
        "training": training,
        "search": None if training or rl_training else build_search_report(data),
        "kinds": [(panel, compare_kinds(panel)) for panel in evaluated_panels],
        "pairs": select_pairs(data),
        "floors": sections.list_floors(data),
        "config": sections.flatten_settings(data.info.config),
        "versions": sections.flatten_settings(data.info.versions),
        "errors": [row for row in data.results if row.errors],
    }


# ---------------------------------------------------------------- templates


@cache
def report_environment() -> Environment:
    """Builds the template environment with its filters; printed values are text unless they are markup."""
    return build_environment(
        {
            "arm": sections.arm_style,
            "count": _format_count,
            "credit_scale": build_credit_scale,
            "credit_tokens": render_credit_tokens,
            "marked": mark_hidden,
            "marker": charts.legend_marker,
            "moment": _format_time,
            "percent": _format_percent,
            "points": _format_points,
            "range": _format_range,
            "rate_of_work": _format_flops,
            "seconds": _format_seconds,
            "short": _clip_name,
            "signed": _format_signed,
            "size": _format_bytes,
            "token_class": _token_class,
            "value": _format_value,
        }
    )


def _clip_name(text: str) -> str:
    """Returns a name shortened for the head of the page."""
    return clip(text, 80)


def _format_time(text: str) -> str:
    """Formats a time stamp; other text stays unchanged."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z")
    except ValueError:
        return text or "–"


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _format_points(value: float | None) -> str:
    if value is None or isnan(value):
        return "–"
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _format_range(low: float | None, high: float | None) -> str:
    return "no interval" if low is None or high is None or isnan(low) else f"{100 * low:.1f} to {100 * high:.1f}"


def _format_count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _format_value(value: float | None) -> str:
    """Formats a number of any size in four digits."""
    if value is None:
        return "–"
    return (f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}").replace("-", "−")


def _format_signed(value: float) -> str:
    """Formats a number with its sign, in three digits."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def _format_bytes(value: float | None) -> str:
    """Formats bytes in the largest fitting unit."""
    if value is None:
        return "–"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 2**power:
            return f"{value / 2**power:.3g} {unit}" if value < 1000 * 2**power else f"{value / 2**power:,.0f} {unit}"
    return f"{value:.0f} B"


def _format_flops(value: float) -> str:
    """Formats operations per second."""
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _format_seconds(value: float | None) -> str:
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
    return f"unsure-{sum(token.logprob < log(chance) for chance in _SHADE_PROBABILITIES)}"
