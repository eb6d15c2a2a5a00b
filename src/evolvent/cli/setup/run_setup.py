"""Setup shared by the commands that run a model: panels, a run with progress display, its report and final policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.backends import open_cluster_players
from evolvent.cli.setup.prompting import Prompt
from evolvent.cli.setup.record import RunRecord, record_run
from evolvent.cli.terminal.console import format_rate, open_console, render_table
from evolvent.cli.terminal.progress import PlannedStage, Progress, ProgressBackend
from evolvent.config import Config
from evolvent.errors import EvolventError, boundary
from evolvent.models.placement import Placement
from evolvent.rollout.evaluate import panel_starts
from evolvent.run import Evaluation, Run, world_code
from evolvent.view import report
from evolvent.view.escape import clip, show_hidden
from evolvent.worlds.base import World

if TYPE_CHECKING:  # a mistake in the settings is reported before torch is imported
    from evolvent.agents.candidates import CandidateDivisor
    from evolvent.learn.learner import TrainConfig
    from evolvent.learn.optim.make import OptimizerConfig
    from evolvent.learn.parallel.ranks import Ranks
    from evolvent.models.policy import Policy
    from evolvent.scale.local_backend import EvaluationPanel, LocalBackend, RolloutDtype

__all__ = [
    "EvaluationConfig",
    "RunSetup",
    "count_panel_episodes",
    "open_backend",
    "open_run",
    "print_results",
    "print_verdict",
    "write_report",
]


class EvaluationConfig(Config):
    """Settings of the panels that measure a policy."""

    split: Literal["train", "dev", "test"] = Field(default="test", description="the split whose panels are played")
    limit: int = Field(default=200, ge=1, description="most tasks of a panel")

    def make_panel(self, *, temperature: float = 0.0) -> EvaluationPanel:
        """Returns the panels as the backend takes them; by default the most likely token is played."""
        from evolvent.scale.local_backend import EvaluationPanel

        return EvaluationPanel(self.split, None, self.limit, temperature)


@dataclass(frozen=True)
class RunSetup:
    """The setup of a run that is to be opened.

    Args:
        folder: the folder of the run.
        worlds: the worlds by name.
        record: the record that is kept about it.
        train: settings of training by `fit`; None: those that fit the policy.
        panel: settings of the measurement.
        slots: number of simultaneous episodes.
        max_tokens: maximum tokens of an action.
        threads: threads of torch.
        plan: the stages to come, for the estimate of the time left.
        rl_train: training settings of RL; None: as `train`, or those that fit the policy.
        optimizer: the optimizer of RL; None: AdamW.
        restrict_to_admissible: whether actions are sampled among those that worlds list, token by token.
        action_level: whether policies choose among the listed actions as wholes.
        candidate_divisor: what the log-probability of a listed action is divided by.
        placement: where and how policies run.
        rollout_dtype: numbers of the weights that play; None: those that are trained.
        engine_bytes: memory for the keys and values of what is played; None: half of what is free.
        ranks: this process among those that train together. The first one writes the run.
        backend_factory: builds the backend that plays and trains (`scale.endpoint_backend` plays on an endpoint);
            None: `LocalBackend`.
    """

    folder: Path
    worlds: Mapping[str, World]
    record: RunRecord
    train: TrainConfig | None = None
    panel: EvaluationPanel | None = None
    slots: int = 192
    max_tokens: int = 32
    threads: int = 1
    plan: Sequence[PlannedStage] = ()
    rl_train: TrainConfig | None = None
    optimizer: OptimizerConfig | None = None
    restrict_to_admissible: bool = False
    action_level: bool = False
    candidate_divisor: CandidateDivisor = "words"
    rollout_dtype: RolloutDtype | None = None
    engine_bytes: int | None = None
    ranks: Ranks | None = None
    backend_factory: Callable[..., LocalBackend] | None = None
    placement: Placement = field(default_factory=Placement)


@contextmanager
def open_backend(
    backend: str,
    world_names: Sequence[str],
    worlds: Mapping[str, World],
    *,
    threads: int,
    prompt: Prompt | None = None,
) -> Iterator[Callable[..., LocalBackend]]:
    """Yields the factory of a run's backend, which plays here or on a cluster (`open_cluster_players`) and trains
    here.
    """
    from evolvent.scale.local_backend import LocalBackend
    from evolvent.scale.ray_backend import RayBackend

    with open_cluster_players(backend, world_names, worlds, threads=threads, prompt=prompt) as player_pool:
        yield LocalBackend if player_pool is None else partial(RayBackend, players=player_pool)


@contextmanager
def open_run(setup: RunSetup, console: Console) -> Iterator[Run[Policy]]:
    """Opens the run: locked, recorded and displayed; its report is redrawn after every stage and at the end.

    Of several ranks the first does that. The others open the run when it has, and none goes on before all have.
    """
    import torch

    from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
    from evolvent.scale.ranks_backend import open_shared_run

    torch.set_num_threads(setup.threads)
    backend = (setup.backend_factory or LocalBackend)(
        setup.worlds,
        setup.train,
        setup.panel or EvaluationPanel(),
        slots=setup.slots,
        max_tokens=setup.max_tokens,
        rl_train=setup.rl_train,
        optimizer=setup.optimizer,
        restrict_to_admissible=setup.restrict_to_admissible,
        action_level=setup.action_level,
        candidate_divisor=setup.candidate_divisor,
        placement=setup.placement,
        rollout_dtype=setup.rollout_dtype,
        engine_bytes=setup.engine_bytes,
    )
    progress = Progress(console, setup.plan)
    progress_backend: ProgressBackend[Policy] = ProgressBackend(backend, progress)
    code = world_code(setup.worlds)
    tell = partial(_print_line, console)
    ranks = setup.ranks

    def open_own(is_writing: bool) -> Run[Policy]:
        if is_writing:
            return Run(setup.folder, progress_backend, seed=setup.record.seed, code=code, tell=tell)
        return Run(setup.folder, backend, seed=setup.record.seed, code=code, tell=lambda line: None, writing=False)

    with open_shared_run(ranks, open_own) as run:
        if ranks is not None and not ranks.is_leader:
            yield run
            ranks.wait()
            return
        run.observe(partial(write_report, setup.folder))
        try:
            with record_run(setup.folder, setup.record), progress:
                yield run
                if ranks is not None:
                    ranks.wait()  # a rank that failed at the very end fails the run
        finally:
            write_report(setup.folder)


def _print_line(console: Console, line: str) -> None:
    console.print(show_hidden(line), soft_wrap=True, highlight=False)


def write_report(folder: Path) -> None:
    """Writes `report.html` of a run. Where that fails the run continues, and a line states the error."""
    try:
        with boundary(EvolventError, "a fault in drawing it"):
            report(folder, folder / "report.html")
    except EvolventError as error:
        open_console(stderr=True).print(show_hidden(f"no report was written: {error}"), soft_wrap=True)


def count_panel_episodes(worlds: Mapping[str, World], panel: EvaluationConfig) -> int:
    """Returns the number of episodes of a measurement.

    Raises:
        ConfigError: an empty panel, or a panel of a single task, before any model is loaded.
    """
    return len(panel_starts(worlds, split=panel.split, limit=panel.limit))


def print_verdict(console: Console, folder: Path) -> None:
    """Prints success before and after a training, and whether the policy learned or what kept it from learning."""
    from evolvent.view import read_run
    from evolvent.view.reinforcement import describe_training

    for line in describe_training(read_run(folder)):
        console.print(show_hidden(line), soft_wrap=not console.is_terminal)


def print_results(console: Console, rows: Sequence[Evaluation]) -> None:
    """Prints evaluation rows with their 95 % intervals, mean returns where these say more, and cost in tokens."""
    has_returns = any(row.mean_return is not None for row in rows)
    returns = ("return",) if has_returns else ()
    columns = ("world", "tier", "tasks", "success", "95 %", *returns, "errors", "invalid", "generated")
    cells = [
        (
            row.world,
            row.tier,
            row.n,
            "withheld" if row.mean is None else format_rate(row.mean),
            "-" if row.low is None else f"{format_rate(row.low)} to {format_rate(row.high)}",
            *([_format_return(row)] if has_returns else []),
            row.errors,
            format_rate(row.invalid / row.replies) if row.replies else "-",
            f"{row.generated:,}",
        )
        for row in rows
    ]
    numbers = ("tasks", "success", "return", "errors", "invalid", "generated")
    console.print(render_table(console, columns, cells, numbers=numbers))
    for row in rows:
        if row.metrics:
            means = ", ".join(f"{name} {value:.3g}" for name, value in row.metrics)
            console.print(show_hidden(f"{row.world} {row.tier}, mean at the end: {means}"), soft_wrap=True)
    for line in _describe_invalid_replies(rows):
        console.print(show_hidden(line), soft_wrap=True)


def _describe_invalid_replies(rows: Sequence[Evaluation]) -> list[str]:
    """Returns a line for every world in which replies were not actions, with the most frequent text."""
    lines = []
    for world in dict.fromkeys(row.world for row in rows):
        world_rows = [row for row in rows if row.world == world]
        invalid, replies = sum(row.invalid for row in world_rows), sum(row.replies for row in world_rows)
        texts = Counter[str]()
        for row in world_rows:
            texts.update(dict(row.invalid_texts))
        if texts:
            text, count = texts.most_common(1)[0]
            lines.append(
                f"{world}: {invalid} of {replies} replies were not actions, most often {count} times: "
                f"{clip(' '.join(text.split()), 160)!r}"
            )
    return lines


def _format_return(row: Evaluation) -> str:
    mean_return = row.mean if row.mean_return is None else row.mean_return
    return "withheld" if mean_return is None else f"{mean_return:.3f}"
