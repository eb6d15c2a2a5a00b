"""`evolvent train sequence --method NAME`: a policy learns from recorded episodes as sequences, and is measured.

The episodes come from a file (D4RL's or Minari's layout) or are made here: mixtures of a control world, or the maze of
pieces. The run folder holds settings and state, `data.json` (what was learned from), the training's state, the policy,
`history.json`, `table.json` and the report. A run goes on where its training was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model, field_validator
from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.method_option import method_named
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import needs_train
from evolvent.cli.sequence_tasks import SEQUENCE_WORLDS, Place, place_of
from evolvent.cli.settings import Command, read_given
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import write_atomic
from evolvent.methods.decision_transformer import PRESETS as DT_PRESETS
from evolvent.methods.decision_transformer import DecisionTransformer
from evolvent.methods.online_dt import OnlineDT
from evolvent.methods.q_transformer import QTransformer
from evolvent.methods.trajectory_transformer import PRESETS as TT_PRESETS
from evolvent.methods.trajectory_transformer import TrajectoryTransformer
from evolvent.trajectory import sample_seed
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping
    from evolvent.store.episodes import Episodes

__all__ = ["COMMANDS", "METHODS", "Cloning", "Method", "Online", "TrainSequence", "run"]

_ASKED = 5  # returns that are asked for where none are named
_MEASURED = sample_seed("measured", 77)  # of no data: a mixture's seeds are --learn.seed and the next


class Cloning(DecisionTransformer):
    """Behaviour cloning: the network of Decision Transformer without returns."""

    returns: Literal[False] = Field(default=False, description="no returns are read")


class Online(OnlineDT):
    """Online DT, whose target is the data's best return where none is named."""

    target: float | None = Field(  # type: ignore[assignment]
        default=None, description="the return that it is made for; none: the most in the data"
    )

    def named(self, most: float) -> OnlineDT:
        """With a target."""
        given = {name: getattr(self, name) for name in OnlineDT.model_fields}
        return OnlineDT(**{**given, "target": most if self.target is None else self.target})


@dataclass(frozen=True)
class Method:
    """A method's settings, what it is, whether it can be asked for a return, whether actions have to be numbers, and
    settings for a processor and of the paper."""

    config: type[Config]
    about: str
    asks: bool = False
    numbers: bool = False
    small: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)


_SHORT = {"updates": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0}
METHODS: Mapping[str, Method] = {
    "dt": Method(DecisionTransformer, "Decision Transformer: asked for a return", asks=True, small=DT_PRESETS["small"]),
    "bc": Method(Cloning, "behaviour cloning by the same network", small=DT_PRESETS["small"]),
    "odt": Method(
        Online,
        "Online DT: actions that are numbers; plays after it has learned",
        asks=True,
        numbers=True,
        small={
            "context": 8,
            "scale": 100.0,
            "width": 64,
            "heads": 2,
            "layers": 2,
            "dropout": 0.0,
            "explore": 1.0,
            "rounds": 20,
            "updates": 50,
            "temperature_lr": 1e-3,
            "train": _SHORT,
        },
    ),
    "tt": Method(
        TrajectoryTransformer,
        "Trajectory Transformer: a model, and a beam in it",
        small=TT_PRESETS["small"],
        paper=TT_PRESETS["paper"],
    ),
    "qt": Method(
        QTransformer,
        "Q-Transformer: values of an action's dimensions",
        small={"bins": 32, "width": 64, "heads": 2, "polyak": 0.02, "conservative": 0.5, "train": _SHORT},
    ),
}


class TrainSequence(Config):
    """Everything that can be chosen about `evolvent train sequence`, beside the method's own."""

    method: str = Field(default="dt", description="the method")
    world: str = Field(default="cartpole", description=f"where it acts: {', '.join(SEQUENCE_WORLDS)}")
    data: Path | None = Field(
        default=None, description="a file of D4RL's layout, or a folder of Minari's; none: episodes are made here"
    )
    mixture: Literal["random", "medium", "replay", "medium-replay", "expert", "pieces", "whole"] | None = Field(
        default=None,
        description="what is made: of a control world random, medium, replay or expert; of the maze "
        "pieces or whole; none: replay, or pieces",
    )
    episodes: int = Field(default=200, ge=1, description="of a mixture")
    horizon: int | None = Field(default=None, ge=1, description="steps after which one is cut; none: the world's")
    scale: float | None = Field(
        default=None, gt=0, description="what a file's actions are divided by; none: as the world takes them"
    )
    targets: tuple[float, ...] = Field(
        default=(), description="returns that are asked for; none: from the data's least to their most"
    )
    evaluation: int = Field(default=10, ge=1, description="episodes that are played for each of them")
    keep_every: int = Field(default=500, ge=1, description="updates between two states that can be taken up again")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/sequence-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @field_validator("world")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in SEQUENCE_WORLDS:
            problem = unknown("world", name, SEQUENCE_WORLDS)
            raise ValueError(f"{problem.what} ({problem.hint})")
        return name

    @field_validator("mixture")
    @classmethod
    def _as_published(cls, name: str | None) -> str | None:
        return "replay" if name == "medium-replay" else name


def _command(name: str, method: Method) -> Command[Any]:
    only: Any = Literal[name]
    config: type[TrainSequence] = create_model(
        f"TrainSequence_{name}",
        __base__=TrainSequence,
        method=(only, Field(default=name, description="the method")),
        learn=(method.config, Field(default_factory=method.config, description=f"settings of {name}")),
    )
    about = f"{method.about}. Learns from recorded episodes and is measured in their world."
    return Command(
        "train sequence",
        about,
        config,
        main="world",
        resumes=True,
        free=("threads", "keep_every"),
        presets={"small": {"learn": {**method.small}}, "paper": {"learn": {**method.paper}}},
    )


COMMANDS: dict[str, Command[Any]] = {name: _command(name, method) for name, method in METHODS.items()}
"""The command of each method."""


def run(words: Sequence[str], console: Console) -> int:
    """Train a sequence policy and measure it; returns the exit code. `words` begin with "sequence"."""
    name, rest = method_named(words[1:], METHODS, usual="dt")
    if name is None:
        console.print(_usage(), soft_wrap=True)
        return 0
    given = read_given(COMMANDS[name], rest, console)
    if given is None:
        return 0
    config: Any = given.config
    needs_train("evolvent train sequence")
    import torch

    torch.set_num_threads(config.threads)
    place = place_of(config)
    if METHODS[name].numbers and place.data.actions:
        what = f"{name} is for actions that are numbers, {config.world} has choices"
        raise ConfigError([Problem("--method", what, "name another world or method")])
    _refuse_what_cannot_be_measured(config, place)
    folder = given.resume or new_folder("sequence", config.to)
    _refuse_other_data(folder, place)
    console.print(
        plain(
            f"run {folder}, {len(place.data.lengths):,} episodes, {len(place.data.reward):,} decisions of "
            f"{config.world}"
        ),
        soft_wrap=True,
    )
    with recorded(folder, Record("train sequence", config, config.learn.seed, (name,), name)):
        write_atomic(folder / "data.json", json.dumps(place.manifest, indent=1))
        policy, history, played = _trained(folder, config, place, console)
        _measure(folder, config, place, console, outcome=(policy, history, played))
    console.print(plain(f"policy {folder / 'policy'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


# ------------------------------------------------------------------------------------------------------- learning


def _refuse_what_cannot_be_measured(config: Any, place: Place) -> None:
    """Before anything is learned, not after it."""
    problems = []
    if config.targets and not METHODS[config.method].asks:
        problems.append(Problem("targets", f"{config.method} is not asked for a return", "leave them out"))
    if config.method in ("dt", "bc") and config.learn.horizon < place.horizon:
        what = f"{config.learn.horizon} time steps are learned, an episode of {config.world} has up to {place.horizon}"
        problems.append(Problem("learn.horizon", what, f"give {place.horizon} or more, or a shorter --horizon"))
    if problems:
        raise ConfigError(problems)


def _refuse_other_data(folder: Path, place: Place) -> None:
    """A run goes on with what it learned from: a file may have changed meanwhile."""
    try:
        kept = json.loads((folder / "data.json").read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if kept != place.data.digest:
        raise ConfigError(
            [Problem("--resume", f"{folder} learned from other episodes than there are now", "start a new run")]
        )


def _trained(folder: Path, config: Any, place: Place, console: Console) -> tuple[Any, Any, list[float]]:
    """Train, or take up a training; the policy and its history are kept. Returns them, and what was played online."""
    from evolvent.offline.state import Keeping

    def told(row: Mapping[str, float]) -> None:
        if row["update"] <= config.learn.train.updates:  # what is learned between episodes is in the report
            console.print(f"{row['update']:10,.0f}  loss {row['loss']:.4f}", soft_wrap=True)

    keep = Keeping(folder / "training.safetensors", every=config.keep_every, told=told)
    policy, played = _learned(folder, config, place, keep)
    write_atomic(folder / "history.json", json.dumps(policy.history, indent=1, sort_keys=True))
    return policy, policy.history, played


def _learned(folder: Path, config: Any, place: Place, keep: Keeping) -> tuple[Any, list[float]]:
    from evolvent.methods.decision_transformer import decision_transformer, save_conditioned
    from evolvent.methods.online_dt import online_dt
    from evolvent.methods.q_transformer import q_transformer, save_autoregressive
    from evolvent.methods.trajectory_transformer import save_planner, trajectory_transformer

    to = folder / "policy"
    match config.method:
        case "tt":
            planner = trajectory_transformer(config.learn, place.data, keep=keep)
            save_planner(planner, to)
            return planner, []
        case "qt":
            values = q_transformer(config.learn, place.data, keep=keep)
            save_autoregressive(values, to)
            return values, []
        case "odt":
            given = config.learn.named(float(place.data.returns.max()))
            online = online_dt(
                given, place.data, keep=keep, explore=partial(_explored, folder / "played", place, given.seed)
            )
            save_conditioned(online.policy, to)
            return online.policy, list(online.played)
    policy = decision_transformer(config.learn, place.data, keep=keep)
    save_conditioned(policy, to)
    return policy, []


def _explored(folder: Path, place: Place, seed: int, actor: ArrayActor, number: int) -> Episodes:
    """The episode of a round: the one that was played before the run was stopped, or a new one."""
    from evolvent.store.episodes import load_episodes, save_episodes

    path = folder / f"{number}.safetensors"
    if path.is_file():
        return load_episodes(path)
    found = place.played(actor, episodes=1, seed=sample_seed("online", seed, number))
    save_episodes(found, path)
    return found


# ------------------------------------------------------------------------------------------------------- measuring


def _measure(
    folder: Path, config: Any, place: Place, console: Console, *, outcome: tuple[Any, Any, list[float]]
) -> None:
    """Play for each return that is asked for; keep the table and the page, and print the table."""
    from evolvent.view.sequence_strips import drawn
    from evolvent.view.sequences import sequence_page

    policy, history, online = outcome
    asked = _asked(config, place) if METHODS[config.method].asks else [None]
    rows, best = [], None
    for target in asked:
        actor = policy.actor() if target is None or config.method == "bc" else policy.actor(target)
        found = place.played(actor, episodes=config.evaluation, seed=_MEASURED)
        returns = [float(x) for x in found.returns]
        mean = sum(returns) / len(returns)
        rows.append({"asked": target, "returns": returns, "mean": mean, "score": place.score(mean)})
        best = found if best is None or mean > best.returns.mean() else best
    write_atomic(folder / "table.json", json.dumps(rows, indent=1))
    facts = {
        "World": config.world,
        "Data": str(config.data or place.manifest["kind"]),
        "Episodes": f"{len(place.data.lengths):,}",
        "Decisions": f"{len(place.data.reward):,}",
        "Seed": str(config.learn.seed),
    }
    about = METHODS[config.method].about.partition(":")[0].partition(" by ")[0]
    spread = [float(x) for x in (place.data.returns.min(), place.data.returns.mean(), place.data.returns.max())]
    page = sequence_page(
        {
            "title": f"{about[0].upper()}{about[1:]} on {config.world}",
            "facts": facts,
            "rows": rows,
            "history": history,
            "played": online,
            "random": place.random,
            "expert": place.expert,
            "data": spread,
        },
        [] if best is None else drawn(config.world, best),
    )
    write_atomic(folder / "report.html", page)
    lines = [
        ("-" if row["asked"] is None else f"{row['asked']:.2f}", f"{row['mean']:.2f}", f"{row['score']:.1f}")
        for row in rows
    ]
    console.print(table(console, ("asked", "return", "score"), lines, numbers=("asked", "return", "score")))


def _asked(config: Any, place: Place) -> list[float]:
    """The returns that are asked for: as named, or evenly from the data's least to their most; of the maze those of
    the episodes from its start, and its optimum."""
    if config.targets:
        return list(config.targets)
    if config.world == "stitching":
        return sorted({*place.data.returns.tolist(), place.expert})
    least, most = float(place.data.returns.min()), float(place.data.returns.max())
    return [least + (most - least) * at / (_ASKED - 1) for at in range(_ASKED)] if most > least else [most]


# ------------------------------------------------------------------------------------------------------- the words


def _usage() -> str:
    lines = "\n".join(f"  {name:6}{method.about}" for name, method in METHODS.items())
    return (
        "usage: evolvent train sequence --method NAME [WORLD] [--key value ...]\n\n" + lines + "\n\n"
        "`evolvent train sequence --method NAME --help` lists the settings. Episodes are\n"
        "read from `--data FILE` or made: `cartpole --mixture medium-replay`."
    )
