"""A leaderboard from the result files of many players, ranked on the panels that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from evolvent.bench.suite import PanelResult, Sheet, overall_success
from evolvent.errors import ConfigError
from evolvent.stats import Interval

__all__ = ["build_leaderboard"]

_Pin = tuple[str, int]  # digest of the tasks, steps of an episode


def build_leaderboard(sheets: Sequence[Sheet]) -> dict[str, object]:
    """Builds the leaderboard as plain data (JSON values), best first.

    A panel is identified by its tasks and its horizon as most sheets have them. Results on other tasks of the same name
    are listed under `other` and not ranked; only players of every panel get an overall rate.

    Returns:
        worlds: [{name, panels}]; horizons: panel -> steps; players: [{name, kind, about, created, seed, overall,
        played, of, cells, tokens, wall_s, errors, other}], where cells is world -> {mean, low, high, played, of, unit}
        and rates are in 0..1 or None.
    Raises:
        ConfigError: no sheet.
    """
    if not sheets:
        raise ConfigError("no results to show", value=0, expected="at least one results file of agent-eval")
    pins = _majority_panels(sheets)
    worlds: dict[str, list[str]] = {}
    for name in pins:
        worlds.setdefault(name.rpartition("/")[0], []).append(name)
    players = [_player_row(sheet, pins, worlds) for sheet in sheets]
    players.sort(key=lambda one: (one["overall"] is None, -(one["overall"] or {"mean": 0.0})["mean"], one["name"]))
    return {
        "worlds": [{"name": world, "panels": panels} for world, panels in worlds.items()],
        "horizons": {name: pin[1] for name, pin in pins.items()},
        "players": players,
    }


def _majority_panels(sheets: Sequence[Sheet]) -> dict[str, _Pin]:
    """Maps each panel to the tasks and horizon of most sheets; the first among equally many."""
    votes: dict[str, Counter[_Pin]] = {}
    for sheet in sheets:
        for row in sheet.panels:
            votes.setdefault(row.name, Counter())[row.digest, row.horizon] += 1
    return {name: counted.most_common(1)[0][0] for name, counted in sorted(votes.items())}


def _player_row(sheet: Sheet, pins: dict[str, _Pin], worlds: dict[str, list[str]]) -> dict[str, Any]:
    ranked_panels = {row.name: row for row in sheet.panels if pins[row.name] == (row.digest, row.horizon)}
    overall_rate = overall_success(list(ranked_panels.values())) if len(ranked_panels) == len(pins) else None
    return {
        "name": sheet.player.name,
        "kind": sheet.player.kind,
        "about": dict(sheet.player.about),
        "created": sheet.created,
        "seed": sheet.seed,
        "overall": _interval_to_dict(overall_rate),
        "played": len(ranked_panels),
        "of": len(pins),
        "cells": {
            world: _world_cell([ranked_panels[name] for name in names if name in ranked_panels], num_panels=len(names))
            for world, names in worlds.items()
        },
        "tokens": {
            name: sum(getattr(row, name) for row in ranked_panels.values())
            for name in ("generated", "computed", "prompted")
        },
        "wall_s": sum(row.wall_s for row in ranked_panels.values()),
        "errors": sum(row.errors for row in sheet.panels),
        "other": [row.name for row in sheet.panels if row.name not in ranked_panels],
    }


def _world_cell(rows: Sequence[PanelResult], *, num_panels: int) -> dict[str, Any] | None:
    """Returns the cell of a world for one player, None where the player played none of its panels."""
    if not rows:
        return None
    units = [row.unit for row in rows]
    known_units = [unit for unit in units if unit is not None]
    unit = sum(known_units) / len(known_units) if len(known_units) == len(units) else None
    return {
        **(_interval_to_dict(overall_success(rows)) or dict.fromkeys(("mean", "low", "high"))),
        "played": len(rows),
        "of": num_panels,
        "unit": unit,
    }


def _interval_to_dict(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"mean": interval.mean, "low": interval.low, "high": interval.high}
