"""What every page of this room is made with: one environment, one style sheet, one frame (`templates/page.html`).

The frame holds the content policy of a page that stands alone: no script, no request. Whatever a template prints is
text unless it is markup, without hidden characters, and cut where it is endless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evolvent.view.escape import clip, plain

__all__ = ["environment_of", "style_sheet", "written"]


def environment_of(filters: Mapping[str, Callable[..., Any]] | None = None, *, longest: int = 4000) -> Environment:
    """The templates of this room, with filters; texts are cut after `longest` characters."""

    def final(value: object) -> object:
        return plain(clip(value, longest)) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=PackageLoader("evolvent.view"),
        autoescape=True,
        finalize=final,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= dict(filters or {})
    return made


def written(environment: Environment, template: str, values: Mapping[str, Any]) -> str:
    """A page in the frame; what no UTF-8 can hold is replaced."""
    text = environment.get_template(template).render({"sheet": style_sheet(), **values})
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def style_sheet() -> Markup:
    """The style of all pages that stand alone."""
    return Markup((files("evolvent.view") / "style.css").read_text(encoding="utf-8"))
