"""`evolvent bench code`: pass@k of one agent on HumanEval, MBPP, or files in their layouts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from math import isnan
from pathlib import Path

from pydantic import Field, model_validator
from rich.console import Console

from evolvent.bench.code import Tally, check_ks, pass_at, tallies
from evolvent.cli.agent_options import PlayedBy, Playing, playing, resumed
from evolvent.cli.console import table
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded, versions
from evolvent.cli.settings import Command, read_given
from evolvent.errors import ConfigError, HashMismatch, Problem, unknown
from evolvent.files import plain_json, write_atomic
from evolvent.store.store import Store
from evolvent.trajectory import Start
from evolvent.view.escape import plain
from evolvent.worlds.code.world import Code
from evolvent.worlds.manifest import manifests, sha256_of, verified

__all__ = ["COMMAND", "CodeBench", "run"]

_ANY = "any"


class CodeBench(PlayedBy):
    """Everything that can be chosen about `evolvent bench code`."""

    data: Path = Field(description="a file of problems, or the folder it lies in")
    set: str = Field(default=_ANY, description="whose hash the file must have: humaneval, mbpp-sanitized; any: none")
    accept_licence: bool = Field(default=False, description="your word that you may use a set of a limited licence")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    samples: int = Field(default=1, ge=1, description="responses to each problem")
    k: tuple[int, ...] = Field(default=(1,), description="of pass@k")
    split: str = Field(default="test", description="whose problems: train, dev or test, by the names of the files")
    limit: int | None = Field(default=None, ge=1, description="most problems; none: all")
    max_tokens: int | None = Field(default=512, ge=1, description="longest response")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/code-N")

    @model_validator(mode="after")
    def _possible(self) -> CodeBench:
        wrong = list(check_ks(self.k, self.samples))
        known = [name for name, one in manifests().items() if one.world == "code"]
        if self.set not in (_ANY, *known):
            wrong.append(unknown("evaluation set", self.set, (_ANY, *known), where="set"))
        if self.samples > 1 and self.agent != "expert" and not self.temperature:
            wrong.append(
                Problem("samples", "several samples at temperature 0 are the same one", "give --temperature 0.8")
            )
        if wrong:
            raise ValueError("; ".join(f"{one.what} ({one.hint})" for one in wrong))
        return self


COMMAND = Command(
    "bench code",
    "Let an agent write programs, run them in boxes, and count: pass@k without bias.",
    CodeBench,
    main="data",
    resumes=True,
)


def run(words: Sequence[str], console: Console) -> int:
    """Measure an agent on a set of problems; returns the exit code: 1 where a response could not be judged."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    path = (
        config.data if config.set == _ANY else verified(config.set, config.data, accept_licence=config.accept_licence)
    )
    with closing(Code(path)) as world:
        if config.set != _ANY and world.count != manifests()[config.set].items:
            raise HashMismatch(
                f"another number of rows in {path.name}", value=world.count, expected=manifests()[config.set].items
            )
        tasks = world.tasks(config.split, "all")[: config.limit]
        if not tasks:
            raise ConfigError("no problems of this split", value=config.split, expected="the split of the files' names")
        with playing(config, {world.name: world}, verb=COMMAND.verb) as by:
            folder = given.resume or new_folder("code", config.to)
            with Store.open(folder / "trajectories", writing=True) as store:
                with recorded(folder, Record(COMMAND.verb, config, config.seed)), Progress(console) as progress:
                    names = {
                        start: f"code/{start.task.id}/{start.sample}"
                        for task in tasks
                        for start in (Start(task, number) for number in range(config.samples))
                    }
                    counted = tallies(
                        tasks, resumed(world, names, by, store=store, progress=progress, config=config, label="code")
                    )
    row = _row(config, path, world, counted, by)
    write_atomic(folder / "code.json", plain_json(row) + "\n")
    _show(console, config, counted, world)
    console.print(plain(f"results {folder / 'code.json'}"), soft_wrap=True)
    return 1 if any(one.samples < config.samples for one in counted) else 0


def _row(config: CodeBench, path: Path, world: Code, counted: Sequence[Tally], by: Playing) -> dict[str, object]:
    spent = by.spent()
    found = {str(k): pass_at(counted, k) for k in config.k if any(one.samples >= k for one in counted)}
    return {
        "player": by.player.name,
        "about": dict(by.player.about),
        "set": config.set,
        "file": path.name,
        "sha256": sha256_of(path) if path.is_file() else None,
        "split": config.split,
        "problems": len(counted),
        "left_out": len(world.problems),
        "samples": config.samples,
        "seed": config.seed,
        "pass_at": {
            k: [one.mean, None if isnan(one.low) else one.low, None if isnan(one.high) else one.high]
            for k, one in found.items()
        },
        "passed": [one.passed for one in counted],
        "judged": [one.samples for one in counted],
        "last_session": {"computed": spent.computed, "prompted": spent.prompted, "completed": spent.completed},
        "versions": versions(),
    }


def _show(console: Console, config: CodeBench, counted: Sequence[Tally], world: Code) -> None:
    rows = []
    for k in config.k:
        if not any(one.samples >= k for one in counted):
            continue
        found = pass_at(counted, k)
        ends = "" if isnan(found.low) else f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        rows.append((f"pass@{k}", found.n, config.samples, f"{100 * found.mean:.1f}", ends))
    columns = ("measure", "problems", "samples", "%", "95 %")
    console.print(table(console, columns, rows, numbers=columns[1:4]))
    if world.problems:
        console.print(f"{len(world.problems)} rows left out: unreadable, or tests that cannot be run", soft_wrap=True)
    lost = sum(config.samples - one.samples for one in counted)
    if lost:
        console.print(f"{lost} responses could not be judged; go on with --resume", soft_wrap=True)
