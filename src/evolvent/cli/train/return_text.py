"""`evolvent train return_text RUN`: a policy over text that is asked for a return, learned from recorded episodes.

Every recorded step is learned below a line with its return-to-go (`methods/return_text.py`). The policy is measured in
the worlds of the run, where the line asks for the best recorded return or for `--asked`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import check_named_inputs, load_worlds, require_train_extra, resolve_policy
from evolvent.cli.setup.run_setup import (
    EvaluationConfig,
    RunSetup,
    count_panel_episodes,
    open_run,
    print_results,
    write_report,
)
from evolvent.cli.setup.settings import Command, ModelConfig, parse_command
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.cli.train.data import find_run_worlds, holds_episodes, read_episodes, summarize_episodes
from evolvent.errors import ConfigError, Problem
from evolvent.learn.settings import TrainConfig
from evolvent.methods.return_text import ReturnTextConfig, condition_worlds, return_text
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.view.escape import show_hidden
from evolvent.view.redraw import redraw_repeatedly

__all__ = ["COMMANDS", "TrainReturnTextConfig", "run"]

_NAME = "return_text"


class TrainReturnTextConfig(ModelConfig):
    """Settings of `evolvent train return_text`."""

    data: Path = Field(description="a run or a file of recorded episodes, of any quality")
    policy: str = Field(default="xs", description="what to begin with: a size, a model, or a run")
    asked: float | None = Field(default=None, description="return that is asked for; none: the best recorded one")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/return_text-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    slots: int = Field(default=64, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the updates")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement in worlds")
    return_text: ReturnTextConfig = Field(default_factory=ReturnTextConfig, description="the method")

    def check_inputs(self) -> None:
        """Checks that the policy and the data exist; raises what `check_named_inputs` raises."""
        check_named_inputs(self.policy, self.data)


COMMANDS = {
    _NAME: Command(
        "train return_text",
        "Return-conditioned text: learn from episodes of any quality, ask for a return.",
        TrainReturnTextConfig,
        main_field="data",
        resumes=True,
        free_settings=("device",),
    )
}


def run(argv: Sequence[str], console: Console) -> int:
    """Trains a return-conditioned policy and measures it; returns the exit code. `argv` begins with the name."""
    args = parse_command(COMMANDS[_NAME], argv[1:], console)
    if args is None:
        return 0
    require_train_extra("evolvent train return_text")
    facts = read_model_facts(args.config.policy, adapter=args.config.adapter.kind)
    config = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    if not holds_episodes(config.data):
        raise ConfigError([Problem("data", f"{config.data} does not hold recorded episodes", "pass a run")])
    names = find_run_worlds(config.data, summarize_episodes(config.data))
    recorded = [trajectory for trajectory in read_episodes(config.data) if trajectory.steps]
    worlds = condition_worlds(load_worlds(names), recorded, config.return_text, returns=config.asked)
    count_panel_episodes(worlds, config.panel)
    base_policy = resolve_policy(config.policy, [*worlds.values()], seed=config.seed, placement=config.placement)
    folder = args.resume or choose_run_folder(_NAME, config.output_dir)
    setup = RunSetup(
        folder,
        worlds,
        RunRecord(f"train {_NAME}", config, config.seed, (_NAME,), _NAME),
        train=config.train,
        panel=config.panel.make_panel(),
        slots=config.slots,
        max_tokens=config.max_tokens,
        threads=config.threads,
        plan=[PlannedStage("fit", config.return_text.tokens), PlannedStage("evaluate", None)],
        placement=config.placement,
    )
    console.print(show_hidden(f"run {folder}, {len(recorded):,} episodes of {', '.join(worlds)}"), soft_wrap=True)
    with open_run(setup, console) as active_run, redraw_repeatedly(partial(write_report, folder)):
        arm = active_run.arm(_NAME)
        policy = return_text(
            adapt(base_policy, config.adapter, seed=config.seed), recorded, config=config.return_text, run=arm
        )
        policy.save(folder / "model")
        rows = arm.evaluate(policy, 1)
    print_results(console, rows)
    console.print(show_hidden(f"model  {folder / 'model'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0
