"""`evolvent train RECIPE DATA`: trains a policy, a reward model or a value head, in one process or over many
ranks.

Under torchrun every rank runs this program; the first rank prints, writes the run and draws its report.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.setup.settings import Command, ParsedCommand, parse_command, read_verb
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train.data import find_run_worlds, holds_episodes, summarize_episodes
from evolvent.cli.train.recipes import RECIPES, RecipeConfig
from evolvent.errors import ConfigError, EvolventError, Problem, RankFailed, find_nearest, unknown_name_problem
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.cli.train.job import Logger

__all__ = ["COMMANDS", "RL_METHODS", "run"]

# A training goes on elsewhere with the same losses.
_FREE_SETTINGS = ("parallel.", "keep.", "device", "threads", "train.offload")
COMMANDS = {
    name: Command(f"train {name}", about, config, main_field="data", resumes=True, free_settings=_FREE_SETTINGS)
    for name, (config, about) in RECIPES.items()
}
_OTHER_METHODS = {
    "rl": "Reinforcement learning in worlds, by a method (`train grpo`, ...).",
    "tsllm": "Alternate tree search with a learned value and training; no DATA.",
    "openr": "Train a process reward model, then RL and search with it; no DATA.",
    "hammer": "Function calling with masked names (Hammer); DATA: rows of calls.",
    "comments": "Comment augmentation of code, round by round; DATA: rows of code.",
    "p3": "Policy-driven data selection by difficulty and diversity (P3).",
    "agdc": "Active search that detects that it is at its goal (AGDC); no DATA.",
    "mat": "Multi-agent RL (MAT, MAPPO, HAPPO); no DATA.",
    "return_text": "Text policies asked for a return; DATA: recorded episodes.",
    "sequence": "Offline RL over sequences: DT and kin, TT, Q-Transformer, Gato.",
}
RL_METHODS = ("ppo", "twosome", "glam", "token_ppo", "ntpo", "poad", "etpo", "grpo", "scaling_inter", "r3")
"""Methods of reinforcement learning that `train NAME` reaches too; a test holds them to those of `train rl`."""
_FAILED = 1
_SIZE_PATTERN = re.compile(r"\d+(\.\d+)?")


def run(argv: Sequence[str], console: Console) -> int:
    """Trains by a recipe (`sft` where none is named); returns the exit code. Of several ranks only the first prints."""
    if not argv or argv[0] in ("-h", "--help"):
        console.print(_format_usage(), soft_wrap=True)
        return 0 if argv else 2
    if argv[0] == "rl" or argv[0] in RL_METHODS:  # `train grpo` for `train rl --method grpo`
        from evolvent.cli.train.rl import run as run_rl

        rl_argv, card_gib = _split_plan_options(argv[1:])
        rl_argv = rl_argv if argv[0] == "rl" else ["--method", argv[0], *rl_argv]
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return run_rl(rl_argv, console, card_gib=card_gib)
        return _run_ranks(
            lambda logger: run_rl(rl_argv, logger.console, logger.coordinator, card_gib=card_gib), console
        )
    if argv[0] in ("tsllm", "openr"):
        from evolvent.cli.train.search import run as run_search_training

        return run_search_training(argv, console)
    if argv[0] in ("hammer", "comments", "p3"):
        from evolvent.cli.train.prepared_data import run as run_data_training

        return run_data_training(argv, console)
    if argv[0] == "agdc":
        from evolvent.cli.train.agdc import run as run_agdc

        return run_agdc(argv, console)
    if argv[0] == "mat":
        from evolvent.cli.train.mat import run as run_mat

        return run_mat(argv, console)
    if argv[0] == "return_text":
        from evolvent.cli.train.return_text import run as run_return_text

        return run_return_text(argv, console)
    if argv[0] == "sequence":
        from evolvent.cli.train.sequence import run as run_sequence

        return run_sequence(argv, console)
    parsed = None
    if "RANK" not in os.environ:  # ranks tell a mistake together; one process tells it before torch is imported
        parsed = _parse_arguments(argv, console)
        if parsed.args is None:
            return 0
    return _run_ranks(lambda logger: _run_recipe(parsed or _parse_arguments(argv, logger.console), logger), console)


def _run_ranks(train: Callable[[Logger], int], console: Console) -> int:
    """Trains as one rank of several, or alone; returns the exit code.

    Only the first rank prints, and of the errors of all ranks the first is told once.
    """
    from evolvent.cli.train.job import INTERRUPTED_EXIT_CODE, Logger
    from evolvent.learn.parallel.ranks import RankCoordinator

    rank = int(os.environ.get("RANK", "0"))
    logger = Logger(rank, console if rank == 0 else make_console(io.StringIO(), {}), RankCoordinator())
    try:
        with _suppress_warnings(rank), logger.coordinator:
            return train(logger)
    except RankFailed as error:
        if error.is_reported:
            raise SystemExit(_FAILED) from error
        update_text = f" after update {logger.last_update}" if logger.last_update else ""
        raise RankFailed(f"{error.what}{update_text}", value=error.value, hint=error.hint) from error
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(INTERRUPTED_EXIT_CODE) from None
        raise


@contextmanager
def _suppress_warnings(rank: int) -> Iterator[None]:
    """Hides warnings of torch and related libraries; ranks other than the first log fatal errors only."""
    levels = {"transformers": logging.ERROR, **({"evolvent": logging.CRITICAL} if rank else {})}
    previous_levels = {name: logging.getLogger(name).level for name in levels}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(torch|transformers|peft)(\..*)?$")
        if rank:
            warnings.simplefilter("ignore")
        try:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            yield
        finally:
            for name, level in previous_levels.items():
                logging.getLogger(name).setLevel(level)


class _ParsedArguments(NamedTuple):
    """A recipe, its arguments without it, its settings (None: help was shown), and for a plan the card's memory."""

    recipe: str
    argv: list[str]
    args: ParsedCommand[RecipeConfig] | None
    card_gib: float | None


def _parse_arguments(argv: Sequence[str], console: Console) -> _ParsedArguments:
    """Parses the arguments of a recipe. Raises ConfigError with all mistakes in them."""
    recipe, recipe_argv, card_gib = _parse_recipe(argv)
    return _ParsedArguments(recipe, recipe_argv, parse_command(COMMANDS[recipe], recipe_argv, console), card_gib)


def _run_recipe(parsed: _ParsedArguments, logger: Logger) -> int:
    """Checks that the training can begin, and trains."""
    import torch

    from evolvent.cli.train.job import TrainingCommand
    from evolvent.cli.train.planning import print_plan
    from evolvent.cli.train.preflight import TrainingRequest, check_request
    from evolvent.learn.parallel.ranks import join_ranks
    from evolvent.models.adapters import adapt, quantize_base

    name, recipe_argv, args, card_gib = parsed
    if args is None:
        return 0
    facts = read_model_facts(args.config.policy, adapter=args.config.adapter.kind)
    console = None if logger.rank else logger.console
    config: RecipeConfig = fill_model_defaults(args.config, facts, console, policy=args.config.policy)
    config = _fill_run_worlds(config, console)
    torch.set_num_threads(config.threads)
    if card_gib is not None:
        return print_plan(config, logger.console, card_gib=card_gib or None)
    parallel, logger.coordinator.timeout = config.parallel, config.parallel.timeout
    command = ["train", name, *recipe_argv, *([] if args.resume or config.output_dir else ["--to", "runs/NAME"])]
    request = TrainingRequest(config, shlex.join(command), args.resume, logger.coordinator.world, logger.rank)
    inputs = check_request(request)
    if config.adapter.base_bits is not None:  # the reference of dpo is of 4 bits, too, and no floats stay in memory
        inputs = replace(inputs, policy=quantize_base(inputs.policy))
    tuned_policy = adapt(inputs.policy, config.adapter, seed=config.seed)
    with join_ranks(
        parallel.mesh, device=config.device, timeout=parallel.timeout, coordinator=logger.coordinator
    ) as ranks:
        inputs = replace(inputs, device=ranks.device)
        return TrainingCommand(name, request, inputs=inputs, tuned=tuned_policy, ranks=ranks, logger=logger).run()


def _fill_run_worlds(config: RecipeConfig, console: Console | None) -> RecipeConfig:
    """Returns the settings with the worlds of the run whose episodes are learned, where nobody named any.

    A new policy keeps the default worlds if the run's are among them; an existing one may not know the others' words.
    """
    if "worlds" in config.model_fields_set:
        return config
    try:
        if not holds_episodes(config.data):
            return config
        worlds = find_run_worlds(config.data, summarize_episodes(config.data))
    except EvolventError:  # the check of the request explains it beside all other problems
        return config
    is_new = not Path(config.policy).exists()
    if not worlds or set(worlds) == set(config.worlds) or (is_new and set(worlds) <= set(config.worlds)):
        return config
    if console is not None:
        console.print(show_hidden(f"worlds {', '.join(worlds)}: those of {config.data}"), soft_wrap=True)
    return config.model_copy(update={"worlds": worlds})


def _parse_recipe(argv: Sequence[str]) -> tuple[str, list[str], float | None]:
    """Parses the recipe, its arguments, and for a plan the card's memory.

    Returns:
        (recipe, arguments, memory in GiB; 0: the default card; None: no plan is requested).
    Raises:
        ConfigError: an unknown recipe, or a card that is not a number.
    """
    first, recipe_argv = argv[0], list(argv)
    if first in RECIPES:
        name, recipe_argv = first, recipe_argv[1:]
    else:
        suggestion, has_data = (
            find_nearest(first, (*RECIPES, *_OTHER_METHODS, *RL_METHODS)),
            argv[1:2] and not argv[1].startswith("--"),
        )
        asks_for_help = any(word in ("-h", "--help") for word in argv)
        if not first.startswith("--") and (suggestion or has_data or asks_for_help) and not Path(first).exists():
            raise ConfigError(
                [
                    unknown_name_problem(
                        "recipe", first, (*RECIPES, *_OTHER_METHODS, *RL_METHODS), location="evolvent train"
                    )
                ]
            )
        name = _find_resumed_recipe(argv) or "sft"
    return (name, *_split_plan_options(recipe_argv))


def _split_plan_options(argv: Sequence[str]) -> tuple[list[str], float | None]:
    """Returns the arguments without `--plan` and `--card`, and the card's memory in GiB (0: the default card; None: no
    plan is requested).

    Raises:
        ConfigError: a card that is not a number.
    """
    other_argv = list(argv)
    card_gib = 0.0 if "--plan" in other_argv else None
    other_argv = [word for word in other_argv if word != "--plan"]
    if "--card" in other_argv:
        index = other_argv.index("--card")
        text = other_argv[index + 1] if index + 1 < len(other_argv) else ""
        if not _SIZE_PATTERN.fullmatch(text) or not float(text):
            raise ConfigError(
                [
                    Problem(
                        "--card",
                        f"got {text!r}, expected the memory of a device in GiB",
                        "for example --plan --card 24",
                    )
                ]
            )
        card_gib = float(text)
        del other_argv[index : index + 2]
    return other_argv, card_gib


def _find_resumed_recipe(argv: Sequence[str]) -> str | None:
    """Returns the recipe of the run to resume, where the arguments name one."""
    for index, word in enumerate(argv):
        name, equals_sign, run = word.partition("=")
        if name == "--resume" and (equals_sign or index + 1 < len(argv)):
            recipe = (read_verb(Path(run if equals_sign else argv[index + 1])) or "").partition(" ")[2]
            return recipe if recipe in RECIPES else None
    return None


def _format_usage() -> str:
    descriptions = {**{name: descriptions for name, (_, descriptions) in RECIPES.items()}, **_OTHER_METHODS}
    lines = "\n".join(f"  {name:12}{description}" for name, description in descriptions.items())
    return (
        "usage: evolvent train RECIPE DATA [FILE.toml] [--key value ...]\n\n" + lines + "\n\n"
        "Without a recipe it is sft. `evolvent train RECIPE --help` lists the settings.\n"
        "`--plan` (also of `rl`) says what memory a rank needs, and what would fit the\n"
        "device, or a card of 24 GiB with `--card 24`. `--resume RUN` goes on with a run.\n"
        "Over several processes:\n"
        "torchrun --nproc-per-node 4 -m evolvent train sft DATA --to runs/NAME \\\n"
        "  --parallel.shard 2 --parallel.tp 2"
    )
