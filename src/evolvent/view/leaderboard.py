"""A leaderboard for people: rows for a terminal, and one page. Its files are untrusted: all of it is text."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from evolvent.trajectory import JsonObject
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, format_large, show_hidden
from evolvent.view.templating import build_environment, render_page

__all__ = ["draw_board", "leaderboard_page", "tabulate_leaderboard"]

_KINDS = {"expert": "expert", "random": "control", "policy": "evolve"}


def tabulate_leaderboard(data: JsonObject) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Returns columns and rows of the table in a terminal: a column per player, best first, a row per world, in %."""
    players = data["players"]
    columns = ("success, %", *(show_hidden(clip(player["name"], 24)) for player in players))
    intervals = [
        f"{player_row['played']}/{player_row['of']} panels"
        if player_row["overall"] is None
        else _format_interval(player_row["overall"])
        for player_row in players
    ]
    rows: list[tuple[object, ...]] = [
        ("overall", *(_format_percent(player["overall"]) for player in players)),
        ("95 %", *intervals),
    ]
    for world in data["worlds"]:
        rows.append((world["name"], *(_format_percent(player["cells"][world["name"]]) for player in players)))
    return columns, rows


def leaderboard_page(data: JsonObject) -> str:
    """Renders the leaderboard as one HTML document that needs nothing else: no script, no network."""
    environment = build_environment(
        {"percent": _format_percent, "ends": _format_interval, "shade": _shade_level, "large": format_large}
    )
    return render_page(environment, "leaderboard.html", {"data": data, "picture": draw_board(data["players"])})


def draw_board(players: Sequence[JsonObject]) -> Markup:
    """Draws each player's overall success with its interval; small marks are single worlds."""
    rows = []
    for player in players:
        overall = player["overall"] or {}
        style = _KINDS.get(player["kind"], "other")
        dots = {name: cell["mean"] for name, cell in player["cells"].items() if cell and cell["mean"] is not None}
        rows.append(DotRow(player["name"], style, overall.get("mean"), overall.get("low"), overall.get("high"), dots))  # type: ignore[arg-type]
    return dot_plot(rows, label="Overall success of each player with its 95 % interval; small marks are single worlds")


def _format_percent(cell: JsonObject | None) -> str | None:
    return None if cell is None or cell["mean"] is None else f"{100 * cell['mean']:.1f}"


def _format_interval(cell: JsonObject) -> str:
    return f"{100 * cell['low']:.1f} to {100 * cell['high']:.1f}"


def _shade_level(cell: JsonObject | None) -> int:
    """Returns the shade of a cell: tenths of its success."""
    return 0 if cell is None or cell["mean"] is None else round(10 * cell["mean"])
