"""`evolvent train rl --method NAME`: trains a policy by acting in worlds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model
from rich.console import Console

from evolvent.agents.plain import Random
from evolvent.cli.setup import extensions
from evolvent.cli.setup.backends import share_players
from evolvent.cli.setup.method_option import parse_method
from evolvent.cli.setup.model_defaults import fill_model_defaults, find_train_defaults, read_model_facts
from evolvent.cli.setup.prompt_data import check_isolation, print_world_notes
from evolvent.cli.setup.prompting import check_listed_actions, fill_history, load_prompted_worlds
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import check_policy_name, resolve_policy
from evolvent.cli.setup.run_setup import (
    RunSetup,
    count_panel_episodes,
    open_run,
    print_results,
    print_verdict,
    write_report,
)
from evolvent.cli.setup.settings import AnyCommand, Command, parse_command
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.cli.train.control import is_control_request
from evolvent.cli.train.control import run as run_control
from evolvent.cli.train.ranks import (
    check_model_layout,
    check_ranks_agree,
    choose_practice_layout,
    format_program,
    open_ranks,
    refuse_ranks,
)
from evolvent.cli.train.rl_backends import open_recorded_backend, open_rl_backend
from evolvent.cli.train.rl_settings import EARLIER_DEFAULTS, TrainRLConfig
from evolvent.config import Config
from evolvent.engine.replies import RECORDED_WORLD
from evolvent.engine.servers import share_endpoints
from evolvent.errors import ConfigError, NothingToLearn, Problem
from evolvent.learn.settings import TrainConfig
from evolvent.methods.base import Method
from evolvent.methods.etpo import ETPOConfig, etpo
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.ntpo import NTPOConfig, ntpo
from evolvent.methods.poad import POADConfig, poad
from evolvent.methods.ppo import TOKEN, PPOConfig, ppo
from evolvent.methods.r3 import R3Config, r3
from evolvent.methods.scaling_inter import ScalingInterConfig, scaling_inter
from evolvent.models.adapters import adapt, find_base_problems
from evolvent.models.defaults import ModelFacts
from evolvent.models.placement import check_working_memory
from evolvent.models.policy import Policy
from evolvent.plugins import describe_origin, installed_plugins
from evolvent.rl.settings import RLConfig
from evolvent.rollout.episode import FailureCounts, collect
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.view.escape import show_hidden
from evolvent.view.redraw import redraw_repeatedly
from evolvent.worlds.base import World

if TYPE_CHECKING:  # a mistake in the settings is reported before torch is imported
    from evolvent.agents.candidates import CandidateDivisor
    from evolvent.learn.parallel.ranks import RankCoordinator
    from evolvent.scale.recorded_backend import RecordedSessions

__all__ = ["METHODS", "describe_methods", "make_command", "run"]


METHODS: dict[str, Method] = {
    "ppo": Method(PPOConfig, ppo, "PPO over whole actions, as they are written", values="critic"),
    "twosome": Method(
        PPOConfig,
        ppo,
        "PPO over the actions that a world lists (TWOSOME)",
        {"level": "listed"},
        fixed=("level",),
        values="critic",
    ),
    "glam": Method(
        PPOConfig,
        ppo,
        "PPO over listed actions, whose lengths are not normalized (GLAM)",
        {"level": "listed", "normalization": "sum"},
        fixed=("level", "normalization"),
        values="critic",
    ),
    "token_ppo": Method(
        PPOConfig, ppo, "PPO over tokens as in learning from human feedback", TOKEN, fixed=("level",), values="critic"
    ),
    "ntpo": Method(NTPOConfig, ntpo, "PPO over tokens, discounted between them: POAD's baseline", values="critic"),
    "poad": Method(POADConfig, poad, "credit for every token of an action, without a discount inside", values="critic"),
    "etpo": Method(
        ETPOConfig,
        etpo,
        "soft values of every next token, near the policy it began with",
        {"practice": {"ppo_epochs": 4, "critic_lr": 3e-4}},
        values="soft_q",
    ),
    "grpo": Method(GRPOConfig, grpo, "episodes of a task compared: GRPO and its family (rl.kind)"),
    "scaling_inter": Method(ScalingInterConfig, scaling_inter, "GRPO with episodes that grow longer by phases"),
    "r3": Method(
        R3Config,
        r3,
        "episodes begin inside demonstrations: a reverse curriculum",
        {"practice": {"ppo_epochs": 2, "group_size": 1}},
        demonstrated=True,
        values="critic",
    ),
}


def _make_config_class(name: str, method: Method) -> type[TrainRLConfig]:
    method_defaults = dict(method.defaults or {})
    settings: Any = method.config
    if method.fixed:  # one value alone, which help and messages then show
        fixed_fields: Any = {
            field_name: (
                Literal[method_defaults[field_name]],
                Field(default=method_defaults[field_name], description=f"what {name} is"),
            )
            for field_name in method.fixed
        }
        settings = create_model(settings.__name__, __base__=settings, **fixed_fields)
    method_settings: Config = settings(**method_defaults)
    description = f"settings of {name}"
    method_literal: Any = Literal[name]
    config_class: type[TrainRLConfig] = create_model(
        f"Reinforce_{name}",
        __base__=TrainRLConfig,
        method=(method_literal, Field(default=name, description="the method")),
        rl=(settings, Field(default=method_settings, description=description)),
    )
    return config_class


_HIGH_MISMATCH = 0.1  # nats by which sampler and learner differ where they are not the same weights
CLONE_CONFIG = TrainConfig(lr=5e-3, betas=(0.9, 0.95), batch_tokens=512)


def describe_methods() -> dict[str, str]:
    """Returns a description or the origin of every method by name; loads none of other packages."""
    descriptions = {name: method.about for name, method in METHODS.items()}
    return {
        **descriptions,
        **{name: describe_origin(entry_point) for name, entry_point in installed_plugins("methods", METHODS).items()},
    }


def _load_method(name: str) -> Method:
    return METHODS[name] if name in METHODS else extensions.load_method(installed_plugins("methods")[name])


def make_command(name: str, method: Method | None = None) -> AnyCommand:
    """Makes the command of a method, with its settings as `rl`.

    Raises:
        ConfigError: a method of another package that cannot be loaded.
    """
    method = method or _load_method(name)
    description = (
        f"{name}: {method.about}. Begins with a policy, or with one that imitated demonstrations. "
        "--from_run RUN learns from recorded sessions (serve --record) in place of worlds. "
        "torchrun --nproc-per-node N -m evolvent train rl ... plays and learns over N ranks."
    )
    return Command(
        "train rl",
        description,
        _make_config_class(name, method),
        resumes=True,
        free_settings=("backend", "device", "endpoint", "hand_over", "hand_over_as", "parallel.", "train.offload"),
        earlier_defaults=EARLIER_DEFAULTS,
    )


def run(
    argv: Sequence[str],
    console: Console,
    coordinator: RankCoordinator | None = None,
    *,
    card_gib: float | None = None,
) -> int:
    """Trains by the named method; returns the exit code.

    Args:
        argv: the arguments after `train rl`.
        console: the console; of several ranks only that of the first shows anything.
        coordinator: coordinates the ranks that torchrun started; None: one process.
        card_gib: only plan the memory, for a device of so many GiB (0: the one that would train); None: train.
    """
    world_size = 1 if coordinator is None else coordinator.world
    name, method_argv = parse_method(argv, describe_methods(), default="poad")
    if name is None:
        console.print(_format_usage(), soft_wrap=True)
        return 0
    if name == "ppo" and is_control_request(method_argv):
        refuse_ranks(world_size, "control worlds are learned in one process")
        _refuse_plan(card_gib, "the networks of control worlds are small")
        return run_control(method_argv, console)
    method = _load_method(name)
    args = parse_command(make_command(name, method), _name_sessions(method_argv), console)
    if args is None:
        return 0
    sessions_folder = _find_sessions(args.config)
    if sessions_folder is not None:
        from evolvent.scale.recorded_backend import RecordedSessions

        refuse_ranks(world_size, "recorded sessions are learned in one process")
        if (mesh := args.config.parallel.mesh).size > 1:
            message = f"recorded sessions are learned in one process: got {mesh}"
            raise ConfigError([Problem("parallel", message, "leave the layout out")])
        _refuse_plan(card_gib, "recorded sessions are not played")
        sessions = RecordedSessions(sessions_folder)
        return _run_recorded(name, method, args.config, sessions=sessions, resume=args.resume, console=console)
    if args.config.endpoint:
        share_endpoints(args.config.endpoint, num_ranks=world_size)
    if card_gib is not None:
        parallel = args.config.parallel.over(world_size, copies=args.config.adapter.kind != "none")
        config = args.config.model_copy(update={"parallel": parallel})
        return _print_plan(method, config, console, card_gib=card_gib)
    return _run_in_worlds(name, method, args, argv, console=console, coordinator=coordinator)


def _refuse_plan(card_gib: float | None, reason: str) -> None:
    """Raises ConfigError where a plan is requested that cannot be made, with the reason."""
    if card_gib is not None:
        raise ConfigError([Problem("--plan", f"cannot plan this training: {reason}", "leave it out")])


def _print_plan(method: Method, config: Any, console: Console, *, card_gib: float) -> int:
    """Prints the memory that the training would need; returns the exit code."""
    from evolvent.cli.train.planning import print_rl_plan

    facts = read_model_facts(config.policy, adapter=config.adapter.kind)
    config = fill_model_defaults(config, facts, console, policy=config.policy)
    worlds_by_name = load_prompted_worlds(
        config.worlds, config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    )
    worlds, practice = list(worlds_by_name.values()), getattr(config.rl, "practice", None)
    return print_rl_plan(config, practice, worlds, console, values=method.values, card_gib=card_gib)


def _run_in_worlds(
    name: str, method: Method, args: Any, argv: Sequence[str], *, console: Console, coordinator: RankCoordinator | None
) -> int:
    """Trains by playing; returns the exit code."""
    world_size = 1 if coordinator is None else coordinator.world
    if not args.resume:
        check_policy_name(args.config.policy)
    facts = read_model_facts(args.config.policy, adapter=args.config.adapter.kind)
    config = _restrict_practice(fill_model_defaults(args.config, facts, console, policy=args.config.policy))
    parallelism = choose_practice_layout(
        config.parallel,
        config.rl,
        method=config.method,
        has_adapter=config.adapter.kind != "none",
        output_dir=args.resume or config.output_dir,
        world_size=world_size,
        argv=argv,
    )
    rank = 0 if coordinator is None else coordinator.rank
    backend = share_players(config.backend, num_ranks=world_size, rank=rank)
    own_share = {"backend": backend, "parallel": parallelism}
    own_config = config.model_copy(update=own_share)
    prompt = config.agent.make_prompt(seed=config.seed, is_pretrained=facts.is_pretrained)
    worlds_by_name = load_prompted_worlds(config.worlds, prompt)
    print_world_notes(console, worlds_by_name)
    check_isolation(worlds_by_name, backend=config.backend)
    tasks = _choose_tasks(worlds_by_name, config)
    _check_actions(config, worlds_by_name, name)

    from evolvent.cli.train.planning import check_rl_memory  # with torch: mistakes in worlds and files are told before

    _check_savings(own_config)
    folder = args.resume or (choose_run_folder("rl", config.output_dir) if rank == 0 else config.output_dir)
    config, initial = _load_initial_policy(config, list(worlds_by_name.values()), console, world_size=world_size)
    check_model_layout(initial, parallelism, world_size=world_size, adapter=config.adapter.kind)
    check_working_memory(initial.model, context=initial.context, trains=True)
    is_cloned = bool(tasks[0] or config.random)
    practice = getattr(config.rl, "practice", None)
    engine_bytes = check_rl_memory(own_config, practice, initial, values=method.values, is_cloned=is_cloned)
    record = RunRecord("train rl", config, config.seed, ("base", name), name, program=format_program(world_size))
    job = _make_setup(folder, worlds_by_name, record, facts, is_cloned=is_cloned)
    job = replace(job, engine_bytes=engine_bytes)
    with (
        open_ranks(parallelism, device=config.device, coordinator=coordinator) as ranks,
        open_rl_backend(
            own_config, worlds_by_name, prompt, initial=initial, ranks=ranks, parallelism=parallelism
        ) as backend_factory,
    ):
        if ranks is not None:
            check_ranks_agree(ranks, config, worlds_by_name, initial=initial, tasks=tasks[1])
            initial = initial.to(ranks.device)
            placement = replace(config.placement, device=str(ranks.device))
            job = replace(job, ranks=ranks, placement=placement)
        else:
            backend_factory = partial(backend_factory, parallelism=parallelism)
        job = replace(job, backend_factory=backend_factory)
        console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
        _run_job(job, console, method, config, initial=initial, tasks=tasks)
        if ranks is None or ranks.is_leader:
            print_verdict(console, folder)
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


def _load_initial_policy(
    config: Any, worlds: Sequence[World], console: Console, *, world_size: int
) -> tuple[Any, Policy]:
    """Returns the settings with what follows from the loaded policy, and that policy with its adapter."""
    # Weights of 4 bits are made in main memory, and the device never holds the floats.
    is_loaded_here = world_size > 1 or config.adapter.base_bits is not None
    placement = replace(config.placement, device="cpu") if is_loaded_here else config.placement
    loaded_policy = resolve_policy(
        config.policy, worlds, seed=config.seed, placement=placement, history=config.agent.history
    )
    config = fill_history(config, loaded_policy, console)
    initial = adapt(loaded_policy, config.adapter, seed=config.seed)
    del loaded_policy  # floats below weights of 4 bits
    if world_size == 1 and config.adapter.base_bits is not None:
        initial = initial.to(config.device)
    return config, initial


def _is_action_level(config: Any) -> bool:
    return getattr(config.rl, "level", "") == "listed"


def _find_divisor(config: Any) -> CandidateDivisor:
    """Returns what the log-probability of a listed action is divided by."""
    return config.rl.candidate_divisor if isinstance(config.rl, PPOConfig) else "words"


def _restricts_actions(config: Any) -> bool:
    practice = getattr(config.rl, "practice", None)  # methods of other packages may do without
    return bool(practice and practice.restrict_to_admissible)


def _check_savings(config: Any) -> None:
    """Raises ConfigError where the training cannot save memory as requested, or would gain nothing by it."""
    from evolvent.learn.optim.make import check_offload
    from evolvent.rl.trainer import check_reference_offload

    train, device_type = config.train.make_train_config(), config.device.partition(":")[0]
    mesh = config.parallel.mesh
    problems = find_base_problems(config.adapter, num_ranks=mesh.size, num_parts=mesh.tp * mesh.pp)
    if train.offloads_optimizer and not problems:
        optimizer = config.train.make_optimizer_config()
        problems = check_offload(optimizer, device_type=device_type, num_ranks=config.parallel.mesh.size)
    if train.offloads_reference and not problems:
        adapter = None if config.adapter.kind == "none" else config.adapter.kind
        problems = check_reference_offload(device_type=device_type, adapter=adapter)
    if problems:
        raise ConfigError(problems)


def _check_actions(config: Any, worlds_by_name: Mapping[str, World], method_name: str) -> None:
    """Raises ConfigError where actions are to be listed, and a world lists none."""
    if _is_action_level(config) or _restricts_actions(config):
        setting = method_name if _is_action_level(config) else "rl.practice.restrict_to_admissible"
        check_listed_actions(worlds_by_name, setting)


def _make_setup(
    folder: Path, worlds_by_name: Mapping[str, World], record: RunRecord, facts: ModelFacts, *, is_cloned: bool
) -> RunSetup:
    """Returns what the run is opened with."""
    config: Any = record.config
    practice = getattr(config.rl, "practice", None)
    panel_size = count_panel_episodes(worlds_by_name, config.panel)
    return RunSetup(
        folder,
        worlds_by_name,
        record,
        train=find_train_defaults(facts, CLONE_CONFIG).model_copy(update={"offload": config.train.offload}),
        panel=config.panel.make_panel(),
        slots=config.slots,
        max_tokens=config.max_tokens,
        threads=config.threads,
        plan=_plan_stages(config, practice.iterations if practice else 0, panel_size, is_cloned=is_cloned),
        rl_train=config.train.make_train_config(),
        optimizer=config.train.make_optimizer_config(),
        action_level=_is_action_level(config),
        candidate_divisor=_find_divisor(config),
        restrict_to_admissible=_restricts_actions(config),
        placement=config.placement,
        rollout_dtype=config.rollout_dtype,
    )


def _run_job(
    job: RunSetup,
    console: Console,
    method: Method,
    config: Any,
    *,
    initial: Policy,
    tasks: tuple[Sequence[Task], Sequence[Task]],
) -> None:
    """Opens the run, imitates, practices, measures, and saves the policy.

    Args:
        tasks: those to demonstrate, and those to practice on.
    """
    (demonstration_tasks, practice_tasks), folder, name = tasks, job.folder, job.record.method
    is_leader = job.ranks is None or job.ranks.is_leader
    redrawing = redraw_repeatedly(partial(write_report, folder)) if is_leader else nullcontext()
    with open_run(job, console) as active_run, redrawing:
        worlds = list(job.worlds.values())
        demonstrations = (
            collect_demonstrations(worlds, demonstration_tasks, seed=config.seed) if demonstration_tasks else []
        )
        best_policy = _train_policy(
            method,
            initial,
            practice_tasks,
            demonstrations,
            random_trajectories=_play_randomly(job.worlds, practice_tasks, config),
            config=config,
            run=active_run.arm(name),
        )
        if is_leader:
            best_policy.save(folder / "model")
        practice = getattr(config.rl, "practice", None)
        round_number = practice.iterations if practice else 1  # of the last measurement
        print_results(console, active_run.arm(name).evaluate(best_policy, round_number))


def _restrict_practice(config: Any) -> Any:
    """Returns the settings with `agent.restrict_to_admissible` in those of the practice, which scores such actions."""
    practice = getattr(config.rl, "practice", None)
    if practice is None or not config.agent.restrict_to_admissible or getattr(config.rl, "level", "") == "listed":
        return config
    practice = practice.model_copy(update={"restrict_to_admissible": True})
    return config.model_copy(update={"rl": config.rl.model_copy(update={"practice": practice})})


def _plan_stages(config: Any, num_iterations: int, panel_size: int, *, is_cloned: bool) -> list[PlannedStage]:
    """Returns the planned stages, in order, with their sizes in tokens, episodes and iterations."""
    cloning = [PlannedStage("fit", config.clone_tokens)] if is_cloned else []
    practice = [PlannedStage("practise", num_iterations)] if num_iterations else []
    measurement = PlannedStage("evaluate", panel_size)
    return [*cloning, measurement, *practice, measurement]


def _train_policy(
    method: Method,
    initial: Policy,
    tasks: Sequence[Task],
    demonstration_trajectories: Sequence[Trajectory],
    *,
    random_trajectories: Sequence[Trajectory],
    config: Any,
    run: Run[Policy],
) -> Policy:
    from evolvent.learn.objectives import weighted_nll

    imitated = [*demonstration_trajectories, *random_trajectories]
    _check_imitated(imitated)
    base_policy = run.fit(initial, imitated, weighted_nll, tokens=config.clone_tokens) if imitated else initial
    run.evaluate(base_policy, 0)
    method_tasks = (
        [*(trajectory.task for trajectory in demonstration_trajectories), *tasks] if method.demonstrated else tasks
    )
    method_options = {"demonstrations": demonstration_trajectories} if method.demonstrated else {}
    best_policy: Policy = method.call(base_policy, method_tasks, config=config.rl, run=run, **method_options)
    return best_policy


def _check_imitated(trajectories: Sequence[Trajectory]) -> None:
    """Raises NothingToLearn with the reasons where no episode to imitate could be scored."""
    failures = FailureCounts()
    for trajectory in trajectories:
        failures.record(trajectory)
    if trajectories and failures.num_unscored == len(trajectories):
        raise NothingToLearn(f"no episode can be imitated: {failures.describe()}")


def _play_randomly(worlds_by_name: Mapping[str, World], tasks: Sequence[Task], config: Any) -> list[Trajectory]:
    """Plays episodes of random listed actions; a policy that imitates them writes valid actions and keeps exploring."""
    starts = [
        Start(task)
        for name in worlds_by_name
        for task in [task for task in tasks if task.world == name][: config.random]
    ]
    episode_stream = collect(
        worlds_by_name,
        starts,
        Random(),
        engine=None,
        seed=config.seed,
        name=lambda named_start: f"random/{named_start.task.id}",
    )
    trajectories_by_id = {trajectory.id: trajectory for trajectory in episode_stream}
    return [trajectories_by_id[f"random/{start.task.id}"] for start in starts]


def _choose_tasks(worlds_by_name: Mapping[str, World], config: Any) -> tuple[list[Task], list[Task]]:
    """Chooses tasks evenly from all trainable tiers.

    Returns:
        (tasks to demonstrate, tasks to practice on).
    Raises:
        ConfigError: a world without enough tasks.
    """
    demonstration_tasks: list[Task] = []
    practice_tasks: list[Task] = []
    problems = []
    for name, world in worlds_by_name.items():
        panels = [list(world.tasks("train", tier)) for tier in world.tiers]
        count = config.demonstrations if _has_expert(world, panels[0]) else 0
        demonstration_tasks += panels[0][:count]
        available = [task for row in zip_longest(panels[0][count:], *panels[1:]) for task in row if task is not None]
        if len(panels[0]) < count or not available:
            message = f"got {count} for world {name!r}, which has {sum(map(len, panels))} training tasks"
            problems.append(Problem("demonstrations", message, "lower demonstrations, or choose another world"))
        practice_tasks += available[: config.tasks]
    if problems:
        raise ConfigError(problems)
    return demonstration_tasks, practice_tasks


def _has_expert(world: World, tasks: Sequence[Task]) -> bool:
    return bool(tasks) and world.expert(tasks[0]) is not None


def _name_sessions(argv: Sequence[str]) -> list[str]:
    """Replaces `--from_run RUN` in a command line by the name of a world, `sessions:RUN`.

    >>> _name_sessions(["--from-run", "runs/agent", "--seed", "1"])
    ['--worlds', '["sessions:runs/agent"]', '--seed', '1']
    """
    named: list[str] = []
    remaining = list(argv)
    while remaining:
        word = remaining.pop(0)
        name, equals_sign, value = word.partition("=")
        if name.replace("-", "_") != "__from_run":
            named.append(word)
            continue
        value = value if equals_sign or not remaining else remaining.pop(0)
        if not value or any(argument.partition("=")[0] == "--worlds" for argument in argv):
            message = "is given beside --worlds" if value else "missing value"
            raise ConfigError([Problem("--from_run", message, "name one run of recorded sessions")])
        named += ["--worlds", json.dumps([f"{RECORDED_WORLD}:{value}"])]
    return named


def _find_sessions(config: TrainRLConfig) -> Path | None:
    """Returns the folder of the recorded sessions that take the place of worlds, if any."""
    prefix = f"{RECORDED_WORLD}:"
    names = [name for name in config.worlds if name.startswith(prefix)]
    if names and len(config.worlds) > 1:
        raise ConfigError([Problem("worlds", "sessions cannot be combined with worlds", "name one run alone")])
    return Path(names[0].removeprefix(prefix)) if names else None


def _run_recorded(
    method_name: str,
    method: Method,
    config: Any,
    *,
    sessions: RecordedSessions,
    resume: Path | None,
    console: Console,
) -> int:
    """Trains on the recorded sessions; returns the exit code."""
    from evolvent.cli.train.planning import check_rl_memory
    from evolvent.scale.recorded_backend import recorded_task

    _check_savings(config)
    config = _fill_policy(config, sessions.folder)
    facts = read_model_facts(config.policy, adapter=config.adapter.kind)
    config = fill_model_defaults(config, facts, console, policy=config.policy)
    loaded_policy = resolve_policy(
        config.policy, (), seed=config.seed, placement=config.placement, history=config.agent.history
    )
    config = _fit_practice(fill_history(config, loaded_policy, console), sessions, loaded_policy, console)
    folder = resume or choose_run_folder("rl", config.output_dir)
    practice: RLConfig = config.rl.practice
    initial = adapt(loaded_policy, config.adapter, seed=config.seed)
    del loaded_policy
    check_rl_memory(config, practice, initial, values=method.values, is_cloned=False, plays=False)
    setup = RunSetup(
        folder,
        {},
        RunRecord("train rl", config, config.seed, (method_name,), method_name),
        slots=config.slots,
        max_tokens=config.max_tokens,
        threads=config.threads,
        plan=[PlannedStage("practise", practice.iterations)],
        rl_train=config.train.make_train_config(),
        optimizer=config.train.make_optimizer_config(),
        placement=config.placement,
    )
    console.print(show_hidden(f"run {folder}, report {folder / 'report.html'}"), soft_wrap=True)
    with open_recorded_backend(config, sessions) as backend_factory:
        setup = replace(setup, backend_factory=partial(backend_factory, parallelism=config.parallel))
        with open_run(setup, console) as active_run, redraw_repeatedly(partial(write_report, folder)):
            tasks = [recorded_task(sessions.folder)]
            trained: Policy = method.call(initial, tasks, config=config.rl, run=active_run.arm(method_name))
            trained.save(folder / "model")
            for line in _describe_training(active_run):
                console.print(show_hidden(line), soft_wrap=True)
    print_verdict(console, folder)
    console.print(show_hidden(f"model  {folder / 'model'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


def _fill_policy(config: Any, folder: Path) -> Any:
    """Returns the settings with the policy that was served, where none is named."""
    if "policy" in config.model_fields_set:
        return config
    try:
        served = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]["policy"]
    except (OSError, ValueError, KeyError, TypeError):
        served = None
    if not isinstance(served, str):
        raise ConfigError(
            [Problem("policy", "is missing", "name the model that was served while sessions were recorded")]
        )
    return config.model_copy(update={"policy": served})


def _fit_practice(config: Any, sessions: RecordedSessions, policy: Policy, console: Console) -> Any:
    """Returns the settings with iterations for which there are sessions, where no endpoint brings more.

    Raises:
        ConfigError: a method that does not take episodes from elsewhere, or too few sessions.
    """
    practice = getattr(config.rl, "practice", None)
    if not isinstance(practice, RLConfig):
        raise ConfigError([Problem("method", f"{config.method} does not learn from sessions", "use grpo")])
    if practice.prefetch_rollouts or practice.restrict_to_admissible:
        raise ConfigError([Problem("from_run", "sessions are recorded, not played", "leave out prefetch and choices")])
    num_groups, left_out = sessions.count_usable(practice)
    num_sessions = num_groups * practice.group_size + sum(left_out.values())
    summary = f"{num_sessions} sessions in {sessions.folder}: {num_groups} groups of {practice.group_size} of one task"
    console.print(show_hidden(summary + _describe_left_out(left_out)), soft_wrap=True)
    if config.endpoint:
        return config
    if num_groups == 0:
        hint = "record more sessions of each task, or lower --rl.practice.group_size"
        raise ConfigError([Problem("from_run", f"{summary}{_describe_left_out(left_out)}", hint)])
    tasks_per_iteration = min(practice.tasks_per_iteration, num_groups)
    iterations = min(practice.iterations, num_groups // tasks_per_iteration)
    if (iterations, tasks_per_iteration) != (practice.iterations, practice.tasks_per_iteration):
        num_left = num_groups - iterations * tasks_per_iteration
        fitted_text = f"they suffice for {_count(iterations, 'iteration')} of {_count(tasks_per_iteration, 'task')}"
        rest_text = f"; {_count(num_left, 'group')} left over" if num_left else ""
        console.print(fitted_text + rest_text, soft_wrap=True)
    oldest = min(generation.policy_version for session in sessions.read() for generation in session.generations)
    fitted = practice.model_copy(
        update={
            "tasks_per_iteration": tasks_per_iteration,
            "iterations": iterations,
            "max_policy_lag": max(practice.max_policy_lag, policy.version + iterations - oldest),
        }
    )
    return config.model_copy(update={"rl": config.rl.model_copy(update={"practice": fitted})})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _describe_left_out(left_out: Counter[str]) -> str:
    return "".join(f"; {count} {reason}" for reason, count in left_out.most_common())


def _describe_training(run: Run[Policy]) -> list[str]:
    """Returns the returns of the first and the last iteration, and a warning where other weights had played."""
    rows = [row for row in run.metrics("practise") if isinstance(row.get("return"), float)]
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    shown_rows = [first] if first["step"] == last["step"] else [first, last]
    returns = [f"{row['return']:.3f} in iteration {row['step']}" for row in shown_rows]
    lines = [f"mean return {', '.join(returns)}"]
    mismatch = first.get("mismatch")
    if isinstance(mismatch, float) and mismatch > _HIGH_MISMATCH:
        lines.append(
            f"the recorded log-probabilities differ from those of the policy (mismatch {mismatch:.2g}): "
            "check that --policy is the model that was served"
        )
    return lines


def _format_usage() -> str:
    lines = "\n".join(f"  {name:14}{about}" for name, about in describe_methods().items())
    return (
        "usage: evolvent train rl --method NAME [FILE.toml] [--key value ...]\n\n" + lines + "\n\n"
        "`evolvent train rl --method NAME --help` lists the settings. It begins with\n"
        "`--policy` (a size, a model folder, a run); `--demonstrations 0` imitates none."
    )
