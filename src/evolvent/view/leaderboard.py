"""A leaderboard for people: rows for a terminal, and one page. It shows files of anybody: all of it is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, large, plain
from evolvent.view.templating import environment_of, written

__all__ = ["board_picture", "leaderboard_page", "leaderboard_rows"]

Data = Mapping[str, Any]
_KINDS = {"expert": "expert", "random": "control", "policy": "evolve"}


def leaderboard_rows(data: Data) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Columns and rows of the table that a terminal shows: a column a player, best first, a row a world, in %."""
    players = data["players"]
    columns = ("success, %", *(plain(clip(player["name"], 24)) for player in players))
    ends = [
        f"{one['played']}/{one['of']} panels" if one["overall"] is None else _ends(one["overall"]) for one in players
    ]
    rows: list[tuple[object, ...]] = [
        ("overall", *(_percent(player["overall"]) for player in players)),
        ("95 %", *ends),
    ]
    for world in data["worlds"]:
        rows.append((world["name"], *(_percent(player["cells"][world["name"]]) for player in players)))
    return columns, rows


def leaderboard_page(data: Data) -> str:
    """The leaderboard as one HTML document that needs nothing else: no script, no network."""
    environment = environment_of({"percent": _percent, "ends": _ends, "shade": _shade, "large": large})
    return written(environment, "leaderboard.html", {"data": data, "picture": board_picture(data["players"])})


def board_picture(players: Sequence[Data]) -> Markup:
    """Each player's overall success with its interval; small marks are single worlds."""
    rows = []
    for player in players:
        whole = player["overall"] or {}
        style = _KINDS.get(player["kind"], "other")
        dots = {name: cell["mean"] for name, cell in player["cells"].items() if cell and cell["mean"] is not None}
        rows.append(DotRow(player["name"], style, whole.get("mean"), whole.get("low"), whole.get("high"), dots))  # type: ignore[arg-type]
    return dot_plot(rows, label="Overall success of each player with its 95 % interval; small marks are single worlds")


def _percent(found: Data | None) -> str | None:
    return None if found is None or found["mean"] is None else f"{100 * found['mean']:.1f}"


def _ends(found: Data) -> str:
    return f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"


def _shade(found: Data | None) -> int:
    """How strongly a cell is shaded: tenths of its success."""
    return 0 if found is None or found["mean"] is None else round(10 * found["mean"])
