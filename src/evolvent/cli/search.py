"""`evolvent search`: searches on the panels of worlds, by method and budget, with accuracy and cost."""

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

from evolvent.belief.named import DETECTORS, parse_detector
from evolvent.belief.outcomes import tabulate_outcomes
from evolvent.belief.stopping import AnyOf, Detector, StdBelow, TraceBelow
from evolvent.bench.suite import list_panels
from evolvent.cli.search_setup import SearchPlayerFactory, SearchSetupConfig, open_search_policies
from evolvent.cli.setup.model_defaults import print_budget, read_model_facts
from evolvent.cli.setup.prompt_data import check_isolation, print_world_notes
from evolvent.cli.setup.prompting import fill_history, load_prompted_worlds
from evolvent.cli.setup.record import RunRecord, check_code, choose_run_folder, record_run
from evolvent.cli.setup.run_setup import write_report
from evolvent.cli.setup.settings import Command, parse_command
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.cli.terminal.progress import PlannedStage, Progress
from evolvent.config import Choice
from evolvent.errors import ConfigError, Problem
from evolvent.files import append_line, plain_json, write_atomic
from evolvent.rollout.search import SearchOutcome, check_search, level_of, search_starts
from evolvent.search.settings import ForestConfig, find_search, forest_names
from evolvent.store.log import read_rows
from evolvent.store.store import Store
from evolvent.trajectory import Start, trajectory_name
from evolvent.view.escape import clip, show_hidden
from evolvent.view.searches import SearchCell, SearchRow, aggregate_cells, parse_search_row
from evolvent.worlds.base import World

__all__ = ["COMMAND", "SearchRunConfig", "describe_early_stops", "parse_detectors", "run"]


def parse_detectors(names: Iterable[str]) -> list[Detector]:
    """Parses the named detectors of votes.

    Raises:
        ConfigError: unknown detectors, and those that look at places; all of them.
    """
    parsed, problems = list[Detector](), list[Problem]()
    for name in names:
        try:
            parsed.append(parse_detector(name))
        except ConfigError as error:
            problems += error.problems
            continue
        parts = parsed[-1].detectors if isinstance(parsed[-1], AnyOf) else (parsed[-1],)
        if any(isinstance(part, StdBelow | TraceBelow) for part in parts):
            problems.append(
                Problem("stop", f"{name!r} needs positions, but votes do not have positions", ", ".join(DETECTORS[:4]))
            )
    if problems:
        raise ConfigError(problems)
    return parsed


def describe_early_stops(rows: Iterable[SearchRow]) -> list[str]:
    """Describes each search with a detector, compared with the same search without it on the same tasks.

    A false stop is a search that was ended early with a wrong answer. `Decided` has as many of them as the whole
    votes are wrong on these tasks; a lossy detector may have more.
    """
    last_rows = {row.key: row for row in rows}
    rows_by_arm: dict[tuple[str, str, int | None], list[SearchRow]] = {}
    for row in last_rows.values():
        rows_by_arm.setdefault((row.world, row.method, row.budget), []).append(row)
    lines = []
    for (world, method, budget), stopped_rows in rows_by_arm.items():
        base_method, _, detector = method.partition(" ")
        full_vote_rows = {row.task: row for row in rows_by_arm.get((world, base_method, budget), ())}
        if detector:
            title = f"{world}, {method}" + ("" if budget is None else f" at {budget:,}")
            rows_of_full_votes = [full_vote_rows[row.task] for row in stopped_rows if row.task in full_vote_rows]
            lines.append(f"{title}: {_describe_stops(stopped_rows, rows_of_full_votes, base_method)}")
    return lines


def _describe_stops(stopped_rows: Sequence[SearchRow], full_vote_rows: Sequence[SearchRow], base_method: str) -> str:
    stop_outcomes = tabulate_outcomes(
        [row.stopped for row in stopped_rows],
        [row.success for row in stopped_rows],
        [row.samples for row in stopped_rows],
    )
    text = f"{stop_outcomes.stops} of {stop_outcomes.episodes} ended early"
    false_stop_rate = stop_outcomes.rate("false_stop")
    if false_stop_rate is not None:
        text += (
            f", {stop_outcomes.false_stop} of them wrong (false stops {100 * false_stop_rate.mean:.1f} %, "
            f"{100 * false_stop_rate.low:.0f} to {100 * false_stop_rate.high:.0f})"
        )
    generated, full_generated = sum(row.generated for row in stopped_rows), sum(row.generated for row in full_vote_rows)
    if len(full_vote_rows) == len(stopped_rows) and full_generated:
        text += f"; {100 * (1 - generated / full_generated):.1f} % of the generated tokens of {base_method} saved"
    return text


_ROWS_FILE = "searches.jsonl"
_MAX_LISTED_ANSWERS = 10  # of a search that its row lists


def _resolve_alias(method: object) -> object:
    """Returns the method's main name: self-consistency is a vote of samples."""
    return "samples" if method in ("self-consistency", "self_consistency") else method


class SearchRunConfig(SearchSetupConfig):
    """Settings of `evolvent search`."""

    worlds: tuple[str, ...] = Field(default=("countdown",), description="the worlds to search in")
    methods: tuple[Annotated[str, BeforeValidator(_resolve_alias), Choice(forest_names)], ...] = Field(
        default=(), description="the searches to compare; none: search.method"
    )
    budgets: tuple[int, ...] = Field(default=(), description="each is searched with; none: no further limit")
    budget_unit: Literal["generated", "computed", "expansions"] = Field(
        default="generated", description="what budgets limit"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/search-N")
    split: Literal["train", "dev", "test"] = Field(default="test", description="whose panels are played")
    tiers: tuple[str, ...] = Field(default=(), description="the tiers that are played; none: all")
    limit: int = Field(default=100, ge=1, description="most tasks of a panel")
    stop: tuple[str, ...] = Field(
        default=(), description=f"detectors that end votes early, beside the whole vote: {', '.join(DETECTORS[:4])}"
    )
    trees: int = Field(default=2, ge=0, description="tasks of each world whose trees are kept, by method and budget")

    @model_validator(mode="after")
    def _check_settings(self) -> SearchRunConfig:
        errors = [f"budgets: got {budget}, expected 1 or more" for budget in self.budgets if budget < 1]
        try:
            parse_detectors(self.stop)
        except ConfigError as error:
            errors += [problem.describe() for problem in error.problems]
        for name in ("methods", "budgets", "stop"):
            duplicates = [
                str(name_or_budget) for name_or_budget, count in Counter(getattr(self, name)).items() if count > 1
            ]
            errors += [f"{name}: {', '.join(duplicates)} occurs twice"] if duplicates else []
        if self.budgets and getattr(self.search, self.budget_unit) is not None:
            errors.append(f"budgets and search.{self.budget_unit} limit the same: give one of them")
        if errors:
            raise ValueError("; ".join(errors))
        return self


COMMAND = Command(
    "search",
    "Search instead of decoding: accuracy against tokens and CPU seconds, by method and budget, beside "
    "greedy decoding, self-consistency (samples) and best of n at the same budgets.",
    SearchRunConfig,
    resumes=True,
    free_settings=("slots", "threads"),
)


@dataclass(frozen=True)
class SearchBatch:
    """The searches of one world by one method within one budget.

    Args:
        world: the world's name.
        search: the settings of each search.
        budget: the budget; None: no budget was requested.
        stop: the detector that ends them early; empty: none.
        starts: the starts of the searches.
        kept_task_ids: ids of the tasks whose trees are kept.
    """

    world: str
    search: ForestConfig
    budget: int | None
    stop: str
    starts: tuple[Start, ...]
    kept_task_ids: frozenset[str]

    @property
    def stage(self) -> str:
        """Returns the prefix of its trajectories' ids."""
        method = self.method.replace(" ", "-").replace(":", "_").replace("*", "-x")
        return method if self.budget is None else f"{method}-{self.budget}"

    @property
    def method(self) -> str:
        """Returns the method's name in rows: the search, the number of trees of a problem, and the early-stop
        detector.
        """
        trees = f"*{self.search.trees}" if self.search.trees > 1 else ""
        return f"{self.search.method}{trees} {self.stop}".rstrip()


def run(argv: Sequence[str], console: Console) -> int:
    """Searches; returns the exit code: 1 where an episode could not be scored."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    facts = read_model_facts(config.policy)
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    worlds_by_name = load_prompted_worlds(config.worlds, prompt)
    print_world_notes(console, worlds_by_name)
    check_isolation(worlds_by_name)
    print_budget(console, facts, config.device)
    batches = _plan_batches(config, worlds_by_name)
    _check_history(config, batches, worlds_by_name)
    with open_search_policies(config, worlds_by_name) as player_factory:
        for batch in batches:
            player = player_factory.make_player(batch.search, stop=batch.stop)
            check_search(
                {batch.world: worlds_by_name[batch.world]},
                batch.search,
                has_scorer=player.scorer is not None,
                has_detector=player.stop is not None,
                dialect=player.policy.dialect,
            )
        config = fill_history(config, player_factory.policy, console)
        folder = args.resume or choose_run_folder("search", config.output_dir)
        check_code(folder, worlds_by_name, is_resumed=args.resume is not None)
        rows = _search_batches(
            config, folder, console, batches=batches, worlds_by_name=worlds_by_name, player_factory=player_factory
        )
    search_cells = aggregate_cells(rows)
    _print_tables(console, search_cells)
    for line in describe_early_stops(rows):
        console.print(show_hidden(line), soft_wrap=True)
    if config.search.value in ("rollouts", "reward") or config.search.terminal == "reward":
        console.print(
            "values come from the world's own verdicts: searches and best_of_n are told what is right or earned",
            soft_wrap=True,
        )
    error_counts = _count_errors(rows)
    for message, count in error_counts.most_common(3):
        console.print(show_hidden(f"{count} not scored, {clip(message, 300)}"), soft_wrap=True)
    if error_counts:
        console.print(show_hidden(f"play them again with: evolvent search --resume {folder}"), soft_wrap=True)
    console.print(show_hidden(f"report {folder / 'report.html'}"), soft_wrap=True)
    return 1 if error_counts else 0


def _check_history(
    config: SearchRunConfig, batches: Sequence[SearchBatch], worlds_by_name: Mapping[str, World]
) -> None:
    """Checks, before weights are read, that no search over turns is to render its past anew."""
    over_turns = [batch.world for batch in batches if level_of(worlds_by_name[batch.world], batch.search) == "turn"]
    if over_turns and config.agent.history == "template":
        message = f"searches over turns keep the tokens of earlier turns, as in world {over_turns[0]!r}; got 'template'"
        raise ConfigError([Problem("agent.history", message, "set --agent.history append")])


def _search_batches(
    config: SearchRunConfig,
    folder: Path,
    console: Console,
    *,
    batches: Sequence[SearchBatch],
    worlds_by_name: Mapping[str, World],
    player_factory: SearchPlayerFactory,
) -> list[SearchRow]:
    """Searches batch by batch; the report is redrawn after each batch, and whenever the run ends."""
    plan = [PlannedStage("search", len(batch.starts)) for batch in batches]
    with Store.open(folder / "trajectories", writing=True) as store:
        console.print(show_hidden(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
        try:
            with record_run(folder, RunRecord("search", config, config.seed)), Progress(console, plan) as progress:
                rows = _read_finished_rows(folder)
                for batch in batches:
                    rows += _search_batch(
                        batch,
                        worlds_by_name,
                        player_factory,
                        SearchRecorder(config, folder, store, progress, tuple(rows)),
                    )
                    write_report(folder)
        finally:
            write_report(folder)
    return rows


# ---------------------------------------------------------------- what is searched


def _plan_batches(config: SearchRunConfig, worlds_by_name: Mapping[str, World]) -> list[SearchBatch]:
    """Returns all batches, world by world: greedy decoding, then all methods within each budget.

    Raises:
        ConfigError: an unknown tier, a world without tasks, or a method with contradictory settings; all of them.
    """
    panels = list_panels(worlds_by_name, split=config.split, tiers=config.tiers, limit=config.limit, own_horizons=True)
    searches = _configure_searches(config)
    batches = []
    for world in worlds_by_name:
        starts = tuple(start for panel in panels if panel.world is worlds_by_name[world] for start in panel.starts())
        kept_task_ids = frozenset(start.task.id for start in starts[: config.trees])
        batches += [
            SearchBatch(world, search, budget, stop, starts, kept_task_ids) for search, budget, stop in searches
        ]
    return batches


def _configure_searches(config: SearchRunConfig) -> list[tuple[ForestConfig, int | None, str]]:
    methods = list(dict.fromkeys(["samples", "best_of_n", *(config.methods or (config.search.method,))]))
    if config.search.value == "none":  # there is nothing to choose the best by
        methods.remove("best_of_n") if "best_of_n" not in config.methods else None
    methods = [method for method in methods if method != "greedy"]
    methods_and_budgets: list[tuple[str, int | None]] = [("greedy", None)]
    methods_and_budgets += [(method, budget) for budget in config.budgets or (None,) for method in methods]
    searches, problems = [], []
    for method, budget, stop in _add_detectors(methods_and_budgets, config.stop):
        try:
            searches.append((_configure_search(config, method, budget), budget, stop))
        except ValidationError as error:
            problems += [
                Problem(f"search ({method})", str(error_detail["msg"]).removeprefix("Value error, "))
                for error_detail in error.errors()
            ]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return searches


def _add_detectors(
    methods_and_budgets: Iterable[tuple[str, int | None]], stops: Sequence[str]
) -> Iterator[tuple[str, int | None, str]]:
    """Yields each search as it is, and, where it has votes to end early, with each detector."""
    for method, budget in methods_and_budgets:
        yield method, budget, ""
        if method != "rstar" and find_search(method).can_stop:
            yield from ((method, budget, stop) for stop in stops)


def _configure_search(config: SearchRunConfig, method: str, budget: int | None) -> ForestConfig:
    """Returns the settings of one method: those of `search`, within the budget.

    Methods that only sample take as many samples as the budget holds, and samples without values are put to the
    vote. Votes that a detector may end have `search.paths` samples, and are compared with whole votes of as many.
    """
    changes: dict[str, Any] = {"method": method}
    if budget is not None:
        changes[config.budget_unit] = budget
        budgeted_methods = ("best_of_n",) if config.stop else ("samples", "best_of_n")
        changes |= {"paths": budget} if method in budgeted_methods else {}
    if method == "samples":
        changes["rule"] = "majority"
    return ForestConfig(**{**config.search.model_dump(), **changes})


# ---------------------------------------------------------------- searching


@dataclass(frozen=True)
class SearchRecorder:
    """The outputs of a batch: the folder and store of the run, its progress display, and the earlier rows."""

    config: SearchRunConfig
    folder: Path
    store: Store
    progress: Progress
    earlier_rows: tuple[SearchRow, ...]

    def finished_tasks(self, batch: SearchBatch) -> set[str]:
        """Returns the ids of a batch's tasks that have a score."""
        batch_rows = (row for row in self.earlier_rows if self._is_in_batch(row, batch))
        return {row.task for row in batch_rows if row.success is not None}

    def count_failures(self, batch: SearchBatch) -> Counter[str]:
        """Returns how often each task of a batch was searched without a score."""
        return Counter(row.task for row in self.earlier_rows if self._is_in_batch(row, batch) and row.success is None)

    def _is_in_batch(self, row: SearchRow, batch: SearchBatch) -> bool:
        return (row.world, row.method, row.budget) == (batch.world, batch.method, batch.budget)


def _search_batch(
    batch: SearchBatch,
    worlds_by_name: Mapping[str, World],
    player_factory: SearchPlayerFactory,
    recorder: SearchRecorder,
) -> list[SearchRow]:
    """Searches the unfinished starts; every search is stored and has its row as soon as it ends."""
    config, progress = recorder.config, recorder.progress
    finished, tries = recorder.finished_tasks(batch), recorder.count_failures(batch)
    remaining_starts = [start for start in batch.starts if start.task.id not in finished]
    if not remaining_starts:
        return []
    remaining_starts.sort(key=lambda start: start.task.id not in batch.kept_task_ids)  # trees are of the first starts

    def name_of(start: Start) -> str:
        """Returns the trajectory name of a start; a repeated search gets a new one."""
        base_name = trajectory_name(start, batch.stage)
        return f"{base_name}~{tries[start.task.id]}" if tries[start.task.id] else base_name

    search_stream = search_starts(
        worlds_by_name,
        remaining_starts,
        batch.search,
        player=player_factory.make_player(batch.search, stop=batch.stop),
        seed=config.seed,
        slots=config.slots,
        name=name_of,
        trees=sum(start.task.id in batch.kept_task_ids for start in remaining_starts),
    )
    stored_ids = set(recorder.store.ids(prefix=f"{batch.stage}/"))
    rows: list[SearchRow] = []
    progress.begin("search", f"{batch.world} {batch.stage}", len(remaining_starts))
    with closing(search_stream) as outcomes_stream:
        for outcome, cpu_s in _measure_cpu_time(outcomes_stream):
            if outcome.trajectory.id not in stored_ids:  # it may have been stored, and its row not
                recorder.store.append(outcome.trajectory)
            line = _build_row(batch, outcome, cpu_s=cpu_s, budget_unit=config.budget_unit)
            _write_tree(recorder.folder, batch, outcome, line)
            append_line(recorder.folder / _ROWS_FILE, line)
            rows += filter(None, [parse_search_row(line)])
            scored = [row.success for row in rows if row.success is not None]
            success_metric = {"success": sum(scored) / len(scored)} if scored else {}
            progress.update({"episodes": len(rows), **success_metric})
    progress.end()
    return rows


def _measure_cpu_time(outcomes_stream: Iterable[SearchOutcome]) -> Iterator[tuple[SearchOutcome, float]]:
    """Yields each search with the CPU seconds since the previous one; as searches overlap, only the sum is
    meaningful.
    """
    last_time = time.process_time()
    for outcome in outcomes_stream:
        current_time = time.process_time()
        yield outcome, current_time - last_time
        last_time = current_time


def _build_row(batch: SearchBatch, outcome: SearchOutcome, *, cpu_s: float, budget_unit: str) -> dict[str, Any]:
    """Builds the row of a search as JSON values."""
    task, trajectory, error = outcome.start.task, outcome.trajectory, outcome.trajectory.error
    error_text = "" if error is None else error.summary
    error_text = error_text or ("its world gave no verdict" if trajectory.success is None else "")
    return {
        "world": batch.world,
        "tier": task.tier,
        "kind": task.kind,
        "task": task.id,
        "method": batch.method,
        "budget": batch.budget,
        "of": budget_unit if batch.budget is not None else "",
        "success": trajectory.success,
        "unit": trajectory.score.unit,
        "passed": outcome.passed,
        "answer": _decided_answer(outcome),
        "answers": list(outcome.answers[:_MAX_LISTED_ANSWERS]),
        "samples": sum(answer["count"] for answer in outcome.answers),
        "ended_by": outcome.ended_by,
        "spent": asdict(outcome.spent),
        "cpu_s": round(cpu_s, 6),
        "dropped": outcome.dropped,
        "error": error_text,
        "trajectory": trajectory.id,
        "stopped": outcome.stopped,
        "spared": outcome.spared,
    }


def _decided_answer(outcome: SearchOutcome) -> str:
    """Returns the answer with the greatest weight among the parsed ones, the first of equal ones; "" without any."""
    parsed_answers = [answer for answer in outcome.answers if answer["answer"] is not None]
    return str(max(parsed_answers, key=lambda answer: float(answer["weight"]))["answer"]) if parsed_answers else ""


def _write_tree(folder: Path, batch: SearchBatch, outcome: SearchOutcome, line: Mapping[str, Any]) -> None:
    """Writes the tree of a search whose tree is kept; several trees of a problem have a file each."""
    task = outcome.start.task
    if not outcome.tree or task.id not in batch.kept_task_ids:
        return
    facts = {name: line[name] for name in ("world", "task", "method", "budget", "of", "success", "answer")}
    trees = outcome.forest or (outcome.tree,)
    for number, tree in enumerate(trees, 1):
        tree_position = {"number": number, "forest": len(trees)} if outcome.forest else {}
        name = f"{batch.stage}-{task.id}-{number}.json" if outcome.forest else f"{batch.stage}-{task.id}.json"
        row = {**facts, **tree_position, "tree": tree}
        write_atomic(folder / "trees" / name, plain_json(row).encode("utf-8", "backslashreplace"))


def _read_finished_rows(folder: Path) -> list[SearchRow]:
    """Reads the searches that a run has finished."""
    return [row for line in read_rows(folder / _ROWS_FILE) if (row := parse_search_row(line)) is not None]


# ---------------------------------------------------------------- what is told


def _print_tables(console: Console, search_cells: Sequence[SearchCell]) -> None:
    """Prints a table for each world: accuracy and cost, as means over tasks."""
    columns = ("method", "budget", "right, % (95 %)", "any", "generated", "computed", "CPU s")
    for world in dict.fromkeys(cell.world for cell in search_cells):
        world_cells = [cell for cell in search_cells if cell.world == world]
        num_columns = (
            7 if all(" " not in cell.method for cell in world_cells) else 6
        )  # CPU seconds give way to names of detectors
        console.print(show_hidden(f"\n{world}: {max(cell.n for cell in world_cells)} tasks"), soft_wrap=True)
        rows = [
            (
                cell.method,
                None if cell.budget is None else f"{cell.budget:,}",
                _format_accuracy(cell),
                None if cell.passed is None else f"{100 * cell.passed:.1f}",
                f"{cell.generated:,.0f}",
                None if cell.computed is None else f"{cell.computed:,.0f}",
                f"{cell.cpu_s:.2f}",
            )
            for cell in world_cells
        ]
        console.print(
            render_table(
                console, columns[:num_columns], [row[:num_columns] for row in rows], numbers=columns[1:num_columns]
            )
        )
    for cell in (cell for cell in search_cells if cell.unanswered):
        title = f"{cell.world}, {cell.method}" + ("" if cell.budget is None else f" at {cell.budget:,}")
        console.print(
            show_hidden(
                f"{title}: {cell.unanswered} of {cell.n} searches came to no end within their limits, "
                "and count as what they had written by then"
            ),
            soft_wrap=True,
        )
    console.print(
        "any: % of tasks of which a sample is right; tokens and CPU seconds: the mean of a task", soft_wrap=True
    )
    num_errors, num_tasks = sum(cell.errors for cell in search_cells), sum(cell.n for cell in search_cells)
    console.print(f"not gradable: {format_rate(num_errors / num_tasks) if num_tasks else '-'}", soft_wrap=True)


def _format_accuracy(cell: SearchCell) -> str:
    if cell.rate is None:
        return f"{cell.errors} not scored"
    return f"{100 * cell.rate.mean:.1f} ({100 * cell.rate.low:.0f} to {100 * cell.rate.high:.0f})"


def _count_errors(rows: Iterable[SearchRow]) -> Counter[str]:
    """Counts the errors of unscored searches by message; only the last try of a search counts."""
    last_rows = {row.key: row for row in rows}
    return Counter(row.error for row in last_rows.values() if row.success is None)
