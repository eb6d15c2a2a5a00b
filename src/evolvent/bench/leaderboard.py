"""A leaderboard from the results files of many players: who did what on the panels that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from evolvent.bench.suite import Measured, Sheet, overall
from evolvent.errors import ConfigError
from evolvent.stats import Interval

__all__ = ["board"]

_Pin = tuple[str, int]  # digest of the tasks, steps of an episode


def board(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """The leaderboard as plain data (JSON values), best first.

    A panel is pinned by its tasks and its horizon as most sheets have them. What a sheet did on other tasks of the same
    name is listed under `other` and not ranked; an overall rate is given only to who played every pinned panel.

    Returns:
        worlds: [{name, panels}]; horizons: panel -> steps; players: [{name, kind, about, created, seed, overall,
        played, of, cells, tokens, wall_s, errors, other}], where cells is world -> {mean, low, high, played, of, unit}
        and rates are in 0..1 or None.
    Raises:
        ConfigError: no sheet.
    """
    if not sheets:
        raise ConfigError("no results to show", value=0, expected="at least one results file of agent-eval")
    pins = _pins(sheets)
    worlds: dict[str, list[str]] = {}
    for name in pins:
        worlds.setdefault(name.rpartition("/")[0], []).append(name)
    players = [_player(sheet, pins, worlds) for sheet in sheets]
    players.sort(key=lambda one: (one["overall"] is None, -(one["overall"] or {"mean": 0.0})["mean"], one["name"]))
    return {
        "worlds": [{"name": world, "panels": panels} for world, panels in worlds.items()],
        "horizons": {name: pin[1] for name, pin in pins.items()},
        "players": players,
    }


def _pins(sheets: Sequence[Sheet]) -> dict[str, _Pin]:
    """Panel -> what most sheets mean by it; of equally many the first."""
    votes: dict[str, Counter[_Pin]] = {}
    for sheet in sheets:
        for row in sheet.panels:
            votes.setdefault(row.name, Counter())[row.digest, row.horizon] += 1
    return {name: counted.most_common(1)[0][0] for name, counted in sorted(votes.items())}


def _player(sheet: Sheet, pins: dict[str, _Pin], worlds: dict[str, list[str]]) -> dict[str, Any]:
    same = {row.name: row for row in sheet.panels if pins[row.name] == (row.digest, row.horizon)}
    whole = overall(list(same.values())) if len(same) == len(pins) else None
    return {
        "name": sheet.player.name,
        "kind": sheet.player.kind,
        "about": dict(sheet.player.about),
        "created": sheet.created,
        "seed": sheet.seed,
        "overall": _rate(whole),
        "played": len(same),
        "of": len(pins),
        "cells": {
            world: _cell([same[name] for name in names if name in same], of=len(names))
            for world, names in worlds.items()
        },
        "tokens": {
            name: sum(getattr(row, name) for row in same.values()) for name in ("generated", "computed", "prompted")
        },
        "wall_s": sum(row.wall_s for row in same.values()),
        "errors": sum(row.errors for row in sheet.panels),
        "other": [row.name for row in sheet.panels if row.name not in same],
    }


def _cell(rows: Sequence[Measured], *, of: int) -> dict[str, Any] | None:
    """A world of one player, None where it played none of its panels."""
    if not rows:
        return None
    units = [row.unit for row in rows]
    known = [unit for unit in units if unit is not None]
    unit = sum(known) / len(known) if len(known) == len(units) else None
    return {
        **(_rate(overall(rows)) or dict.fromkeys(("mean", "low", "high"))),
        "played": len(rows),
        "of": of,
        "unit": unit,
    }


def _rate(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"mean": found.mean, "low": found.low, "high": found.high}
