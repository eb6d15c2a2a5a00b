"""`evolvent worlds list | show NAME | play NAME | audit NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from random import Random

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from evolvent.cli.console import rate, table
from evolvent.cli.parsing import Parser, choose, verbs_help, whole
from evolvent.cli.registry import world, world_origins
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.trajectory import Task, Value
from evolvent.view.escape import plain
from evolvent.worlds.base import SPLITS, Info, World

__all__ = ["run"]


_ABOUT = {
    "list": "the worlds that can be named",
    "show": "what a world is: its instructions, panels and a first task",
    "play": "play a task yourself",
    "audit": "what chance, blind replay and the expert win; is it sound",
}


def run(words: Sequence[str], console: Console) -> int:
    """Run one of the verbs about worlds; returns the exit code."""
    verbs = {"list": _list, "show": _show, "play": _play, "audit": _audit}
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent worlds", _ABOUT), soft_wrap=True)
        return 0
    verb, rest = choose("evolvent worlds", words, verbs)
    return verbs[verb](rest, console)


def _list(words: Sequence[str], console: Console) -> int:
    Parser("evolvent worlds list", "The worlds that can be named: embedded ones and those of installed packages.").read(
        words
    )
    console.print(table(console, ("world", "what it is"), world_origins().items()))
    return 0


def _show(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds show", "What a world is: its instructions, panels and a first observation.")
    parser.add("name", help="a world, such as lookup or crafting:1")
    shown = world(parser.read(words).name)
    console.print(f"{plain(shown.name)}, version {plain(shown.version)}")
    console.print(plain(shown.instructions))
    console.print(f"horizon {shown.horizon} steps, reward {shown.reward_range[0]:g} to {shown.reward_range[1]:g}")
    words_known = shown.vocabulary()
    console.print("vocabulary open" if words_known is None else f"vocabulary of {len(words_known)} words")
    rows = []
    for tier in shown.tiers:
        panels = [shown.tasks(split, tier) for split in SPLITS]
        kinds = {task.kind for panel in panels for task in panel}
        rows.append((tier, *map(len, panels), len(kinds)))
    console.print(table(console, ("tier", *SPLITS, "kinds"), rows, numbers=(*SPLITS, "kinds")))
    firsts = (shown.tasks(split, tier)[:1] for split in reversed(SPLITS) for tier in shown.tiers)
    task = next((task for first in firsts for task in first), None)
    if task is None:
        raise ConfigError([Problem("worlds show", f"the world {shown.name!r} has no task", "look at its files")])
    observation, _ = shown.make(task).reset()
    expert = shown.expert(task)
    console.print(f"the first {task.tier} {task.split} task:")
    console.print(plain(str(observation)))
    if expert is not None:
        console.print("solved by: " + "; ".join(map(plain, expert)))
    return 0


def _task(played: World, split: str, tier: str, index: int) -> Task:
    """The task at a place of a panel; every wrong name is reported at once."""
    problems = [unknown("split", split, SPLITS)] if split not in SPLITS else []
    if tier not in played.tiers:
        problems.append(unknown("tier", tier, played.tiers))
    if problems:
        raise ConfigError(problems)
    panel = played.tasks(split, tier)
    if index >= len(panel):
        many = f"0 to {len(panel) - 1}" if panel else "another split or tier: this panel is empty"
        raise ConfigError([Problem("index", f"no task {index} in {played.name}/{tier}/{split}", f"expected {many}")])
    return panel[index]


def _play(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds play", "Play a task yourself: one action a line; `?` lists actions; EOF ends.")
    parser.add("name", help="a world, such as lookup or crafting:1")
    parser.add("--tier", help="default: the world's first")
    parser.add("--split", default="test", help="default: test")
    parser.add("--index", type=whole, default=0, help="which task of the panel (default 0)")
    found = parser.read(words)
    played = world(found.name)
    task = _task(played, found.split, found.tier or played.tiers[0], found.index)
    env = played.make(task)
    observation, info = env.reset()
    console.print(plain(played.instructions))
    rewards: list[float | None] = []
    over = False
    while not over and len(rewards) < played.horizon:
        console.print(plain(str(observation)))
        action = _line(console)
        if action is None:
            console.print("ended before the end of the episode")
            env.close()
            return 0
        if action == "?":
            listed = info.get("admissible")
            shown = Columns([Text(plain(one)) for one in listed or ()], equal=True, column_first=True)
            console.print(shown if listed else "this world does not list its actions")
            continue
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        over = terminated or truncated
    env.close()
    console.print(plain(str(observation)))
    success = played.score(rewards, info).success
    console.print(f"{'solved' if success else 'not solved'} in {len(rewards)} steps")
    return 0


def _line(console: Console) -> str | None:
    """The next line of the player, None at the end of the input."""
    if sys.stdin.isatty():
        console.print("> ", end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def _audit(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds audit", "Can a world's tasks be won by chance, blind replay or copying?")
    parser.add("name", help="a world, such as lookup or crafting:1")
    parser.add("--split", default="test", help="dev or test (default)")
    parser.add("--limit", type=whole, help="play at most so many tasks of a tier")
    parser.add("--seed", type=whole, default=0, help="of the random agent (default 0)")
    found = parser.read(words)
    if found.split not in ("dev", "test"):
        raise ConfigError([unknown("split", found.split, ("dev", "test"), where="evolvent worlds audit")])
    from evolvent.worlds.audit import audit
    from evolvent.worlds.check import check_env

    audited = world(found.name)
    report = audit(audited, found.split, limit=found.limit, seed=found.seed)
    firsts = [task for tier in audited.tiers for task in audited.tasks(found.split, tier)[:1]]
    checks = [check_env(partial(audited.make, task), seed=found.seed, choose=_some) for task in firsts]
    broken = {problem.where: problem for check in checks for problem in check}
    columns = ("tier", "tasks", "kinds", "expert", "random", "replay", "copies")
    rows = [
        (name, tier.tasks, tier.kinds, rate(tier.expert), rate(tier.random), rate(tier.replay), rate(tier.duplicates))
        for name, tier in report.tiers.items()
    ]
    console.print(table(console, columns, rows, numbers=columns[1:]))
    problems = [*report.problems, *broken.values()]
    for problem in problems:
        console.print(plain(str(problem)))
    console.print(f"{len(problems)} rules broken" if problems else "sound: no rule broken")
    return 1 if problems else 0


def _some(rng: Random, info: Info) -> Value:
    """A listed action; of a world that lists none, a text that is no answer."""
    listed = info.get("admissible")
    return rng.choice(list(listed)) if listed else "?"
