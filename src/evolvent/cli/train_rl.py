"""`evolvent train rl --method NAME`: a policy learns by acting in worlds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, create_model, model_validator
from rich.console import Console

from evolvent.agents.plain import Random
from evolvent.cli import extensions
from evolvent.cli.backends import HERE, Placed
from evolvent.cli.method_option import method_named
from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.registry import policy, worlds
from evolvent.cli.run_setup import Job, PanelConfig, check_panel, opened, playing_on, results_table, write_report
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.config import Config
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.errors import ConfigError, Problem
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.methods.base import Method
from evolvent.methods.etpo import ETPO, etpo
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.ntpo import NTPO, ntpo
from evolvent.methods.poad import POAD, poad
from evolvent.methods.ppo import PPO, TOKEN, ppo
from evolvent.methods.r3 import R3, r3
from evolvent.methods.scaling_inter import ScalingInter, scaling_inter
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import Policy
from evolvent.plugins import describe_origin, installed_plugins
from evolvent.rollout.collect import collect
from evolvent.run import Run
from evolvent.scale.endpoint_backend import RemoteVerbs
from evolvent.scale.initial import demonstrations
from evolvent.scale.local_backend import LocalVerbs
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.view.redraw import redrawing
from evolvent.worlds.base import World

__all__ = ["METHODS", "Reinforce", "command", "known", "run"]


METHODS: dict[str, Method] = {
    "ppo": Method(PPO, ppo, "PPO over whole actions, as they are written"),
    "twosome": Method(
        PPO, ppo, "PPO over the actions that a world lists (TWOSOME)", {"level": "listed"}, fixed=("level",)
    ),
    "token_ppo": Method(PPO, ppo, "PPO over tokens as in learning from human feedback", TOKEN, fixed=("level",)),
    "ntpo": Method(NTPO, ntpo, "PPO over tokens, discounted between them: POAD's baseline"),
    "poad": Method(POAD, poad, "credit for every token of an action, without a discount inside"),
    "etpo": Method(
        ETPO,
        etpo,
        "soft values of every next token, near the policy it began with",
        {"practice": {"epochs": 4, "critic_lr": 3e-4}},
    ),
    "grpo": Method(GRPOConfig, grpo, "episodes of a task compared: GRPO and its family (rl.kind)"),
    "scaling_inter": Method(ScalingInter, scaling_inter, "the same, with episodes that grow longer by phases"),
    "r3": Method(
        R3,
        r3,
        "episodes begin inside demonstrations: a reverse curriculum",
        {"practice": {"epochs": 2, "samples": 1}},
        demonstrated=True,
    ),
}


class Improving(Config):
    """How each update improves the policy."""

    lr: float = Field(default=5e-4, gt=0, description="learning rate")
    final_lr: float = Field(default=1.0, ge=0, le=1, description="share of it that a linear decay ends at")
    warmup_updates: int = Field(default=0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled decay of matrices")
    clip: float | None = Field(default=0.5, gt=0, description="largest global norm of the gradient; none: no clipping")
    micro_tokens: int = Field(default=4096, ge=1, description="most tokens of one forward")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the forward")

    def config(self) -> TrainConfig:
        """As a Learner takes it."""
        return TrainConfig(
            lr=self.lr,
            final_lr=self.final_lr,
            warmup_updates=self.warmup_updates,
            weight_decay=self.weight_decay,
            clip=self.clip,
            batch_tokens=self.micro_tokens,
            dtype=self.dtype,
        )


class Reinforce(OverWorlds, Placed):
    """Everything that can be chosen about `evolvent train rl`, beside the method's own."""

    method: str = Field(default="poad", description="the method")
    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/rl-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: int = Field(default=100, ge=0, description="tasks of each world whose solution is imitated first")
    random: int = Field(
        default=0, ge=0, description="episodes of each world of random listed actions, imitated too: language, no aim"
    )
    clone_tokens: int = Field(default=100_000, ge=1, description="learned tokens of that imitation")
    tasks: int = Field(default=400, ge=1, description="further tasks of each world to practise on, at most")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    endpoint: str = Field(default="", description="URL of an endpoint that plays; none: this process does")
    model: str = Field(default="", description="what that endpoint calls the policy")
    dialect: ServerDialect = Field(default="openai", description="what that endpoint speaks")
    hand_over: Path | None = Field(default=None, description="folder that the endpoint takes new weights from")
    train: Improving = Field(default_factory=Improving, description="the updates")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    panel: PanelConfig = Field(default_factory=PanelConfig, description="the measurement")

    @model_validator(mode="after")
    def _whole(self) -> Reinforce:
        if self.endpoint and not (self.model and self.hand_over):
            raise ValueError("an endpoint that plays needs --model NAME and --hand_over FOLDER")
        if self.endpoint and self.on != HERE:
            raise ValueError("either an endpoint plays (--endpoint) or a cluster does (--on)")
        return self


def _config(name: str, method: Method) -> type[Reinforce]:
    own = dict(method.defaults or {})
    settings: Any = method.config
    if method.fixed:  # one value alone, which help and messages then show
        kept: Any = {
            what: (Literal[own[what]], Field(default=own[what], description=f"what {name} is")) for what in method.fixed
        }
        settings = create_model(settings.__name__, __base__=settings, **kept)
    made: Config = settings(**own)
    about = f"settings of {name}"
    only: Any = Literal[name]
    found: type[Reinforce] = create_model(
        f"Reinforce_{name}",
        __base__=Reinforce,
        method=(only, Field(default=name, description="the method")),
        rl=(settings, Field(default=made, description=about)),
    )
    return found


KEY = "OPENAI_API_KEY"  # the environment variable that holds an endpoint's key
CLONE = TrainConfig(lr=5e-3, betas=(0.9, 0.95), batch_tokens=512)


def known() -> dict[str, str]:
    """Every method's name, and what it is or where it comes from; loads none of other packages."""
    own = {name: method.about for name, method in METHODS.items()}
    return {**own, **{name: describe_origin(at) for name, at in installed_plugins("methods", METHODS).items()}}


def _method(name: str) -> Method:
    return METHODS[name] if name in METHODS else extensions.method(installed_plugins("methods")[name])


def command(name: str, method: Method | None = None) -> Command[Any]:
    """The command of a method, with its own settings as `rl`.

    Raises:
        ConfigError: a method of another package that cannot be loaded.
    """
    method = method or _method(name)
    about = f"{name}: {method.about}. Begins with a policy, or with one that imitated demonstrations."
    return Command("train rl", about, _config(name, method), resumes=True)


def run(words: Sequence[str], console: Console) -> int:
    """Practise by the named method; returns the exit code."""
    name, rest = method_named(words, known(), usual="poad")
    if name is None:
        console.print(_usage(), soft_wrap=True)
        return 0
    method = _method(name)
    given = read_given(command(name, method), rest, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    panel = check_panel(made, config.panel)
    shown, tried = _tasks(made, config)
    practice = getattr(config.rl, "practice", None)  # methods of other packages may do without
    deciding, choose = getattr(config.rl, "level", "") == "listed", bool(practice and practice.choose)
    if deciding or choose:
        _check_lists(made, tried, name if deciding else "rl.practice.choose")
    folder = given.resume or new_folder("rl", config.to)
    initial = adapt(policy(config.policy, list(made.values()), seed=config.seed), config.adapter, seed=config.seed)
    rounds = practice.iterations if practice else 0
    plan = [
        *([Planned("fit", config.clone_tokens)] if shown or config.random else []),
        Planned("evaluate", panel),
        *([Planned("practise", rounds)] if rounds else []),
        Planned("evaluate", panel),
    ]
    job = Job(
        folder,
        made,
        Record("train rl", config, config.seed, ("base", name), name),
        train=CLONE,
        panel=config.panel.panel(),
        slots=config.slots,
        max_tokens=config.max_tokens,
        threads=config.threads,
        plan=plan,
        practising=config.train.config(),
        optimizer=OptimizerConfig(),
        deciding=deciding,
        choose=choose,
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with (
        _player(config, made) as verbs,
        opened(replace(job, verbs=verbs), console) as running,
        redrawing(partial(write_report, folder)),
    ):
        taught = demonstrations(list(made.values()), shown, seed=config.seed) if shown else []
        babbled = _babbled(made, tried, config)
        best = _practised(method, initial, tried, taught, babbled=babbled, config=config, run=running.arm(name))
        best.save(folder / "model")
        results_table(console, running.arm(name).evaluate(best, rounds or 1))
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


@contextmanager
def _player(config: Any, made: Mapping[str, World]) -> Iterator[Callable[..., LocalVerbs]]:
    """What makes the verbs: they play in this process, on a cluster, or on the endpoint that the settings name.

    Raises:
        ConfigError: an endpoint without that model. EndpointError: one that does not answer. See also `placed`.
    """
    if not config.endpoint:
        with playing_on(config.on, config.worlds, made, threads=config.threads) as verbs:
            yield verbs
        return
    key = os.environ.get(KEY)
    secret = SecretStr(key) if key else None
    speaking = endpoint_type(config.dialect)
    with speaking(config.endpoint, config.model, key=secret, tokens=True, processed=True) as endpoint:
        endpoint.check()
        yield partial(RemoteVerbs, endpoint=endpoint, handover=config.hand_over)


def _practised(
    method: Method,
    initial: Policy,
    tasks: Sequence[Task],
    taught: Sequence[Trajectory],
    *,
    babbled: Sequence[Trajectory],
    config: Any,
    run: Run[Policy],
) -> Policy:
    said = [*taught, *babbled]
    base = run.fit(initial, said, weighted_nll, tokens=config.clone_tokens) if said else initial
    run.evaluate(base, 0)
    own = [*(one.task for one in taught), *tasks] if method.demonstrated else tasks
    more = {"demonstrations": taught} if method.demonstrated else {}
    best: Policy = method.call(base, own, config=config.rl, run=run, **more)
    return best


def _babbled(made: Mapping[str, World], tasks: Sequence[Task], config: Any) -> list[Trajectory]:
    """Episodes of random listed actions: who imitates them too writes actions, and goes on trying."""
    starts = [Start(task) for name in made for task in [task for task in tasks if task.world == name][: config.random]]
    played = collect(made, starts, Random(), engine=None, seed=config.seed, name=lambda s: f"random/{s.task.id}")
    found = {one.id: one for one in played}
    return [found[f"random/{start.task.id}"] for start in starts]


def _tasks(made: Mapping[str, World], config: Any) -> tuple[list[Task], list[Task]]:
    """(tasks to demonstrate, tasks to practise on), evenly from all tiers that may be trained on.

    Raises:
        ConfigError: a world without enough of them.
    """
    shown: list[Task] = []
    tried: list[Task] = []
    problems = []
    for name, world in made.items():
        panels = [list(world.tasks("train", tier)) for tier in world.tiers]
        count = config.demonstrations if _teaches(world, panels[0]) else 0
        shown += panels[0][:count]
        own = [task for row in zip_longest(panels[0][count:], *panels[1:]) for task in row if task is not None]
        if len(panels[0]) < count or not own:
            what = f"the world {name!r} has {sum(map(len, panels))} training tasks, {count} of them to be demonstrated"
            problems.append(Problem("demonstrations", what, "ask for fewer, or choose another world"))
        tried += own[: config.tasks]
    if problems:
        raise ConfigError(problems)
    return shown, tried


def _check_lists(made: Mapping[str, World], tasks: Sequence[Task], what: str) -> None:
    """Refuse worlds that do not list the actions that are possible.

    Raises:
        ConfigError: they are named.
    """
    problems = []
    for name, world in made.items():
        env = world.make(next(task for task in tasks if task.world == name))
        try:
            _, info = env.reset()
        finally:
            env.close()
        if not info.get("admissible"):
            told = f"the world {name!r} lists no actions, and {what} chooses among those that are listed"
            problems.append(Problem("worlds", told, "take another world, or a method that writes its actions"))
    if problems:
        raise ConfigError(problems)


def _teaches(world: World, tasks: Sequence[Task]) -> bool:
    return bool(tasks) and world.expert(tasks[0]) is not None


def _usage() -> str:
    lines = "\n".join(f"  {name:14}{about}" for name, about in known().items())
    return (
        "usage: evolvent train rl --method NAME [FILE.toml] [--key value ...]\n\n" + lines + "\n\n"
        "`evolvent train rl --method NAME --help` lists the settings. It begins with\n"
        "`--policy` (a size, a model folder, a run); `--demonstrations 0` imitates none."
    )
