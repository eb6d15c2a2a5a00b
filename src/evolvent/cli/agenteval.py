"""`evolvent bench agent-eval`: one agent on the test panels of many worlds at their official horizons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.console import Console, RenderableType

from evolvent.bench.suite import Contest, Measured, Player, Sheet, contests, measure, overall, read_sheet
from evolvent.cli.agent_options import PlayedByOverWorlds, Playing, kept, playing
from evolvent.cli.console import rate, table
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded, versions
from evolvent.cli.registry import worlds
from evolvent.cli.settings import Command, read_given
from evolvent.rollout.collect import collect
from evolvent.rollout.episode import Limits
from evolvent.store.store import Store
from evolvent.trajectory import Start, trajectory_name
from evolvent.view.escape import clip, plain
from evolvent.worlds.panel import digest

__all__ = ["COMMAND", "AgentEval", "run"]


class AgentEval(PlayedByOverWorlds):
    """Everything that can be chosen about `evolvent bench agent-eval`."""

    worlds: tuple[str, ...] = Field(default=("all",), description="the worlds to act in; all: every embedded one")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    name: str = Field(default="", description="how tables call the agent; none: what plays")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/agent-eval-N")
    sheet: Path | None = Field(default=None, description="also write the results file here")
    split: Literal["dev", "test"] = Field(default="test", description="whose panels are played")
    tiers: tuple[str, ...] = Field(default=(), description="the tiers that are played; none: all")
    limit: int = Field(default=100, ge=1, description="most tasks of a panel")
    horizons: Literal["official", "own"] = Field(default="official", description="steps of an episode")


COMMAND = Command(
    "bench agent-eval",
    "Play the test panels of all worlds with one agent: a table, and a results file to share.",
    AgentEval,
    resumes=True,
)


def run(words: Sequence[str], console: Console) -> int:
    """Measure an agent; returns the exit code: 1 where an episode could not be scored."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    panels = contests(
        made, split=config.split, tiers=config.tiers, limit=config.limit, own_horizons=config.horizons == "own"
    )
    with playing(config, made, verb=COMMAND.verb) as by:
        folder = given.resume or new_folder("agent-eval", config.to)
        file = folder / "agent-eval.json"
        with Store.open(folder / "trajectories", writing=True) as store:
            with recorded(folder, Record(COMMAND.verb, config, config.seed)), Progress(console) as progress:
                sheet = Sheet(_player(by, config), config.seed, _now(), versions(), _finished(file, panels))
                for panel in panels[len(sheet.panels) :]:
                    row = _measured(panel, by, store, progress=progress, config=config)
                    sheet = replace(sheet, panels=(*sheet.panels, row))
                    sheet.write(file)
            lost = _lost(store)
    if config.sheet is not None:
        sheet.write(config.sheet)
    console.print(_table(console, sheet))
    for message, count in lost.most_common(3):
        console.print(plain(f"{count} not scored, {clip(message, 300)}"), soft_wrap=True)
    console.print(_sentence(sheet), soft_wrap=True)
    console.print(plain(f"results {config.sheet or file}"), soft_wrap=True)
    return 1 if any(row.errors for row in sheet.panels) else 0


def _player(by: Playing, config: AgentEval) -> Player:
    return replace(by.player, name=config.name) if config.name else by.player


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _finished(file: Path, panels: Sequence[Contest]) -> tuple[Measured, ...]:
    """The rows that an interrupted evaluation left: as many as are first of the panels and have every score."""
    if not file.exists():
        return ()
    rows = read_sheet(file).panels
    same = [row.digest == digest(panel.tasks) and not row.errors for row, panel in zip(rows, panels, strict=False)]
    return rows[: same.index(False) if False in same else len(same)]


def _lost(store: Store) -> Counter[str]:
    """Why tasks have no score, and how many each time: of what was played again only the last try counts."""
    last = {one.task.id: one.error for one in store.trajectories()}
    return Counter(f"{error.kind}: {error.message.partition('; got ')[0]}" for error in last.values() if error)


def _measured(panel: Contest, by: Playing, store: Store, *, progress: Progress, config: AgentEval) -> Measured:
    """Play what the store does not hold yet of one panel; seconds and tokens are those of this panel alone."""
    own = {task.id for task in panel.tasks}
    kept_before = [one for one in store.trajectories(where={"world": panel.world.name}) if one.task.id in own]
    done = [one for one in kept_before if one.error is None]
    known = {one.task.id for one in done}
    tries = Counter(one.task.id for one in kept_before)
    todo = [start for start in panel.starts() if start.task.id not in known]

    def name(start: Start) -> str:
        """Its id; what was lost to a failure is played again under another one."""
        first = trajectory_name(start, "agent-eval")
        return f"{first}~{tries[start.task.id]}" if tries[start.task.id] else first

    began, before = time.monotonic(), by.spent()
    episodes = collect(
        {panel.world.name: panel.world},
        todo,
        by.agent,
        engine=by.engine,
        seed=config.seed,
        slots=config.slots,
        limits=Limits(horizon=panel.horizon),
        name=name,
    )
    with closing(episodes) as played:
        done += kept(played, store, progress, count=len(todo), label=panel.name)
    now, wall_s = by.spent(), round(time.monotonic() - began, 3)
    return measure(
        panel,
        done,
        wall_s=wall_s,
        computed=now.computed - before.computed,
        prompted=now.prompted - before.prompted,
        completed=now.completed - before.completed,
    )


def _table(console: Console, sheet: Sheet) -> RenderableType:
    columns = ("panel", "tasks", "steps", "won, %", "95 %", "score", "tokens", "s")
    rows = []
    for row in sheet.panels:
        found = row.success
        mean = None if found is None else f"{100 * found.mean:.1f}"
        ends = f"{row.errors} not scored" if found is None else f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        score = None if row.unit is None else f"{row.unit:.2f}"
        rows.append(
            (
                row.name,
                len(row.outcomes),
                row.horizon,
                mean,
                ends,
                score,
                f"{row.generated:,}",
                f"{row.wall_s:.1f}",
            )
        )
    return table(console, columns, rows, numbers=tuple(name for name in columns[1:] if name != "95 %"))


def _sentence(sheet: Sheet) -> str:
    whole = overall(sheet.panels)
    worlds = len({row.world for row in sheet.panels})
    if whole is None:
        return "no overall success: episodes of a panel could not be scored"
    ends, over = f"[{rate(whole.low)} to {rate(whole.high)}]", f"{worlds} world{'s' * (worlds > 1)}"
    how = "the mean over worlds of the mean over their panels"
    return f"{plain(sheet.player.name)}: {rate(whole.mean)} {ends} over {over}, {how}"
