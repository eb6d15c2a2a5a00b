"""What the verbs that use a model share: panels, a watched run in this process, its report and its final policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from rich.console import Console

from evolvent.cli.backends import placed
from evolvent.cli.console import open_console, rate, table
from evolvent.cli.progress import Planned, Progress, Watched
from evolvent.cli.record import Record, recorded
from evolvent.config import Config
from evolvent.errors import EvolventError, boundary
from evolvent.learn.learner import TrainConfig
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.models.policy import Policy
from evolvent.rollout.evaluate import panel_starts
from evolvent.run import Evaluation, Run
from evolvent.scale.local_backend import LocalVerbs, Panel
from evolvent.scale.ray_backend import RayVerbs
from evolvent.view import report
from evolvent.view.escape import plain
from evolvent.worlds.base import World

__all__ = ["Job", "PanelConfig", "check_panel", "opened", "playing_on", "results_table", "write_report"]


class PanelConfig(Config):
    """What is played to measure a policy."""

    split: Literal["train", "dev", "test"] = Field(default="test", description="the split whose panels are played")
    limit: int = Field(default=200, ge=1, description="most tasks of a panel")

    def panel(self, *, temperature: float = 0.0) -> Panel:
        """The panels as the run's verbs take them; by default the likeliest token is played."""
        return Panel(self.split, None, self.limit, temperature)


@dataclass(frozen=True)
class Job:
    """A run that is to be opened.

    Args:
        folder: of the run.
        worlds: by name.
        record: what is kept about it.
        train, panel: how its verbs learn and measure.
        slots, max_tokens, threads: episodes open at once, longest action, threads of torch.
        plan: the stages to come, for the time left.
        practising, optimizer: how practices learn; None: as `train`, and by AdamW.
        choose, deciding: policies take their actions from those that worlds list, token by token or as wholes.
        verbs: makes what plays and learns (`scale.remote_play.RemoteVerbs` plays on an endpoint).
    """

    folder: Path
    worlds: Mapping[str, World]
    record: Record
    train: TrainConfig | None = None
    panel: Panel | None = None
    slots: int = 192
    max_tokens: int = 32
    threads: int = 1
    plan: Sequence[Planned] = ()
    practising: TrainConfig | None = None
    optimizer: OptimizerConfig | None = None
    choose: bool = False
    deciding: bool = False
    verbs: Callable[..., LocalVerbs] = LocalVerbs


@contextmanager
def playing_on(
    on: str, names: Sequence[str], worlds: Mapping[str, World], *, threads: int
) -> Iterator[Callable[..., LocalVerbs]]:
    """What makes the verbs of a job: they play here, or on a cluster (see `placed`); they learn here."""
    with placed(on, names, worlds, threads=threads) as players:
        yield LocalVerbs if players is None else partial(RayVerbs, players=players)


@contextmanager
def opened(job: Job, console: Console) -> Iterator[Run[Policy]]:
    """The run, locked, recorded and watched; its report is drawn again after every stage and at the end."""
    torch.set_num_threads(job.threads)
    verbs = job.verbs(
        job.worlds,
        job.train or TrainConfig(),
        job.panel or Panel(),
        slots=job.slots,
        max_tokens=job.max_tokens,
        practising=job.practising,
        optimizer=job.optimizer or OptimizerConfig(),
        choose=job.choose,
        deciding=job.deciding,
    )
    progress = Progress(console, job.plan)
    watched: Watched[Policy] = Watched(verbs, progress)
    with Run(job.folder, watched, seed=job.record.seed) as run:
        run.observe(partial(write_report, job.folder))
        try:
            with recorded(job.folder, job.record), progress:
                yield run
        finally:
            write_report(job.folder)


def write_report(folder: Path) -> None:
    """Write `report.html` of a run. Where that fails the run goes on, and a line says what happened."""
    try:
        with boundary(EvolventError, "a fault in drawing it"):
            report(folder, folder / "report.html")
    except EvolventError as error:
        open_console(stderr=True).print(plain(f"no report was written: {error}"), soft_wrap=True)


def check_panel(worlds: Mapping[str, World], panel: PanelConfig) -> int:
    """How many episodes measuring takes.

    Raises:
        ConfigError: an empty panel, or one of a single task, before any model is loaded.
    """
    return len(panel_starts(worlds, split=panel.split, limit=panel.limit))


def results_table(console: Console, rows: Sequence[Evaluation]) -> None:
    """Print evaluation rows with their 95 % intervals and their cost in tokens."""
    columns = ("world", "tier", "tasks", "success", "95 %", "errors", "generated")
    cells = [
        (
            row.world,
            row.tier,
            row.n,
            "withheld" if row.mean is None else rate(row.mean),
            "-" if row.low is None else f"{rate(row.low)} to {rate(row.high)}",
            row.errors,
            f"{row.generated:,}",
        )
        for row in rows
    ]
    console.print(table(console, columns, cells, numbers=("tasks", "success", "errors", "generated")))
