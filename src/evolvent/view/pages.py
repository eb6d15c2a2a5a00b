"""Pages of the viewer: their shared parts, the runs of a folder, and the report of one run.

A page is a function from what is shown to text. All of it passes through the templates of the report, which escape it
and make hidden characters visible; the drawings are the report's.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal
from urllib.parse import urlencode

from jinja2 import Environment

from evolvent.view.data import ReportData
from evolvent.view.document import report_environment, report_values
from evolvent.view.library import RunEntry, RunStatus

__all__ = [
    "Frame",
    "Tab",
    "build_address",
    "problem_page",
    "read_asset",
    "render_template",
    "run_page",
    "runs_page",
    "warm_up",
]

Tab = tuple[str, str, str, int | None]
"""A page of a run: its name, address, label, and how many things it holds (None: it does not count)."""

_ASSET_TYPES = {"viewer.css": "text/css; charset=utf-8", "viewer.js": "text/javascript; charset=utf-8"}
_ROOT = re.compile(r"^:root \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts around a page: theme, tabs and live updates.

    Args:
        theme: light or dark; empty: what the system says. back: the address of the page itself.
        here: name of the tab. run: whose page it is. tabs: of that run.
        pulse: where the page asks whether anything has changed, with `stamp` what it was made from; empty: nowhere.
    """

    theme: Literal["", "light", "dark"] = ""
    back: str = "/"
    here: str = ""
    run: RunEntry | None = None
    tabs: Sequence[Tab] = ()
    pulse: str = ""
    stamp: str = ""
    live: bool = False


def render_template(template: str, frame: Frame, *, title: str, **values: object) -> str:
    """Renders a template in its frame; lone surrogates, which no page can hold, become question marks."""
    frame_values = {name: getattr(frame, name) for name in Frame.__slots__}
    text = (
        _viewer_environment()
        .get_template(template)
        .render(title=title, assets=_asset_digest(), **{**frame_values, **values})
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def build_address(path: str, **values: object) -> str:
    """Builds a local address with a query; values that are None or empty are left out."""
    parameters = {name: str(value) for name, value in values.items() if value not in (None, "")}
    query = urlencode(parameters, errors="replace")  # names of files need be no UTF-8
    return f"{path}?{query}" if query else path


def read_asset(name: str) -> tuple[bytes, str] | None:
    """Returns a file that pages load, with its type; None for an unknown name.

    The sheet is the report's and the viewer's own. The report's has two palettes, for light and dark systems; here each
    is also put under the name of a theme, so that it can be chosen.
    """
    package_files = files("evolvent.view")
    if name not in _ASSET_TYPES:
        return None
    text = package_files.joinpath("static", name).read_text(encoding="utf-8")
    if name == "viewer.css":
        text = _add_themes(package_files.joinpath("style.css").read_text(encoding="utf-8")) + text
    return text.encode(), _ASSET_TYPES[name]


def warm_up() -> None:
    """Compiles every template and reads every asset, so that the first page does not wait for it."""
    _asset_digest()
    for name in _viewer_environment().list_templates():
        if name.startswith("viewer") or name == "report_body.html":
            _viewer_environment().get_template(name)


def runs_page(frame: Frame, runs: Sequence[tuple[RunEntry, RunStatus]], *, folder: str, q: str = "") -> str:
    """Renders the runs of a folder, to be opened and compared."""
    return render_template("viewer_runs.html", frame, title="Runs", runs=runs, folder=folder, q=q)


def run_page(frame: Frame, run: RunEntry, data: ReportData) -> str:
    """Renders a run's report, live."""
    has_content = data.results or data.metrics or data.stages or data.searches or data.info.config or data.examples
    values = {"info": data.info} if not has_content else report_values(data)
    return render_template("viewer_run.html", frame, title=run.name, nothing=not has_content, **values)


def problem_page(frame: Frame, title: str, problem: str) -> str:
    """Renders an error, in a sentence."""
    return render_template("viewer_problem.html", frame, title=title, problem=problem)


# ---------------------------------------------------------------------- templates


@cache
def _viewer_environment() -> Environment:
    overlay = report_environment().overlay()
    overlay.filters = {**overlay.filters, "ago": _format_age}
    return overlay


@cache
def _asset_digest() -> str:
    """Computes a digest that changes with the assets of pages, so that a browser may cache them safely."""
    return hashlib.sha256(
        b"".join(body_and_type[0] for name in _ASSET_TYPES if (body_and_type := read_asset(name)))
    ).hexdigest()[:12]


@cache
def _add_themes(sheet: str) -> str:
    light, dark = _ROOT.search(sheet), _DARK.search(sheet)
    palettes = [(name, match[1]) for name, match in (("light", light), ("dark", dark)) if match]
    theme_rules = [f':root[data-theme="{name}"] {{ color-scheme: {name}; {palette} }}\n' for name, palette in palettes]
    return "".join([sheet, *theme_rules])


def _format_age(time_s: float) -> str:
    """Formats the time since a moment (seconds since the epoch)."""
    if not time_s:
        return "–"
    age_s = max(0.0, time.time() - time_s)
    for unit_s, unit in ((86400 * 60, ""), (86400, "d"), (3600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s / unit_s:.0f} {unit} ago" if unit else time.strftime("%Y-%m-%d", time.gmtime(time_s))
    return f"{age_s:.0f} s ago"
