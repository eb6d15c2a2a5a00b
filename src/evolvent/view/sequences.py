"""The page of a sequence policy: what it earned, what it was asked for, how learning went, and episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from evolvent.view.charts import Frame, Line, Reference, line_chart
from evolvent.view.templating import environment_of, written

__all__ = ["sequence_page"]

Data = Mapping[str, Any]


def sequence_page(data: Data, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """One HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`; `facts` (name -> text); `rows` with `asked` (a return, or None), `returns`, `mean` and `score`;
            `history`, rows with `update` and `loss`; `played`, returns of episodes played online, in order; `random`
            and `expert`, mean returns; `data`, the least, mean and most return of the episodes learned from.
        pictures: (title, SVG) of episodes, as `view.sequence_strips.drawn` gives them.
    """
    return written(
        _environment(),
        "sequences.html",
        {
            "data": data,
            "curves": _curves(data),
            "asked": _asked(data),
            "pictures": [(title, Markup(picture)) for title, picture in pictures],
        },
    )


@cache
def _environment() -> Environment:
    return environment_of({"number": _number}, longest=400)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _curves(data: Data) -> list[tuple[str, Markup]]:
    """(caption, picture) of the loss, and of what was earned online."""
    found = []
    losses = [(row["update"], row["loss"]) for row in data["history"]]
    if len(losses) > 1:
        frame = Frame("Loss", "updates", width=420)
        found.append(("Loss", line_chart(frame, [Line("loss", "evolve", losses, markers=False)])))
    played = [(float(at + 1), value) for at, value in enumerate(data["played"])]
    if len(played) > 1:
        frame = Frame("Return while playing", "episodes", whole_x=True, width=420)
        found.append(("Return of the episodes played online", line_chart(frame, [Line("return", "evolve", played)])))
    return found


def _asked(data: Data) -> Markup | None:
    """What was earned over what was asked for, with the least and the most, beside who earns just that."""
    rows = [row for row in data["rows"] if row["asked"] is not None]
    if len(rows) < 2:
        return None
    points = [(row["asked"], row["mean"]) for row in rows]
    band = [(row["asked"], min(row["returns"]), max(row["returns"])) for row in rows]
    same = [(row["asked"], row["asked"]) for row in rows]
    frame = Frame("Return earned", "return asked for", width=520, height=260)
    lines = [Line("as asked", "control", same, markers=False), Line("earned", "evolve", points, band=band)]
    levels = [
        Reference("random", data["random"]),
        Reference("expert", data["expert"]),
        Reference("best in the data", data["data"][2]),
    ]
    return line_chart(frame, lines, levels)
