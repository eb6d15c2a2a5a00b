"""`evolvent bench bfcl`: function calling on BFCL's items, and on the same items in other names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.bench.bfcl import MaskedBfcl, Row, lost_to_names, rows, totals
from evolvent.cli.agent_options import PlayedBy, Playing, playing, resumed
from evolvent.cli.console import table
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded, versions
from evolvent.cli.settings import Command, read_given
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.stats import Interval
from evolvent.store.store import Store
from evolvent.trajectory import Start
from evolvent.view.escape import plain
from evolvent.worlds.bfcl.items import BAD_ITEMS, CATEGORIES, MULTI_TURN
from evolvent.worlds.bfcl.world import Bfcl

__all__ = ["COMMAND", "run"]

_ALL = "all"


class BfclBench(PlayedBy):
    """Everything that can be chosen about `evolvent bench bfcl`."""

    data: Path = Field(description="the folder of BFCL v4's files")
    categories: tuple[str, ...] = Field(default=(_ALL,), description="which are played; all: every one")
    form: Literal["python", "json", "xml"] = Field(default="python", description="how calls are written")
    masked: bool = Field(default=True, description="play the items of one turn in other names too")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    constrained: bool = Field(default=False, description="a policy can write nothing but valid calls, or []")
    limit: int | None = Field(default=None, ge=1, description="most items of a category; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest reply")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/bfcl-N")


COMMAND = Command(
    "bench bfcl",
    "Let an agent call functions on BFCL v4: a table, the totals, and what other names cost.",
    BfclBench,
    main="data",
    resumes=True,
)


def run(words: Sequence[str], console: Console) -> int:
    """Measure an agent on BFCL; returns the exit code: 1 where an item could not be judged."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    chosen = tuple(CATEGORIES) if _ALL in config.categories else config.categories
    world = Bfcl(config.data, form=config.form, categories=chosen)
    single = tuple(name for name in chosen if name not in MULTI_TURN)
    other = (
        MaskedBfcl(config.data, form=config.form, categories=single, seed=config.seed)
        if config.masked and single
        else None
    )
    with playing(config, {world.name: world}, verb=COMMAND.verb) as player:
        by = _held(player) if config.constrained else player
        folder = given.resume or new_folder("bfcl", config.to)
        with Store.open(folder / "trajectories", writing=True) as store:
            with recorded(folder, Record(COMMAND.verb, config, config.seed)), Progress(console) as progress:
                sides = [
                    resumed(one, _names(one, config), by, store=store, progress=progress, config=config, label=one.name)
                    for one in (world, other)
                    if one is not None
                ]
    found, masked = rows(sides[0]), rows(sides[1]) if other is not None else ()
    lost = lost_to_names(*sides) if other is not None else None
    _write(folder / "bfcl.json", config, by, found=found, masked=masked, lost=lost, problems=world.problems)
    _show(console, found, masked, lost)
    for problem in world.problems[:5]:
        console.print(plain(str(problem)), soft_wrap=True)
    console.print(plain(f"results {folder / 'bfcl.json'}"), soft_wrap=True)
    return 1 if any(row.lost for row in (*found, *masked)) else 0


def _held(by: Playing) -> Playing:
    """The player, whose answers can be nothing but valid calls.

    Raises:
        ConfigError: it is no policy of ours. MissingExtra: llguidance is not installed.
    """
    if by.player.kind != "policy":
        raise ConfigError(
            "answers can be constrained where the model is here",
            value=by.player.kind,
            expected="--agent policy",
            hint="an endpoint writes what it likes",
        )
    from evolvent.agents.calling import ValidCalls
    from evolvent.models.constraints import CallConstraints

    agent: Any = by.agent
    return replace(by, agent=replace(agent, constrain=ValidCalls(CallConstraints(agent.policy))))


def _names(world: Bfcl, config: BfclBench) -> dict[Start, str]:
    """The starts, with their names: the first items of every category."""
    tasks = [task for tier in world.tiers for task in world.tasks("test", tier)]
    taken: dict[str, int] = {}
    found = {}
    for task in tasks:
        taken[task.kind] = taken.get(task.kind, 0) + 1
        if config.limit is None or taken[task.kind] <= config.limit:
            found[Start(task)] = f"{world.name}/{task.id}"
    if not found:
        raise ConfigError("no items of these categories", value=list(config.categories))
    return found


def _write(
    path: Path,
    config: BfclBench,
    by: Playing,
    *,
    found: Sequence[Row],
    masked: Sequence[Row],
    lost: Interval | None,
    problems: Sequence[Problem],
) -> None:
    spent = by.spent()
    sides = {
        name: {row.category: [row.right, row.items, row.lost] for row in side}
        for name, side in (("plain", found), ("masked", masked))
    }
    row = {
        "player": by.player.name,
        "about": dict(by.player.about),
        "form": config.form,
        "seed": config.seed,
        "constrained": config.constrained,
        **sides,
        "totals": totals(found),
        "bad_items": dict(BAD_ITEMS),
        "problems": [str(one) for one in problems],
        "lost_to_names": None if lost is None else [lost.mean, lost.low, lost.high],
        "last_session": {"computed": spent.computed, "prompted": spent.prompted, "completed": spent.completed},
        "versions": versions(),
    }
    write_atomic(path, plain_json(row) + "\n")


def _show(console: Console, found: Sequence[Row], masked: Sequence[Row], lost: Interval | None) -> None:
    renamed = {row.category: row for row in masked}
    columns = ("category", "items", "right, %", "in other names, %", "not judged")
    lines = []
    for row in found:
        other = renamed.get(row.category)
        lines.append(
            (
                row.category,
                row.items,
                _percent(row.share),
                None if other is None else _percent(other.share),
                row.lost or None,
            )
        )
    console.print(table(console, columns, lines, numbers=columns[1:]))
    said = ", ".join(f"{name.replace('_', '-')} {100 * value:.1f}" for name, value in totals(found).items())
    console.print(f"totals of the leaderboard: {said} (agentic tasks are not here and count 0)", soft_wrap=True)
    if lost is not None:
        ends = "" if isnan(lost.low) else f" [{100 * lost.low:+.1f}, {100 * lost.high:+.1f}]"
        console.print(f"lost to other names: {100 * lost.mean:+.1f}{ends} points over {lost.n} items", soft_wrap=True)


def _percent(share: float) -> str | None:
    return None if isnan(share) else f"{100 * share:.1f}"
