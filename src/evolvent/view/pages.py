"""Pages of the viewer: what all of them share, the runs of a folder, and the report of one run.

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
from evolvent.view.document import environment, report_values
from evolvent.view.library import RunPlace, Tail

__all__ = ["Frame", "Tab", "address", "asset", "problem_page", "ready", "rendered", "run_page", "runs_page"]

Tab = tuple[str, str, str, int | None]
"""A page of a run: its name, address, label, and how many things it holds (None: it does not count)."""

_TYPES = {"viewer.css": "text/css; charset=utf-8", "viewer.js": "text/javascript; charset=utf-8"}
_ROOT = re.compile(r"^:root \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around a page.

    Args:
        theme: light or dark; empty: what the system says. back: the address of the page itself.
        here: name of the tab. run: whose page it is. tabs: of that run.
        pulse: where the page asks whether anything has changed, with `stamp` what it was made from; empty: nowhere.
    """

    theme: Literal["", "light", "dark"] = ""
    back: str = "/"
    here: str = ""
    run: RunPlace | None = None
    tabs: Sequence[Tab] = ()
    pulse: str = ""
    stamp: str = ""
    live: bool = False


def rendered(template: str, frame: Frame, *, title: str, **values: object) -> str:
    """A template in its frame; half surrogates, which no page can hold, become question marks."""
    around = {name: getattr(frame, name) for name in Frame.__slots__}
    text = _templates().get_template(template).render(title=title, assets=_assets(), **{**around, **values})
    return text.encode("utf-8", "replace").decode("utf-8")


def address(path: str, **values: object) -> str:
    """A local address with a query; what is None or empty is left out."""
    told = {name: str(value) for name, value in values.items() if value not in (None, "")}
    query = urlencode(told, errors="replace")  # names of files need be no UTF-8
    return f"{path}?{query}" if query else path


def asset(name: str) -> tuple[bytes, str] | None:
    """A file that pages load, with its type; None: there is none of this name.

    The sheet is the report's and the viewer's own. The report's has two palettes, for light and dark systems; here each
    is also put under the name of a theme, so that it can be chosen.
    """
    home = files("evolvent.view")
    if name not in _TYPES:
        return None
    text = home.joinpath("static", name).read_text(encoding="utf-8")
    if name == "viewer.css":
        text = _themed(home.joinpath("style.css").read_text(encoding="utf-8")) + text
    return text.encode(), _TYPES[name]


def ready() -> None:
    """Compile every template and read every asset, so that the first page does not wait for it."""
    _assets()
    for name in _templates().list_templates():
        if name.startswith("viewer") or name == "report_body.html":
            _templates().get_template(name)


def runs_page(frame: Frame, runs: Sequence[tuple[RunPlace, Tail]], *, folder: str, q: str = "") -> str:
    """The runs of a folder, to be opened and compared."""
    return rendered("viewer_runs.html", frame, title="Runs", runs=runs, folder=folder, q=q)


def run_page(frame: Frame, run: RunPlace, data: ReportData) -> str:
    """A run's report, live."""
    some = data.results or data.metrics or data.stages or data.searches or data.info.config or data.examples
    values = {"info": data.info} if not some else report_values(data)
    return rendered("viewer_run.html", frame, title=run.name, nothing=not some, **values)


def problem_page(frame: Frame, title: str, problem: str) -> str:
    """What went wrong, in a sentence."""
    return rendered("viewer_problem.html", frame, title=title, problem=problem)


# ---------------------------------------------------------------------- templates


@cache
def _templates() -> Environment:
    made = environment().overlay()
    made.filters = {**made.filters, "ago": _ago}
    return made


@cache
def _assets() -> str:
    """Changes with what pages load, so that a browser keeps it and yet never shows an old one."""
    return hashlib.sha256(b"".join(found[0] for name in _TYPES if (found := asset(name)))).hexdigest()[:12]


@cache
def _themed(sheet: str) -> str:
    light, dark = _ROOT.search(sheet), _DARK.search(sheet)
    palettes = [(name, found[1]) for name, found in (("light", light), ("dark", dark)) if found]
    chosen = [f':root[data-theme="{name}"] {{ color-scheme: {name}; {palette} }}\n' for name, palette in palettes]
    return "".join([sheet, *chosen])


def _ago(when: float) -> str:
    """How long ago a moment (seconds since the epoch) was."""
    if not when:
        return "–"
    passed = max(0.0, time.time() - when)
    for size, unit in ((86400 * 60, ""), (86400, "d"), (3600, "h"), (60, "min")):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago" if unit else time.strftime("%Y-%m-%d", time.gmtime(when))
    return f"{passed:.0f} s ago"
