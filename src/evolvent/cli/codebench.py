"""`evolvent bench code`: pass@k of one agent on HumanEval, MBPP, or files in their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from math import isnan
from pathlib import Path

from pydantic import Field, model_validator
from rich.console import Console

from evolvent.bench.code import ProblemTally, check_ks, count_samples, mean_pass_at
from evolvent.cli.setup.agent_options import AgentConfig, AgentSetup, prepare_agent, resume_collection
from evolvent.cli.setup.record import RunRecord, choose_run_folder, collect_versions, record_run
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.progress import Progress
from evolvent.errors import ConfigError, HashMismatch, Problem, unknown_name_problem
from evolvent.files import plain_json, write_atomic
from evolvent.store.store import Store
from evolvent.trajectory import Start
from evolvent.view.escape import show_hidden
from evolvent.worlds.code.world import Code
from evolvent.worlds.manifest import manifests, sha256_of, verify_file

__all__ = ["COMMAND", "CodeBenchConfig", "run"]

_ANY = "any"


class CodeBenchConfig(AgentConfig):
    """Settings of `evolvent bench code`."""

    data: Path = Field(description="a file of problems, or the folder it lies in")
    set: str = Field(default=_ANY, description="whose hash the file must have: humaneval, mbpp-sanitized; any: none")
    accept_licence: bool = Field(default=False, description="your word that you may use a set of a limited licence")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    samples: int = Field(default=1, ge=1, description="responses to each problem")
    k: tuple[int, ...] = Field(default=(1,), description="of pass@k")
    split: str = Field(default="test", description="whose problems: train, dev or test, by the names of the files")
    limit: int | None = Field(default=None, ge=1, description="most problems; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest response")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/code-N")

    @model_validator(mode="after")
    def _check_settings(self) -> CodeBenchConfig:
        problems = list(check_ks(self.k, self.samples))
        set_names = [name for name, entry in manifests().items() if entry.world == "code"]
        if self.set not in (_ANY, *set_names):
            problems.append(unknown_name_problem("evaluation set", self.set, (_ANY, *set_names), location="set"))
        if self.samples > 1 and self.agent.kind != "expert" and not self.temperature:
            problems.append(
                Problem("samples", "several samples at temperature 0 are identical", "set --temperature 0.8")
            )
        if problems:
            raise ValueError("; ".join(f"{entry.what} ({entry.hint})" for entry in problems))
        return self


COMMAND = Command(
    "bench code",
    "Let an agent write programs, run them in boxes, and count: pass@k without bias.",
    CodeBenchConfig,
    main_field="data",
    resumes=True,
)


def run(argv: Sequence[str], console: Console) -> int:
    """Measures an agent on a set of problems; returns the exit code: 1 where a response could not be judged."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    path = (
        config.data
        if config.set == _ANY
        else verify_file(config.set, config.data, accept_licence=config.accept_licence)
    )
    with closing(Code(path)) as world:
        if config.set != _ANY and world.count != manifests()[config.set].items:
            raise HashMismatch(
                f"wrong number of rows in {path.name}", value=world.count, expected=manifests()[config.set].items
            )
        tasks = world.tasks(config.split, "all")[: config.limit]
        if not tasks:
            raise ConfigError("no problems in this split", value=config.split, expected="the split in the file names")
        with prepare_agent(config, {world.name: world}, verb=COMMAND.verb) as agent_setup:
            folder = args.resume or choose_run_folder("code", config.output_dir)
            with Store.open(folder / "trajectories", writing=True) as store:
                with record_run(folder, RunRecord(COMMAND.verb, config, config.seed)), Progress(console) as progress:
                    names = {
                        start: f"code/{start.task.id}/{start.sample}"
                        for task in tasks
                        for start in (Start(task, number) for number in range(config.samples))
                    }
                    problem_tallies = count_samples(
                        tasks,
                        resume_collection(
                            world, names, agent_setup, store=store, progress=progress, config=config, label="code"
                        ),
                    )
    row = _build_row(config, path, world, problem_tallies, agent_setup)
    write_atomic(folder / "code.json", plain_json(row) + "\n")
    _print_results(console, config, problem_tallies, world)
    console.print(show_hidden(f"results {folder / 'code.json'}"), soft_wrap=True)
    return 1 if any(tally.samples < config.samples for tally in problem_tallies) else 0


def _build_row(
    config: CodeBenchConfig, path: Path, world: Code, problem_tallies: Sequence[ProblemTally], agent_setup: AgentSetup
) -> dict[str, object]:
    usage = agent_setup.usage()
    intervals_by_k = {
        str(k): mean_pass_at(problem_tallies, k)
        for k in config.k
        if any(entry.samples >= k for entry in problem_tallies)
    }
    return {
        "player": agent_setup.player.name,
        "about": dict(agent_setup.player.about),
        "set": config.set,
        "file": path.name,
        "sha256": sha256_of(path) if path.is_file() else None,
        "split": config.split,
        "problems": len(problem_tallies),
        "left_out": len(world.problems),
        "samples": config.samples,
        "seed": config.seed,
        "pass_at": {
            k: [entry.mean, None if isnan(entry.low) else entry.low, None if isnan(entry.high) else entry.high]
            for k, entry in intervals_by_k.items()
        },
        "passed": [entry.passed for entry in problem_tallies],
        "judged": [entry.samples for entry in problem_tallies],
        "last_session": {"computed": usage.computed, "prompted": usage.prompted, "completed": usage.completed},
        "versions": collect_versions(),
    }


def _print_results(
    console: Console, config: CodeBenchConfig, problem_tallies: Sequence[ProblemTally], world: Code
) -> None:
    rows = []
    for k in config.k:
        if not any(tally.samples >= k for tally in problem_tallies):
            continue
        interval = mean_pass_at(problem_tallies, k)
        ends_text = "" if isnan(interval.low) else f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"
        rows.append((f"pass@{k}", interval.n, config.samples, f"{100 * interval.mean:.1f}", ends_text))
    columns = ("measure", "problems", "samples", "%", "95 %")
    console.print(render_table(console, columns, rows, numbers=columns[1:4]))
    if world.problems:
        console.print(f"{len(world.problems)} rows left out: unreadable, or tests that cannot be run", soft_wrap=True)
    num_unjudged = sum(config.samples - tally.samples for tally in problem_tallies)
    if num_unjudged:
        console.print(f"{num_unjudged} responses could not be judged; go on with --resume", soft_wrap=True)
