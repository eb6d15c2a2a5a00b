"""`evolvent search`: searches on the panels of worlds, method by method and budget by budget, and what they cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from rich.console import Console

from evolvent.belief.named import DETECTORS, read_detector
from evolvent.belief.outcomes import outcomes
from evolvent.belief.stopping import AnyOf, Detector, StdBelow, TraceBelow
from evolvent.bench.suite import contests
from evolvent.cli.console import rate, table
from evolvent.cli.progress import Planned, Progress
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import worlds
from evolvent.cli.run_setup import write_report
from evolvent.cli.search_setup import SearchedBy, Searchers, searchers
from evolvent.cli.settings import Command, read_given
from evolvent.config import Choice
from evolvent.errors import ConfigError, Problem
from evolvent.files import append_line, plain_json, write_atomic
from evolvent.rollout.search import Searched, check_search, searching
from evolvent.search.settings import ForestConfig, find_search, forest_names
from evolvent.store.ledger import read_rows
from evolvent.store.store import Store
from evolvent.trajectory import Start, trajectory_name
from evolvent.view.escape import clip, plain
from evolvent.view.searches import SearchCell, SearchRow, cells, search_row
from evolvent.worlds.base import World

__all__ = ["COMMAND", "SearchRun", "detectors", "run", "stopped_lines"]


def detectors(names: Iterable[str]) -> list[Detector]:
    """The detectors of votes that are named.

    Raises:
        ConfigError: unknown ones, and those that look at places; all of them.
    """
    found, problems = list[Detector](), list[Problem]()
    for name in names:
        try:
            found.append(read_detector(name))
        except ConfigError as error:
            problems += error.problems
            continue
        parts = found[-1].detectors if isinstance(found[-1], AnyOf) else (found[-1],)
        if any(isinstance(part, StdBelow | TraceBelow) for part in parts):
            problems.append(Problem("stop", f"{name!r} looks at places, and votes have none", ", ".join(DETECTORS[:4])))
    if problems:
        raise ConfigError(problems)
    return found


def stopped_lines(rows: Iterable[SearchRow]) -> list[str]:
    """A line for each search with a detector, beside the same one without it on the same tasks.

    A false stop is a search that was ended early with a wrong answer. `Decided` has as many of them as the whole votes
    are wrong on these tasks; a lossy detector may have more.
    """
    last = {row.key: row for row in rows}
    arms: dict[tuple[str, str, int | None], list[SearchRow]] = {}
    for row in last.values():
        arms.setdefault((row.world, row.method, row.budget), []).append(row)
    found = []
    for (world, method, budget), own in arms.items():
        plain, _, detector = method.partition(" ")
        whole = {row.task: row for row in arms.get((world, plain, budget), ())}
        if detector:
            where = f"{world}, {method}" + ("" if budget is None else f" at {budget:,}")
            found.append(f"{where}: {_stop_line(own, [whole[row.task] for row in own if row.task in whole], plain)}")
    return found


def _stop_line(own: Sequence[SearchRow], whole: Sequence[SearchRow], plain: str) -> str:
    table = outcomes([row.stopped for row in own], [row.success for row in own], [row.samples for row in own])
    told = f"{table.stops} of {table.episodes} ended early"
    wrong = table.rate("false_stop")
    if wrong is not None:
        told += (
            f", {table.false_stop} of them wrong (false stops {100 * wrong.mean:.1f} %, "
            f"{100 * wrong.low:.0f} to {100 * wrong.high:.0f})"
        )
    spent, before = sum(row.generated for row in own), sum(row.generated for row in whole)
    if len(whole) == len(own) and before:
        told += f"; {100 * (1 - spent / before):.1f} % of the generated tokens of {plain} saved"
    return told


_ROWS = "searches.jsonl"
_ANSWERS = 10  # of a search that its row lists


def _plain_name(method: object) -> object:
    """Self-consistency is samples that are put to the vote."""
    return "samples" if method in ("self-consistency", "self_consistency") else method


class SearchRun(SearchedBy):
    """Everything that can be chosen about `evolvent search`."""

    worlds: tuple[str, ...] = Field(default=("countdown",), description="the worlds to search in")
    methods: tuple[Annotated[str, BeforeValidator(_plain_name), Choice(forest_names)], ...] = Field(
        default=(), description="the searches to compare; none: search.method"
    )
    budgets: tuple[int, ...] = Field(default=(), description="each is searched with; none: no further limit")
    of: Literal["generated", "computed", "expansions"] = Field(default="generated", description="what budgets limit")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/search-N")
    split: Literal["train", "dev", "test"] = Field(default="test", description="whose panels are played")
    tiers: tuple[str, ...] = Field(default=(), description="the tiers that are played; none: all")
    limit: int = Field(default=100, ge=1, description="most tasks of a panel")
    stop: tuple[str, ...] = Field(
        default=(), description=f"detectors that end votes early, beside the whole vote: {', '.join(DETECTORS[:4])}"
    )
    trees: int = Field(default=2, ge=0, description="tasks of each world whose trees are kept, by method and budget")

    @model_validator(mode="after")
    def _agree(self) -> SearchRun:
        wrong = [f"budgets are 1 or more, got {budget}" for budget in self.budgets if budget < 1]
        try:
            detectors(self.stop)
        except ConfigError as error:
            wrong += [f"{problem.what} ({problem.hint})" for problem in error.problems]
        for name in ("methods", "budgets", "stop"):
            twice = [str(one) for one, count in Counter(getattr(self, name)).items() if count > 1]
            wrong += [f"{name} name {', '.join(twice)} twice"] if twice else []
        if self.budgets and getattr(self.search, self.of) is not None:
            wrong.append(f"budgets and search.{self.of} limit the same: give one of them")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


COMMAND = Command(
    "search",
    "Search instead of decoding: accuracy against tokens and CPU seconds, by method and budget, beside "
    "greedy decoding, self-consistency (samples) and best of n at the same budgets.",
    SearchRun,
    resumes=True,
    free=("slots", "threads"),
)


@dataclass(frozen=True)
class Batch:
    """The searches of one world by one method within one budget.

    Args:
        world: its name. how: the settings of each search. budget: None where none was asked for.
        stop: the detector that ends them early; empty: none.
        starts: the tasks. kept: ids of those whose trees are kept.
    """

    world: str
    how: ForestConfig
    budget: int | None
    stop: str
    starts: tuple[Start, ...]
    kept: frozenset[str]

    @property
    def stage(self) -> str:
        """What the ids of its trajectories begin with."""
        method = self.method.replace(" ", "-").replace(":", "_").replace("*", "-x")
        return method if self.budget is None else f"{method}-{self.budget}"

    @property
    def method(self) -> str:
        """What rows call it: the method, how many trees of a problem there are, the detector that ends it early."""
        trees = f"*{self.how.trees}" if self.how.trees > 1 else ""
        return f"{self.how.method}{trees} {self.stop}".rstrip()


def run(words: Sequence[str], console: Console) -> int:
    """Search; returns the exit code: 1 where an episode could not be scored."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    batches = _batches(config, made)
    with searchers(config, made) as by:
        for batch in batches:
            player = by.player(batch.how, stop=batch.stop)
            check_search(
                {batch.world: made[batch.world]},
                batch.how,
                judged=player.scorer is not None,
                stopped=player.stop is not None,
            )
        folder = given.resume or new_folder("search", config.to)
        rows = _all(config, folder, console, batches=batches, made=made, by=by)
    found = cells(rows)
    _tables(console, found)
    for line in stopped_lines(rows):
        console.print(plain(line), soft_wrap=True)
    if config.search.value in ("rollouts", "reward") or config.search.terminal == "reward":
        console.print(
            "values come from the world's own verdicts: searches and best_of_n are told what is right or earned",
            soft_wrap=True,
        )
    lost = _lost(rows)
    for message, count in lost.most_common(3):
        console.print(plain(f"{count} not scored, {clip(message, 300)}"), soft_wrap=True)
    if lost:
        console.print(plain(f"play them again with: evolvent search --resume {folder}"), soft_wrap=True)
    console.print(plain(f"report {folder / 'report.html'}"), soft_wrap=True)
    return 1 if lost else 0


def _all(
    config: SearchRun,
    folder: Path,
    console: Console,
    *,
    batches: Sequence[Batch],
    made: Mapping[str, World],
    by: Searchers,
) -> list[SearchRow]:
    """Search batch by batch; the report is drawn again after each, and whatever ends the run."""
    plan = [Planned("search", len(batch.starts)) for batch in batches]
    with Store.open(folder / "trajectories", writing=True) as store:
        console.print(plain(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
        try:
            with recorded(folder, Record("search", config, config.seed)), Progress(console, plan) as progress:
                rows = _read(folder)
                for batch in batches:
                    rows += _searched(batch, made, by, Keeping(config, folder, store, progress, tuple(rows)))
                    write_report(folder)
        finally:
            write_report(folder)
    return rows


# ---------------------------------------------------------------- what is searched


def _batches(config: SearchRun, made: Mapping[str, World]) -> list[Batch]:
    """Everything to be searched, world by world: greedy decoding, then all methods within each budget.

    Raises:
        ConfigError: no such tier, a world without tasks, a method whose settings contradict themselves; all of them.
    """
    panels = contests(made, split=config.split, tiers=config.tiers, limit=config.limit, own_horizons=True)
    hows = _hows(config)
    batches = []
    for world in made:
        starts = tuple(start for panel in panels if panel.world is made[world] for start in panel.starts())
        kept = frozenset(start.task.id for start in starts[: config.trees])
        batches += [Batch(world, how, budget, stop, starts, kept) for how, budget, stop in hows]
    return batches


def _hows(config: SearchRun) -> list[tuple[ForestConfig, int | None, str]]:
    methods = list(dict.fromkeys(["samples", "best_of_n", *(config.methods or (config.search.method,))]))
    if config.search.value == "none":  # there is nothing to choose the best by
        methods.remove("best_of_n") if "best_of_n" not in config.methods else None
    methods = [method for method in methods if method != "greedy"]
    wanted: list[tuple[str, int | None]] = [("greedy", None)]
    wanted += [(method, budget) for budget in config.budgets or (None,) for method in methods]
    found, problems = [], []
    for method, budget, stop in _arms(wanted, config.stop):
        try:
            found.append((_how(config, method, budget), budget, stop))
        except ValidationError as error:
            problems += [
                Problem(f"search ({method})", str(one["msg"]).removeprefix("Value error, ")) for one in error.errors()
            ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return found


def _arms(wanted: Iterable[tuple[str, int | None]], stops: Sequence[str]) -> Iterator[tuple[str, int | None, str]]:
    """Each search as it is, and, where it has votes to end early, with each detector."""
    for method, budget in wanted:
        yield method, budget, ""
        if method != "rstar" and find_search(method).can_stop:
            yield from ((method, budget, stop) for stop in stops)


def _how(config: SearchRun, method: str, budget: int | None) -> ForestConfig:
    """The settings of one method: those of `search`, within the budget.

    What only samples takes as many samples as the budget holds, and samples without values are put to the vote. Votes
    that a detector may end are of `search.paths`, beside whole votes of as many.
    """
    changes: dict[str, Any] = {"method": method}
    if budget is not None:
        changes[config.of] = budget
        fills = ("best_of_n",) if config.stop else ("samples", "best_of_n")
        changes |= {"paths": budget} if method in fills else {}
    if method == "samples":
        changes["rule"] = "majority"
    return ForestConfig(**{**config.search.model_dump(), **changes})


# ---------------------------------------------------------------- searching


@dataclass(frozen=True)
class Keeping:
    """Where a batch keeps what it finds: the folder and store of the run, its progress, the rows before."""

    config: SearchRun
    folder: Path
    store: Store
    progress: Progress
    before: tuple[SearchRow, ...]

    def finished(self, batch: Batch) -> set[str]:
        """Ids of the tasks of a batch that have a score."""
        own = (row for row in self.before if self._of(row, batch))
        return {row.task for row in own if row.success is not None}

    def tries(self, batch: Batch) -> Counter[str]:
        """How often tasks of a batch were searched in vain."""
        return Counter(row.task for row in self.before if self._of(row, batch) and row.success is None)

    def _of(self, row: SearchRow, batch: Batch) -> bool:
        return (row.world, row.method, row.budget) == (batch.world, batch.method, batch.budget)


def _searched(batch: Batch, made: Mapping[str, World], by: Searchers, keeping: Keeping) -> list[SearchRow]:
    """Search what is not finished; every search is stored and has its row as soon as it ends."""
    config, progress = keeping.config, keeping.progress
    done, tries = keeping.finished(batch), keeping.tries(batch)
    todo = [start for start in batch.starts if start.task.id not in done]
    if not todo:
        return []
    todo.sort(key=lambda start: start.task.id not in batch.kept)  # trees are of the first starts

    def name(start: Start) -> str:
        """Its id; what could not be scored is searched again under another one."""
        first = trajectory_name(start, batch.stage)
        return f"{first}~{tries[start.task.id]}" if tries[start.task.id] else first

    work = searching(
        made,
        todo,
        batch.how,
        player=by.player(batch.how, stop=batch.stop),
        seed=config.seed,
        slots=config.slots,
        name=name,
        trees=sum(start.task.id in batch.kept for start in todo),
    )
    known = set(keeping.store.ids(prefix=f"{batch.stage}/"))
    rows: list[SearchRow] = []
    progress.begin("search", f"{batch.world} {batch.stage}", len(todo))
    with closing(work) as found:
        for one, cpu_s in _timed(found):
            if one.trajectory.id not in known:  # it may have been stored, and its row not
                keeping.store.append(one.trajectory)
            line = _line(batch, one, cpu_s=cpu_s, of=config.of)
            _keep_tree(keeping.folder, batch, one, line)
            append_line(keeping.folder / _ROWS, line)
            rows += filter(None, [search_row(line)])
            scored = [row.success for row in rows if row.success is not None]
            share = {"success": sum(scored) / len(scored)} if scored else {}
            progress.note({"episodes": len(rows), **share})
    progress.end()
    return rows


def _timed(found: Iterable[Searched]) -> Iterator[tuple[Searched, float]]:
    """Each search with the CPU seconds since the one before: they go side by side, so only the sum means something."""
    before = time.process_time()
    for one in found:
        now = time.process_time()
        yield one, now - before
        before = now


def _line(batch: Batch, one: Searched, *, cpu_s: float, of: str) -> dict[str, Any]:
    """The row of a search, as JSON values."""
    task, trajectory, error = one.start.task, one.trajectory, one.trajectory.error
    lost = "" if error is None else f"{error.kind}: {error.message.partition('; got ')[0]}"
    lost = lost or ("its world gave no verdict" if trajectory.success is None else "")
    return {
        "world": batch.world,
        "tier": task.tier,
        "kind": task.kind,
        "task": task.id,
        "method": batch.method,
        "budget": batch.budget,
        "of": of if batch.budget is not None else "",
        "success": trajectory.success,
        "unit": trajectory.score.unit,
        "passed": one.passed,
        "answer": _answer(one),
        "answers": list(one.answers[:_ANSWERS]),
        "samples": sum(answer["count"] for answer in one.answers),
        "ended_by": one.ended_by,
        "spent": asdict(one.spent),
        "cpu_s": round(cpu_s, 6),
        "dropped": one.dropped,
        "error": lost,
        "trajectory": trajectory.id,
        "stopped": one.stopped,
        "spared": one.spared,
    }


def _answer(one: Searched) -> str:
    """What it decided for: the answer that most spoke for, the first of equal ones; one that was read, if any was."""
    read = [answer for answer in one.answers if answer["answer"] is not None]
    return str(max(read, key=lambda answer: float(answer["weight"]))["answer"]) if read else ""


def _keep_tree(folder: Path, batch: Batch, one: Searched, line: Mapping[str, Any]) -> None:
    """Write the tree of a search whose tree is kept; of several trees of a problem each has a file of its own."""
    task = one.start.task
    if not one.tree or task.id not in batch.kept:
        return
    about = {name: line[name] for name in ("world", "task", "method", "budget", "of", "success", "answer")}
    kept = one.forest or (one.tree,)
    for number, tree in enumerate(kept, 1):
        place = {"number": number, "forest": len(kept)} if one.forest else {}
        name = f"{batch.stage}-{task.id}-{number}.json" if one.forest else f"{batch.stage}-{task.id}.json"
        row = {**about, **place, "tree": tree}
        write_atomic(folder / "trees" / name, plain_json(row).encode("utf-8", "backslashreplace"))


def _read(folder: Path) -> list[SearchRow]:
    """The searches that a run has finished."""
    return [row for line in read_rows(folder / _ROWS) if (row := search_row(line)) is not None]


# ---------------------------------------------------------------- what is told


def _tables(console: Console, found: Sequence[SearchCell]) -> None:
    """A table a world: what is right, and what that cost; means of a task."""
    columns = ("method", "budget", "right, % (95 %)", "any", "generated", "computed", "CPU s")
    for world in dict.fromkeys(cell.world for cell in found):
        own = [cell for cell in found if cell.world == world]
        room = 7 if all(" " not in cell.method for cell in own) else 6  # CPU seconds give way to names of detectors
        console.print(plain(f"\n{world}: {max(cell.n for cell in own)} tasks"), soft_wrap=True)
        rows = [
            (
                cell.method,
                None if cell.budget is None else f"{cell.budget:,}",
                _right(cell),
                None if cell.passed is None else f"{100 * cell.passed:.1f}",
                f"{cell.generated:,.0f}",
                None if cell.computed is None else f"{cell.computed:,.0f}",
                f"{cell.cpu_s:.2f}",
            )
            for cell in own
        ]
        console.print(table(console, columns[:room], [row[:room] for row in rows], numbers=columns[1:room]))
    for cell in (cell for cell in found if cell.unanswered):
        where = f"{cell.world}, {cell.method}" + ("" if cell.budget is None else f" at {cell.budget:,}")
        console.print(
            plain(
                f"{where}: {cell.unanswered} of {cell.n} searches came to no end within their limits, "
                "and count as what they had written by then"
            ),
            soft_wrap=True,
        )
    console.print(
        "any: % of tasks of which a sample is right; tokens and CPU seconds: the mean of a task", soft_wrap=True
    )
    lost, whole = sum(cell.errors for cell in found), sum(cell.n for cell in found)
    console.print(f"not gradable: {rate(lost / whole) if whole else '-'}", soft_wrap=True)


def _right(cell: SearchCell) -> str:
    if cell.rate is None:
        return f"{cell.errors} not scored"
    return f"{100 * cell.rate.mean:.1f} ({100 * cell.rate.low:.0f} to {100 * cell.rate.high:.0f})"


def _lost(rows: Iterable[SearchRow]) -> Counter[str]:
    """Why searches have no score, and how many each time: of what was searched again only the last try counts."""
    last = {row.key: row for row in rows}
    return Counter(row.error for row in last.values() if row.success is None)
