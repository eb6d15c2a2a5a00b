"""`evolvent eval POLICY`: measure a policy on its worlds' panels, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from evolvent.cli.backends import Placed
from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.registry import policy, worlds
from evolvent.cli.run_setup import Job, PanelConfig, check_panel, opened, playing_on, results_table
from evolvent.cli.settings import Command, OverWorlds, read_given

__all__ = ["COMMAND", "Eval", "run"]


class Eval(OverWorlds, Placed):
    """Everything that can be chosen about `evolvent eval`."""

    policy: str = Field(description="a model folder, a run (its last policy), or a size (xs, s, m; untrained)")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/eval-N")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    panel: PanelConfig = Field(default_factory=PanelConfig, description="the measurement")


COMMAND = Command(
    "eval",
    "Measure a policy on the panels of its worlds, with intervals.",
    Eval,
    main="policy",
    resumes=True,
    free=("on",),
)


def run(words: Sequence[str], console: Console) -> int:
    """Measure a policy; returns the exit code: 1 where an episode could not be scored."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    size = check_panel(made, config.panel)
    folder = given.resume or new_folder("eval", config.to)
    measured = policy(config.policy, list(made.values()), seed=config.seed)
    panel = config.panel.panel(temperature=config.temperature)
    with playing_on(config.on, config.worlds, made, threads=config.threads) as verbs:
        job = Job(
            folder,
            made,
            Record("eval", config, config.seed, ("base",)),
            panel=panel,
            slots=config.slots,
            max_tokens=config.max_tokens,
            threads=config.threads,
            plan=(Planned("evaluate", size),),
            verbs=verbs,
        )
        with opened(job, console) as running:
            rows = running.evaluate(measured, 0)
    results_table(console, rows)
    console.print(f"run {folder}", soft_wrap=True)
    return 1 if any(row.errors for row in rows) else 0
