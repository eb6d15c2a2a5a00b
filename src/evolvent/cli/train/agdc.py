"""`evolvent train agdc` and `evolvent bench seek`: searches for a source by learned policies and planners,
compared.

Both write a run folder: settings and state, every episode with its annotations, `table.json`, and a report. A
resumed run does not repeat finished parts: the learned policy, and the rows of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.setup.settings import AnyCommand, Command, DeviceConfig, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.progress import Progress
from evolvent.config import Config, as_dict
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import safe_join, write_atomic
from evolvent.methods.agdc import AGDCConfig
from evolvent.models.placement import find_device
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.belief.comparison import Chooser
    from evolvent.belief.traces import Trace
    from evolvent.belief.vector import FinishedSearch
    from evolvent.methods.agdc import Seeker
    from evolvent.trajectory import Start

__all__ = ["COMMAND", "COMMANDS", "SeekConfig", "TrainAGDCConfig", "run", "seek"]

_RECENT_EPISODES = 100  # whose success the progress line shows
_PLANNERS = ("random", "go_to_mean", "infotaxis", "entrotaxis", "dcee")
_SMALL_CONFIG = AGDCConfig()  # named, so that a setting given beside it leaves the others


class SourceSearchConfig(Config):
    """Settings of the comparison of searches, for learned policies and planners."""

    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    planners: tuple[str, ...] = Field(
        default=_PLANNERS, description="played beside: random, greedy, go_to_mean, infotaxis, entrotaxis, dcee"
    )
    split: Literal["train", "dev", "test"] = Field(default="test", description="whose sources are looked for")
    episodes: int = Field(default=64, ge=1, description="episodes of each, the same for all")
    particles: int | None = Field(default=None, ge=1, description="of a belief when measured; none: the preset's")
    pictures: int = Field(default=1, ge=0, le=8, description="episodes of each learned policy in the report")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    def check_planners(self) -> None:
        """Checks the names of planners; raises ConfigError with all unknown ones."""
        from evolvent.belief.planners import PLANNERS

        if problems := [
            unknown_name_problem("planner", name, PLANNERS, location="planners")
            for name in self.planners
            if name not in PLANNERS
        ]:
            raise ConfigError(problems)


class TrainAGDCConfig(SourceSearchConfig, DeviceConfig):
    """Settings of `evolvent train agdc`."""

    control: bool = Field(default=False, description="learn without cessation too, with the same budget")
    agdc: AGDCConfig = Field(default_factory=lambda: _SMALL_CONFIG.model_copy(), description="the method")


class SeekConfig(SourceSearchConfig):
    """Settings of `evolvent bench seek`."""

    policies: tuple[Path, ...] = Field(default=(), description="runs of train agdc, or folders with agdc.json")
    world: str = Field(default="plume/25", description="preset of the plume; with policies theirs is taken")
    moves: Literal["preset", "four", "twelve", "heading"] = Field(default="preset", description="of planners alone")
    detector: str | None = Field(default=None, description="such as trace:1; none: the policies', or the preset's")


COMMANDS: dict[str, AnyCommand] = {
    "agdc": Command(
        "train agdc",
        "Learn to search for a source and to know when it is found (AGDC); planners play beside.",
        TrainAGDCConfig,
        resumes=True,
        free_settings=("threads", "device"),
    ),
}
COMMAND: Command[SeekConfig] = Command(
    "bench seek",
    "Planners and saved policies of AGDC on the same searches for a source.",
    SeekConfig,
    resumes=True,
    free_settings=("threads",),
)


@dataclass(frozen=True)
class _SourceSearches:
    """The compared searches: the setting (world, detector), the learned policies by name, and the settings."""

    setting: AGDCConfig
    learned: Mapping[str, Seeker]
    config: SourceSearchConfig
    title: str


def run(argv: Sequence[str], console: Console) -> int:
    """Trains by AGDC and measures the result beside planners; returns the exit code. `argv` begins with "agdc"."""
    args = parse_command(COMMANDS[argv[0]], argv[1:], console)
    if args is None:
        return 0
    config: TrainAGDCConfig = args.config
    config.check_planners()
    _set_threads(config.threads)
    find_device(config.device)
    folder = args.resume or choose_run_folder("agdc", config.output_dir)
    arms = ("agdc", "without") if config.control else (config.agdc.arm,)
    names = {arm: config.agdc.algorithm if arm == "agdc" else f"{config.agdc.algorithm}/without" for arm in arms}
    console.print(show_hidden(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
    with record_run(folder, RunRecord("train agdc", config, config.agdc.seed, tuple(names.values()), "agdc")):
        learned = {
            names[arm]: _load_or_learn(
                config.agdc.model_copy(update={"arm": arm}),
                folder / _policy_folder_name(arm),
                console,
                device=config.device,
            )
            for arm in arms
        }
        searches = _SourceSearches(config.agdc, learned, config, f"AGDC, {config.agdc.algorithm.upper()}")
        _measure_all(folder, searches, console, curve=_read_curve(folder / _policy_folder_name(arms[0])))
    console.print(
        show_hidden(f"policy {folder / _policy_folder_name(arms[0])}\nreport {folder / 'report.html'}"), soft_wrap=True
    )
    return 0


def seek(argv: Sequence[str], console: Console) -> int:
    """Measures planners and saved policies; returns the exit code."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    config.check_planners()
    require_train_extra("evolvent bench seek")
    _set_threads(config.threads)
    learned = _load_saved(config.policies)
    setting = _resolve_setting(config, learned)
    folder = args.resume or choose_run_folder("seek", config.output_dir)
    with record_run(folder, RunRecord("bench seek", config, 0, (*learned, *config.planners), "seek")):
        _measure_all(folder, _SourceSearches(setting, learned, config, "Searches for a source"), console, curve=[])
    console.print(show_hidden(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
    return 0


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------------------- policies


def _policy_folder_name(arm: str) -> str:
    return "policy" if arm == "agdc" else "policy-without"


def _load_or_learn(config: AGDCConfig, folder: Path, console: Console, *, device: str) -> Seeker:
    """Loads the policy of a folder, or learns it now and saves it there with its learning curve."""
    from evolvent.methods.agdc import agdc, load_seeker, save_seeker

    if (folder / "curve.json").is_file():
        return load_seeker(folder)
    preposition = "with" if config.arm == "agdc" else "without"
    with Progress(console) as progress:
        progress.begin("fit", f"learning {config.algorithm} {preposition} cessation", config.budget, unit="steps")

        def report(steps: int, finished: Sequence[FinishedSearch]) -> None:
            recent = finished[-_RECENT_EPISODES:]
            success = {"success": sum(one.ceased and one.right for one in recent) / len(recent)} if recent else {}
            progress.update({"steps": steps, **success})

        seeker = agdc(config, report=report, device=device)
        progress.end()
    save_seeker(seeker, folder)
    write_atomic(folder / "curve.json", json.dumps(_learning_curve(seeker)))  # last: it says that the policy is whole
    return seeker


def _learning_curve(seeker: Seeker, max_points: int = 40) -> list[list[float]]:
    """Returns [steps so far, share of correct stops, share of stops, mean length] for stretches of the training."""
    episodes, rows = seeker.finished, []
    for i in range(count := min(max_points, len(episodes))):
        stretch = episodes[i * len(episodes) // count : (i + 1) * len(episodes) // count]
        correct_ratio, stop_ratio = (
            sum(flags) / len(stretch)
            for flags in (
                [episode.ceased and episode.right for episode in stretch],
                [episode.ceased for episode in stretch],
            )
        )
        rows.append(
            [
                float(stretch[-1].total_steps),
                correct_ratio,
                stop_ratio,
                sum(episode.steps for episode in stretch) / len(stretch),
            ]
        )
    return rows


def _read_curve(folder: Path) -> list[list[float]]:
    points: list[list[float]] = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    return points


def _load_saved(folders: Sequence[Path]) -> dict[str, Seeker]:
    """Loads policies by the names of their folders; a run stands for the policy in it.

    Raises:
        ConfigError: two policies of one name, or policies whose settings cannot be compared.
    """
    from evolvent.methods.agdc import build_detector, build_world, load_seeker

    seekers: dict[str, Seeker] = {}
    problems: list[Problem] = []
    for folder in folders:
        policy_folder = folder / _policy_folder_name("agdc")
        name = folder.resolve().name
        if name in seekers:
            problems.append(Problem("policies", f"two policies are named {name}", "rename one of the folders"))
            continue
        seekers[name] = load_seeker(policy_folder if policy_folder.is_dir() else folder)
    settings = {
        (build_world(seeker_or_setting.config).preset.name, repr(build_detector(seeker_or_setting.config)))
        for seeker_or_setting in seekers.values()
    }
    if len(settings) > 1:
        settings_text = "; ".join(sorted(" ".join(seeker_or_setting) for seeker_or_setting in settings))
        problems.append(
            Problem(
                "policies",
                f"the policies were trained with different settings: {settings_text}",
                "compare them separately",
            )
        )
    if problems:
        raise ConfigError(problems)
    return seekers


def _resolve_setting(config: SeekConfig, learned: Mapping[str, Seeker]) -> AGDCConfig:
    """Returns the world, moves and detector: of the first policy, or as configured; PPO stands for any way to move."""
    detector: dict[str, Any] = {} if config.detector is None else {"detector": config.detector, "zeta": None}
    if learned:
        first_config = next(iter(learned.values())).config
        return AGDCConfig(**{**as_dict(first_config), **detector})
    return AGDCConfig(world=config.world, moves=config.moves, algorithm="ppo", **detector)


# ------------------------------------------------------------------------------------------------------- measuring


def _measure_all(
    folder: Path, searches: _SourceSearches, console: Console, *, curve: Sequence[Sequence[float]]
) -> None:
    """Plays the episodes of missing table rows; writes the table and the report, and prints the table."""
    from evolvent.view.seeking import COLUMNS, build_seeking_rows

    rows = _read_table(folder)
    for name, choose in _make_choosers(searches).items():
        if name not in {row["name"] for row in rows}:
            console.print(f"playing {searches.config.episodes} searches by {show_hidden(name)}", soft_wrap=True)
            rows.append(_measure_player(folder, name, choose, searches))
            write_atomic(folder / "table.json", json.dumps(rows, allow_nan=False, indent=1))
    _write_report(folder, searches, rows, curve)
    console.print(render_table(console, COLUMNS, build_seeking_rows(rows), numbers=COLUMNS[1:]))


def _read_table(folder: Path) -> list[dict[str, Any]]:
    path = folder / "table.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def _make_choosers(searches: _SourceSearches) -> dict[str, Chooser]:
    from evolvent.belief.comparison import make_chooser

    return {**searches.learned, **{name: make_chooser(name) for name in searches.config.planners}}


def _list_starts(searches: _SourceSearches) -> list[Start]:
    from evolvent.methods.agdc import build_world
    from evolvent.trajectory import Start

    tasks = build_world(searches.setting).tasks(searches.config.split, "seen")
    return [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(searches.config.episodes)]


def _measure_player(folder: Path, name: str, choose: Chooser, searches: _SourceSearches) -> dict[str, Any]:
    """Plays one player's episodes, stores them, and returns its row. Learned policies use the moves they learned."""
    from evolvent.belief.comparison import SCORER, play_episodes, summary_row
    from evolvent.methods.agdc import build_detector, build_world
    from evolvent.store.store import Store

    world_config = searches.learned[name].config if name in searches.learned else searches.setting
    played_searches = play_episodes(
        choose,
        build_world(world_config),
        _list_starts(searches),
        name=name,
        detector=build_detector(searches.setting),
        particles=searches.config.particles,
        fused=world_config.fused,
    )
    with Store.open(folder / "trajectories", writing=True) as store:
        stored_ids = set(store.ids())
        for entry in played_searches.trajectories:
            if entry.id not in stored_ids:
                store.append(entry)
        annotated_places = {(entry.trajectory, entry.target) for entry in store.annotations(scorer=SCORER)}
        for score in played_searches.scores:  # one by one: a kill may have come between an episode and its scores
            if (score.trajectory, score.target) not in annotated_places:
                store.annotate(score)
    return summary_row(played_searches)


def _write_report(
    folder: Path, searches: _SourceSearches, rows: Sequence[Mapping[str, Any]], curve: Sequence[Sequence[float]]
) -> None:
    """Writes the report and the belief traces."""
    from evolvent.methods.agdc import build_detector, build_world
    from evolvent.view.beliefs import encode_belief
    from evolvent.view.seeking import seeking_page

    world = build_world(searches.setting)
    facts = {
        "World": f"{world.preset.name}, moves: {world.preset.moves}",
        "Sensor": world.preset.sensor.id,
        "Ends an episode": build_detector(searches.setting)(*_uniform_belief()).reason,
        "Episodes of each": f"{searches.config.episodes} on {searches.config.split}",
        "Particles": str(searches.config.particles or world.preset.particles),
    }
    if searches.learned:
        first_config = next(iter(searches.learned.values())).config
        facts["Learned from"] = (
            f"{first_config.budget:,} steps, {first_config.n_particles} particles, seed {first_config.seed}"
        )
    data = {"title": searches.title, "facts": facts, "learned": list(searches.learned), "rows": rows, "curve": curve}
    traces = _trace_episodes(searches)
    (folder / "beliefs").mkdir(exist_ok=True)
    for number, episode_trace in enumerate(traces):
        path = safe_join(folder / "beliefs", f"{episode_trace.name.replace('/', '-')}-{number}.json")
        write_atomic(path, json.dumps(encode_belief(episode_trace), allow_nan=False))
    write_atomic(folder / "report.html", seeking_page(data, traces))


def _uniform_belief() -> tuple[Any, list[Any]]:
    """Returns an uninformative belief about a place, to ask a detector for its reason."""
    import numpy as np

    from evolvent.belief.summary import BeliefSummary

    ones = np.ones(1)
    return BeliefSummary(
        entropy=ones, mean=np.ones((1, 8)), std=np.ones((1, 8)), covariance=np.ones((1, 2, 2)), spread=ones, ess=ones
    ), []


def _trace_episodes(searches: _SourceSearches) -> list[Trace]:
    """Records traces of the first episodes of every learned policy, or of the last planner where nothing was
    learned.
    """
    from evolvent.belief.tracing import trace_episode
    from evolvent.methods.agdc import build_detector, build_world

    choosers = _make_choosers(searches)
    names = list(searches.learned) or list(choosers)[-1:]
    return [
        trace_episode(
            choosers[name],
            build_world(searches.learned[name].config if name in searches.learned else searches.setting),
            start,
            name=name,
            detector=build_detector(searches.setting),
            particles=searches.config.particles,
        )
        for name in names
        for start in _list_starts(searches)[: searches.config.pictures]
    ]
