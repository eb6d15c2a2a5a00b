"""Page of a sequence policy: returns earned and requested, learning curves, and episodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment
from markupsafe import Markup

from evolvent.trajectory import JsonObject
from evolvent.view.charts import Frame, Line, Reference, line_chart
from evolvent.view.templating import build_environment, render_page

__all__ = ["sequence_page"]


def sequence_page(data: JsonObject, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Renders one HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`; `facts` (name -> text); `rows` with `asked` (a return, or None), `returns`, `mean` and `score`;
            `history`, rows with `update` and `loss`; `played`, returns of episodes played online, in order, and
            optionally `played_caption`, what to call them; `random` and `expert`, mean returns; `data`, the least, mean
            and most return of the episodes learned from. Of several worlds, each row has its own `world`, `random`,
            `expert` and `data`, the mean return of its episodes.
        pictures: (title, SVG) of episodes, as `view.sequence_strips.draw_best_and_worst` draws them.
    """
    return render_page(
        _build_environment(),
        "sequences.html",
        {
            "data": data,
            "curves": _draw_curves(data),
            "asked": _draw_requested_returns(data),
            "pictures": [(title, Markup(picture)) for title, picture in pictures],
        },
    )


@cache
def _build_environment() -> Environment:
    return build_environment({"number": _format_number}, max_chars=400)


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _draw_curves(data: JsonObject) -> list[tuple[str, Markup]]:
    """Draws (caption, picture) of the loss, and of the returns earned online."""
    captioned_curves = []
    losses = [(row["update"], row["loss"]) for row in data["history"]]
    if len(losses) > 1:
        frame = Frame("Loss", "updates", width=420)
        captioned_curves.append(("Loss", line_chart(frame, [Line("loss", "evolve", losses, markers=False)])))
    online_returns = [(float(episode_index + 1), value) for episode_index, value in enumerate(data["played"])]
    if len(online_returns) > 1:
        frame = Frame("Return while playing", "episodes", whole_x=True, width=420)
        captioned_curves.append(
            (
                data.get("played_caption", "Return of the episodes played online"),
                line_chart(frame, [Line("return", "evolve", online_returns)]),
            )
        )
    return captioned_curves


def _draw_requested_returns(data: JsonObject) -> Markup | None:
    """Draws earned over requested returns, with minimum and maximum, beside the identity line."""
    rows = [row for row in data["rows"] if row["asked"] is not None]
    if len(rows) < 2:
        return None
    points = [(row["asked"], row["mean"]) for row in rows]
    band = [(row["asked"], min(row["returns"]), max(row["returns"])) for row in rows]
    identity_line = [(row["asked"], row["asked"]) for row in rows]
    frame = Frame("Return earned", "return asked for", width=520, height=260)
    lines = [Line("as asked", "control", identity_line, markers=False), Line("earned", "evolve", points, band=band)]
    levels = [
        Reference("random", data["random"]),
        Reference("expert", data["expert"]),
        Reference("best in the data", data["data"][2]),
    ]
    return line_chart(frame, lines, levels)
