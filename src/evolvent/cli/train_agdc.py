"""`evolvent train agdc` and `evolvent bench seek`: searches for a source, learned, planned, and side by side.

Both write a run folder: settings and state, every episode with its annotations, `table.json`, and a report. What is
finished in it is not done again when the run goes on: the policy that was learned, and the rows of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import needs_train
from evolvent.cli.settings import Command, read_given
from evolvent.config import Config, as_dict
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import safe_join, write_atomic
from evolvent.methods.agdc import AGDC
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.belief.comparison import Chooser
    from evolvent.belief.traces import Trace
    from evolvent.methods.agdc import Seeker
    from evolvent.trajectory import Start

__all__ = ["COMMAND", "COMMANDS", "Seek", "TrainAGDC", "run", "seek"]

_PLANNERS = ("random", "go_to_mean", "infotaxis", "entrotaxis", "dcee")
_SMALL = AGDC()  # named, so that a setting given beside it leaves the others


class Measured(Config):
    """How searches are compared, whoever chooses the moves."""

    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/NAME-N")
    planners: tuple[str, ...] = Field(
        default=_PLANNERS, description="played beside: random, greedy, go_to_mean, infotaxis, entrotaxis, dcee"
    )
    split: Literal["train", "dev", "test"] = Field(default="test", description="whose sources are looked for")
    episodes: int = Field(default=64, ge=1, description="episodes of each, the same for all")
    particles: int | None = Field(default=None, ge=1, description="of a belief when measured; none: the preset's")
    pictures: int = Field(default=1, ge=0, le=8, description="episodes of each learned policy in the report")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    def check(self) -> None:
        """Refuse planners that are none; ConfigError with all of them."""
        from evolvent.belief.planners import PLANNERS

        if wrong := [
            unknown("planner", name, PLANNERS, where="planners") for name in self.planners if name not in PLANNERS
        ]:
            raise ConfigError(wrong)


class TrainAGDC(Measured):
    """Everything that can be chosen about `evolvent train agdc`."""

    control: bool = Field(default=False, description="learn without cessation too, with the same budget")
    agdc: AGDC = Field(default_factory=lambda: _SMALL.model_copy(), description="the method")


class Seek(Measured):
    """Everything that can be chosen about `evolvent bench seek`."""

    policies: tuple[Path, ...] = Field(default=(), description="runs of train agdc, or folders with agdc.json")
    world: str = Field(default="plume/25", description="preset of the plume; with policies theirs is taken")
    moves: Literal["preset", "four", "twelve", "heading"] = Field(default="preset", description="of planners alone")
    detector: str | None = Field(default=None, description="such as trace:1; none: the policies', or the preset's")


COMMANDS: dict[str, Command[Any]] = {
    "agdc": Command(
        "train agdc",
        "Learn to search for a source and to know when it is found (AGDC); planners play beside.",
        TrainAGDC,
        resumes=True,
        free=("threads",),
    ),
}
COMMAND: Command[Seek] = Command(
    "bench seek",
    "Planners and saved policies of AGDC on the same searches for a source.",
    Seek,
    resumes=True,
    free=("threads",),
)


@dataclass(frozen=True)
class _Searches:
    """What is played: the setting (world, detector), and who plays; learned ones by name."""

    setting: AGDC
    learned: Mapping[str, Seeker]
    told: Measured
    title: str


def run(words: Sequence[str], console: Console) -> int:
    """Learn by AGDC, and measure beside planners; returns the exit code. `words` begin with "agdc"."""
    given = read_given(COMMANDS[words[0]], words[1:], console)
    if given is None:
        return 0
    config: TrainAGDC = given.config
    config.check()
    _ready(config.threads)
    folder = given.resume or new_folder("agdc", config.to)
    arms = ("agdc", "without") if config.control else (config.agdc.arm,)
    names = {arm: config.agdc.algorithm if arm == "agdc" else f"{config.agdc.algorithm}/without" for arm in arms}
    console.print(plain(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
    with recorded(folder, Record("train agdc", config, config.agdc.seed, tuple(names.values()), "agdc")):
        learned = {
            names[arm]: _learned(config.agdc.model_copy(update={"arm": arm}), folder / _place(arm), console)
            for arm in arms
        }
        searches = _Searches(config.agdc, learned, config, f"AGDC, {config.agdc.algorithm.upper()}")
        _measure(folder, searches, console, curve=_curve(folder / _place(arms[0])))
    console.print(plain(f"policy {folder / _place(arms[0])}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


def seek(words: Sequence[str], console: Console) -> int:
    """Measure planners and saved policies; returns the exit code."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    config.check()
    needs_train("evolvent bench seek")
    _ready(config.threads)
    learned = _saved(config.policies)
    setting = _setting(config, learned)
    folder = given.resume or new_folder("seek", config.to)
    with recorded(folder, Record("bench seek", config, 0, (*learned, *config.planners), "seek")):
        _measure(folder, _Searches(setting, learned, config, "Searches for a source"), console, curve=[])
    console.print(plain(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
    return 0


def _ready(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------------------- policies


def _place(arm: str) -> str:
    return "policy" if arm == "agdc" else "policy-without"


def _learned(config: AGDC, folder: Path, console: Console) -> Seeker:
    """The policy of a folder, or one that is learned now and kept there with its curve."""
    from evolvent.methods.agdc import agdc, load_seeker, save_seeker

    if (folder / "curve.json").is_file():
        return load_seeker(folder)
    what = "with" if config.arm == "agdc" else "without"
    console.print(f"learning {config.algorithm} {what} cessation, {config.budget:,} steps", soft_wrap=True)
    found = agdc(config)
    save_seeker(found, folder)
    write_atomic(folder / "curve.json", json.dumps(_stretches(found)))  # last: it says that the policy is whole
    return found


def _stretches(found: Seeker, most: int = 40) -> list[list[float]]:
    """[steps so far, share of right stops, share of stops, mean length] of stretches of training."""
    done, rows = found.finished, []
    for i in range(count := min(most, len(done))):
        part = done[i * len(done) // count : (i + 1) * len(done) // count]
        right, ceased = (
            sum(flags) / len(part)
            for flags in ([one.ceased and one.right for one in part], [one.ceased for one in part])
        )
        rows.append([float(part[-1].at), right, ceased, sum(one.steps for one in part) / len(part)])
    return rows


def _curve(folder: Path) -> list[list[float]]:
    found: list[list[float]] = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    return found


def _saved(places: Sequence[Path]) -> dict[str, Seeker]:
    """Policies by the names of their folders; a run stands for the policy in it.

    Raises:
        ConfigError: two of one name, or settings under which they cannot be compared.
    """
    from evolvent.methods.agdc import detector_of, load_seeker, world_of

    found: dict[str, Seeker] = {}
    problems: list[Problem] = []
    for place in places:
        inner = place / _place("agdc")
        name = place.resolve().name
        if name in found:
            problems.append(Problem("policies", f"two are named {name}", "rename one of the folders"))
            continue
        found[name] = load_seeker(inner if inner.is_dir() else place)
    settings = {(world_of(one.config).preset.name, repr(detector_of(one.config))) for one in found.values()}
    if len(settings) > 1:
        told = "; ".join(sorted(" ".join(one) for one in settings))
        problems.append(Problem("policies", f"they were learned in different settings: {told}", "compare them apart"))
    if problems:
        raise ConfigError(problems)
    return found


def _setting(config: Seek, learned: Mapping[str, Seeker]) -> AGDC:
    """World, moves and detector: of the first policy, or as told. PPO stands for whoever moves in any way."""
    detector: dict[str, Any] = {} if config.detector is None else {"detector": config.detector, "zeta": None}
    if learned:
        first = next(iter(learned.values())).config
        return AGDC(**{**as_dict(first), **detector})
    return AGDC(world=config.world, moves=config.moves, algorithm="ppo", **detector)


# ------------------------------------------------------------------------------------------------------- measuring


def _measure(folder: Path, searches: _Searches, console: Console, *, curve: Sequence[Sequence[float]]) -> None:
    """Play who is not in the table yet; write table and report, and print the table."""
    from evolvent.view.seeking import COLUMNS, seeking_rows

    rows = _kept(folder)
    for name, choose in _choosers(searches).items():
        if name not in {row["name"] for row in rows}:
            rows.append(_played(folder, name, choose, searches))
            write_atomic(folder / "table.json", json.dumps(rows, allow_nan=False, indent=1))
    _report(folder, searches, rows, curve)
    console.print(table(console, COLUMNS, seeking_rows(rows), numbers=COLUMNS[1:]))


def _kept(folder: Path) -> list[dict[str, Any]]:
    path = folder / "table.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def _choosers(searches: _Searches) -> dict[str, Chooser]:
    from evolvent.belief.comparison import planner

    return {**searches.learned, **{name: planner(name) for name in searches.told.planners}}


def _starts(searches: _Searches) -> list[Start]:
    from evolvent.methods.agdc import world_of
    from evolvent.trajectory import Start

    tasks = world_of(searches.setting).tasks(searches.told.split, "seen")
    return [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(searches.told.episodes)]


def _played(folder: Path, name: str, choose: Chooser, searches: _Searches) -> dict[str, Any]:
    """Play one player's episodes, keep them, and return its row. Learned policies move as they learned to."""
    from evolvent.belief.comparison import SCORER, play, summary_row
    from evolvent.methods.agdc import detector_of, world_of
    from evolvent.store.store import Store

    own = searches.learned[name].config if name in searches.learned else searches.setting
    found = play(
        choose,
        world_of(own),
        _starts(searches),
        name=name,
        detector=detector_of(searches.setting),
        particles=searches.told.particles,
        fused=own.fused,
    )
    with Store.open(folder / "trajectories", writing=True) as store:
        known = set(store.ids())
        for one in found.trajectories:
            if one.id not in known:
                store.append(one)
        looked = {(one.trajectory, one.place) for one in store.annotations(scorer=SCORER)}
        for score in found.scores:  # one by one: a kill may have come between an episode and its scores
            if (score.trajectory, score.place) not in looked:
                store.annotate(score)
    return summary_row(found)


def _report(
    folder: Path, searches: _Searches, rows: Sequence[Mapping[str, Any]], curve: Sequence[Sequence[float]]
) -> None:
    from evolvent.methods.agdc import detector_of, world_of
    from evolvent.view.beliefs import belief_document
    from evolvent.view.seeking import seeking_page

    world = world_of(searches.setting)
    facts = {
        "World": f"{world.preset.name}, moves: {world.preset.moves}",
        "Sensor": world.preset.sensor.id,
        "Ends an episode": detector_of(searches.setting)(*_nothing()).reason,
        "Episodes of each": f"{searches.told.episodes} on {searches.told.split}",
        "Particles": str(searches.told.particles or world.preset.particles),
    }
    if searches.learned:
        first = next(iter(searches.learned.values())).config
        facts["Learned from"] = f"{first.budget:,} steps, {first.n_particles} particles, seed {first.seed}"
    data = {"title": searches.title, "facts": facts, "learned": list(searches.learned), "rows": rows, "curve": curve}
    traces = _traces(searches)
    (folder / "beliefs").mkdir(exist_ok=True)
    for number, one in enumerate(traces):
        path = safe_join(folder / "beliefs", f"{one.name.replace('/', '-')}-{number}.json")
        write_atomic(path, json.dumps(belief_document(one), allow_nan=False))
    write_atomic(folder / "report.html", seeking_page(data, traces))


def _nothing() -> tuple[Any, list[Any]]:
    """A belief about a place that says nothing, to ask a detector what it looks for."""
    import numpy as np

    from evolvent.belief.summary import BeliefSummary

    one = np.ones(1)
    return BeliefSummary(
        entropy=one, mean=np.ones((1, 8)), std=np.ones((1, 8)), covariance=np.ones((1, 2, 2)), spread=one, ess=one
    ), []


def _traces(searches: _Searches) -> list[Trace]:
    """The first episodes of every learned policy; of the last planner where nothing was learned."""
    from evolvent.belief.tracing import trace
    from evolvent.methods.agdc import detector_of, world_of

    every = _choosers(searches)
    names = list(searches.learned) or list(every)[-1:]
    return [
        trace(
            every[name],
            world_of(searches.learned[name].config if name in searches.learned else searches.setting),
            start,
            name=name,
            detector=detector_of(searches.setting),
            particles=searches.told.particles,
        )
        for name in names
        for start in _starts(searches)[: searches.told.pictures]
    ]
