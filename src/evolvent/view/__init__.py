"""Reports: one offline page per run, and the plain table at its end.

Names are loaded when they are first used: the command line needs only how text is escaped, not the page's templates.
No module here may have the name of a public function: it would take its place once it is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evolvent.view.data import ReportData, read_run
    from evolvent.view.document import page, report
    from evolvent.view.outcome import summary

__all__ = ["ReportData", "page", "read_run", "report", "summary"]

_MODULES = {"ReportData": "data", "page": "document", "read_run": "data", "report": "document", "summary": "outcome"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"evolvent.view.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'evolvent.view' has no attribute {name!r}")
