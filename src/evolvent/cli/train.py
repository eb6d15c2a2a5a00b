"""`evolvent train RECIPE DATA`: train a policy, a reward model or a value head, in one process or over many ranks.

Under torchrun every rank runs this same program; the first speaks, writes the run and draws its report.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from evolvent.cli.console import console_for
from evolvent.cli.planning import plan
from evolvent.cli.preflight import Asked, given
from evolvent.cli.settings import Command, read_given, verb_of
from evolvent.cli.train_recipes import RECIPES, Recipe
from evolvent.cli.training_job import INTERRUPTED, Lesson, Voice
from evolvent.errors import ConfigError, Problem, RankFailed, nearest, unknown
from evolvent.learn.parallel.ranks import Meeting, ranks_of
from evolvent.models.adapters import adapt

__all__ = ["COMMANDS", "run"]

_FREE = ("parallel.", "keep.", "device", "threads")  # a training goes on elsewhere with the same losses
COMMANDS = {
    name: Command(f"train {name}", about, config, main="data", resumes=True, free=_FREE)
    for name, (config, about) in RECIPES.items()
}
_ACTING = {
    "rl": "Learn by acting in worlds; takes no DATA.",
    "tsllm": "Search with a learned value and learn from it; takes no DATA.",
    "openr": "Learn to judge steps, and from that; takes no DATA.",
    "hammer": "Function calling under masked names (Hammer); DATA: rows of calls.",
    "comments": "Comment code, filter it, learn it, again; DATA: rows of code.",
    "p3": "Learn what is easy enough and diverse, round by round (P3).",
    "agdc": "Search for what is not seen, and know when it is found; no DATA.",
    "mat": "A team decides in sequence (MAT, MAPPO, HAPPO); no DATA.",
    "sequence": "Recorded episodes as sequences: DT, ODT, TT, Q-Transformer, BC.",
}
_FAILED = 1
_SIZE = re.compile(r"\d+(\.\d+)?")


def run(words: Sequence[str], console: Console) -> int:
    """Train by a recipe (`sft` where none is named); returns the exit code. Of several ranks one speaks."""
    if not words or words[0] in ("-h", "--help"):
        console.print(_usage(), soft_wrap=True)
        return 0 if words else 2
    if words[0] == "rl":
        from evolvent.cli.train_rl import run as reinforce

        return reinforce(words[1:], console)
    if words[0] in ("tsllm", "openr"):
        from evolvent.cli.train_search import run as distilled

        return distilled(words, console)
    if words[0] in ("hammer", "comments", "p3"):
        from evolvent.cli.train_data import run as curated

        return curated(words, console)
    if words[0] == "agdc":
        from evolvent.cli.train_agdc import run as seeking

        return seeking(words, console)
    if words[0] == "mat":
        from evolvent.cli.train_mat import run as teams

        return teams(words, console)
    if words[0] == "sequence":
        from evolvent.cli.train_sequence import run as sequences

        return sequences(words, console)
    rank = int(os.environ.get("RANK", "0"))
    voice = Voice(rank, console if rank == 0 else console_for(io.StringIO(), {}), Meeting())
    try:
        with _calm(rank), voice.meeting:
            return _run(words, voice)
    except RankFailed as error:
        if error.told:
            raise SystemExit(_FAILED) from error
        where = f" after update {voice.update}" if voice.update else ""
        raise RankFailed(f"{error.what}{where}", value=error.value, hint=error.hint) from error
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(INTERRUPTED) from None
        raise


@contextmanager
def _calm(rank: int) -> Iterator[None]:
    """Without the warnings of torch and its kin; of all ranks but the first nothing is heard but what ends them."""
    quiet = {"transformers": logging.ERROR, **({"evolvent": logging.CRITICAL} if rank else {})}
    before = {name: logging.getLogger(name).level for name in quiet}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(torch|transformers|peft)(\..*)?$")
        if rank:
            warnings.simplefilter("ignore")
        try:
            for name, level in quiet.items():
                logging.getLogger(name).setLevel(level)
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


def _run(words: Sequence[str], voice: Voice) -> int:
    """Read the words, look whether the training can begin, and train."""
    name, rest, card = _taken_apart(words)
    told = read_given(COMMANDS[name], rest, voice.console)
    if told is None:
        return 0
    config: Recipe = told.config
    torch.set_num_threads(config.threads)
    if card is not None:
        return plan(config, voice.console, card=card or None)
    parallel, voice.meeting.timeout = config.parallel, config.parallel.timeout
    command = ["train", name, *rest, *([] if told.resume or config.to else ["--to", "runs/NAME"])]
    asked = Asked(config, shlex.join(command), told.resume, voice.meeting.world, voice.rank)
    found = given(asked)
    tuned = adapt(found.policy, config.adapter, seed=config.seed)
    with ranks_of(parallel.mesh, device=config.device, timeout=parallel.timeout, meeting=voice.meeting) as ranks:
        found = replace(found, device=ranks.device)
        return Lesson(name, asked, given=found, tuned=tuned, ranks=ranks, voice=voice).run()


def _taken_apart(words: Sequence[str]) -> tuple[str, list[str], float | None]:
    """The recipe, the words of its settings, and for a plan the card in GiB (0: the usual one); None: no plan.

    Raises:
        ConfigError: a recipe that does not exist, or a card that is no number.
    """
    first, rest = words[0], list(words)
    if first in RECIPES:
        name, rest = first, rest[1:]
    else:
        near, more = nearest(first, (*RECIPES, *_ACTING)), words[1:2] and not words[1].startswith("--")
        if not first.startswith("--") and (near or more) and not Path(first).exists():
            raise ConfigError([unknown("recipe", first, (*RECIPES, *_ACTING), where="evolvent train")])
        name = _resumed(words) or "sft"
    card = 0.0 if "--plan" in rest else None
    rest = [word for word in rest if word != "--plan"]
    if "--card" in rest:
        at = rest.index("--card")
        text = rest[at + 1] if at + 1 < len(rest) else ""
        if not _SIZE.fullmatch(text) or not float(text):
            raise ConfigError([Problem("--card", f"got {text!r}, expected GiB of a device", "as --plan --card 24")])
        card = float(text)
        del rest[at : at + 2]
    return name, rest, card


def _resumed(words: Sequence[str]) -> str | None:
    """The recipe of the run that is to go on, where the words name one."""
    for at, word in enumerate(words):
        name, mark, run = word.partition("=")
        if name == "--resume" and (mark or at + 1 < len(words)):
            recipe = (verb_of(Path(run if mark else words[at + 1])) or "").partition(" ")[2]
            return recipe if recipe in RECIPES else None
    return None


def _usage() -> str:
    about = {**{name: about for name, (_, about) in RECIPES.items()}, **_ACTING}
    lines = "\n".join(f"  {name:9}{what}" for name, what in about.items())
    return (
        "usage: evolvent train RECIPE DATA [FILE.toml] [--key value ...]\n\n" + lines + "\n\n"
        "Without a recipe it is sft. `evolvent train RECIPE --help` lists the settings.\n"
        "`--plan` says what memory a rank needs and what would fit a device, `--card 24`\n"
        "one of 24 GiB. `--resume RUN` goes on with a run. Over several processes:\n"
        "torchrun --nproc-per-node 4 -m evolvent train sft DATA --to runs/NAME \\\n"
        "  --parallel.shard 2 --parallel.tp 2"
    )
