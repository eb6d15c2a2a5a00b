"""Shared setup of all pages: one environment, one style sheet, one frame (`templates/page.html`).

The frame holds the content policy of a page that stands alone: no script, no request. Whatever a template prints is
text unless it is markup, without hidden characters, and cut where it is endless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evolvent.view.escape import clip, show_hidden

__all__ = ["build_environment", "render_page", "style_sheet"]


def build_environment(
    filters: Mapping[str, Callable[..., object]] | None = None, *, max_chars: int = 4000
) -> Environment:
    """Builds the template environment of the package, with filters; texts are cut after `max_chars` characters."""

    def finalize(value: object) -> object:
        return (
            show_hidden(clip(value, max_chars)) if isinstance(value, str) and not isinstance(value, Markup) else value
        )

    environment = Environment(
        loader=PackageLoader("evolvent.view"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= dict(filters or {})
    return environment


def render_page(environment: Environment, template: str, values: Mapping[str, object]) -> str:
    """Renders a page in the frame; characters that UTF-8 cannot encode are replaced."""
    text = environment.get_template(template).render({"sheet": style_sheet(), **values})
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def style_sheet() -> Markup:
    """Returns the style sheet of all pages that stand alone."""
    return Markup((files("evolvent.view") / "style.css").read_text(encoding="utf-8"))
