"""`evolvent worlds list | show NAME | play NAME | audit NAME | page NAME`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from evolvent.agents.plain import Expert
from evolvent.cli.setup.registry import describe_worlds, load_world
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help, parse_count
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.rollout.episode import FailureCounts, collect
from evolvent.trajectory import Start, Task, Value
from evolvent.view.escape import show_hidden
from evolvent.worlds.base import SPLITS, Info, World

__all__ = ["run"]


_VERB_HELP = {
    "list": "the worlds that can be named",
    "show": "what a world is: its instructions, panels and a first task",
    "play": "play a task yourself",
    "audit": "what chance, blind replay and the expert win; is it sound",
    "page": "write the documentation page of a world",
}


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one of the verbs about worlds; returns the exit code."""
    verbs = {"list": _run_list, "show": _run_show, "play": _run_play, "audit": _run_audit, "page": _run_page}
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent worlds", _VERB_HELP), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent worlds", argv, verbs)
    return verbs[verb](verb_argv, console)


def _run_list(argv: Sequence[str], console: Console) -> int:
    Parser(
        "evolvent worlds list", "The worlds that can be named: embedded ones and those of installed packages."
    ).parse_argv(argv)
    console.print(render_table(console, ("world", "what it is"), describe_worlds().items()))
    return 0


def _run_show(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds show", "What a world is: its instructions, panels and a first observation.")
    parser.add("name", help="a world, such as lookup or crafting:1")
    selected_world = load_world(parser.parse_argv(argv).name)
    console.print(f"{show_hidden(selected_world.name)}, version {show_hidden(selected_world.version)}")
    console.print(show_hidden(selected_world.instructions))
    console.print(
        f"horizon {selected_world.horizon} steps, reward {selected_world.reward_range[0]:g} to "
        f"{selected_world.reward_range[1]:g}"
    )
    vocabulary = selected_world.vocabulary()
    console.print("vocabulary open" if vocabulary is None else f"vocabulary of {len(vocabulary)} words")
    rows = []
    for tier in selected_world.tiers:
        panels = [selected_world.tasks(split, tier) for split in SPLITS]
        kinds = {task.kind for panel in panels for task in panel}
        rows.append((tier, *map(len, panels), len(kinds)))
    console.print(render_table(console, ("tier", *SPLITS, "kinds"), rows, numbers=(*SPLITS, "kinds")))
    first_tasks = (selected_world.tasks(split, tier)[:1] for split in reversed(SPLITS) for tier in selected_world.tiers)
    task = next((task for candidates in first_tasks for task in candidates), None)
    if task is None:
        raise ConfigError([Problem("worlds show", f"world {selected_world.name!r} has no task", "check its files")])
    observation, _ = selected_world.make(task).reset()
    expert = selected_world.expert(task)
    console.print(f"the first {task.tier} {task.split} task:")
    console.print(show_hidden(str(observation)))
    if expert is None:
        return 0
    (episode,) = collect(
        {selected_world.name: selected_world}, [Start(task)], Expert(), engine=None, failures=FailureCounts()
    )
    if episode.failure is not None:
        console.print(show_hidden(f"its expert cannot play it: {episode.failure}"), soft_wrap=True)
        return 1
    console.print("solved by: " + "; ".join(map(show_hidden, expert)))
    return 0


def _select_task(selected_world: World, split: str, tier: str, index: int) -> Task:
    """Returns the task at an index of a panel; all wrong names are reported at once."""
    problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
    if tier not in selected_world.tiers:
        problems.append(unknown_name_problem("tier", tier, selected_world.tiers))
    if problems:
        raise ConfigError(problems)
    panel = selected_world.tasks(split, tier)
    if index >= len(panel):
        valid_range = f"0 to {len(panel) - 1}" if panel else "another split or tier, because this panel is empty"
        raise ConfigError(
            [Problem("index", f"got task {index} in {selected_world.name}/{tier}/{split}", f"expected {valid_range}")]
        )
    return panel[index]


def _run_play(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds play", "Play a task yourself: one action a line; `?` lists actions; EOF ends.")
    parser.add("name", help="a world, such as lookup or crafting:1")
    parser.add("--tier", help="default: the world's first")
    parser.add("--split", default="test", help="default: test")
    parser.add("--index", type=parse_count, default=0, help="which task of the panel (default 0)")
    args = parser.parse_argv(argv)
    selected_world = load_world(args.name)
    task = _select_task(selected_world, args.split, args.tier or selected_world.tiers[0], args.index)
    env = selected_world.make(task)
    observation, info = env.reset()
    console.print(show_hidden(selected_world.instructions))
    rewards: list[float | None] = []
    is_over = False
    while not is_over and len(rewards) < selected_world.horizon:
        console.print(show_hidden(str(observation)))
        if "image" in info:
            console.print(show_hidden(str(info["image"])))
        action = _read_line(console)
        if action is None:
            console.print("ended before the end of the episode")
            env.close()
            return 0
        if action == "?":
            admissible = info.get("admissible")
            action_columns = Columns(
                [Text(show_hidden(action_text)) for action_text in admissible or ()], equal=True, column_first=True
            )
            console.print(action_columns if admissible else "this world does not list its actions")
            continue
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        is_over = terminated or truncated
    env.close()
    console.print(show_hidden(str(observation)))
    success = selected_world.score(rewards, info).success
    console.print(f"{'solved' if success else 'not solved'} in {len(rewards)} steps")
    return 0


def _read_line(console: Console) -> str | None:
    """Reads the next line of the player, None at the end of the input."""
    if sys.stdin.isatty():
        console.print("> ", end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def _run_audit(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds audit", "Can a world's tasks be won by chance, blind replay or copying?")
    parser.add("name", help="a world, such as lookup or crafting:1")
    parser.add("--split", default="test", help="dev or test (default)")
    parser.add("--limit", type=parse_count, help="play at most so many tasks of a tier")
    parser.add("--seed", type=parse_count, default=0, help="of the random agent (default 0)")
    args = parser.parse_argv(argv)
    if args.split not in ("dev", "test"):
        raise ConfigError(
            [unknown_name_problem("split", args.split, ("dev", "test"), location="evolvent worlds audit")]
        )
    from evolvent.worlds.audit import audit
    from evolvent.worlds.check import check_env

    selected_world = load_world(args.name)
    report = audit(selected_world, args.split, limit=args.limit, seed=args.seed)
    first_tasks = [task for tier in selected_world.tiers for task in selected_world.tasks(args.split, tier)[:1]]
    checks = [
        check_env(partial(selected_world.make, task), seed=args.seed, choose=_random_action) for task in first_tasks
    ]
    broken = {problem.where: problem for check in checks for problem in check}
    columns = ("tier", "tasks", "kinds", "expert", "random", "replay", "copies")
    rows = [
        (
            name,
            tier.tasks,
            tier.kinds,
            format_rate(tier.expert),
            format_rate(tier.random),
            format_rate(tier.replay),
            format_rate(tier.duplicates),
        )
        for name, tier in report.tiers.items()
    ]
    console.print(render_table(console, columns, rows, numbers=columns[1:]))
    problems = [*report.problems, *broken.values()]
    for problem in problems:
        console.print(show_hidden(str(problem)))
    console.print(f"{len(problems)} rules broken" if problems else "sound: no rule broken")
    return 1 if problems else 0


def _random_action(rng: Random, info: Info) -> Value:
    """Returns a random listed action; a world that lists none gets a text that is not an answer."""
    admissible = info.get("admissible")
    return rng.choice(list(admissible)) if admissible else "?"


def _run_page(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent worlds page", "Write a world's documentation page as Markdown; it plays a few dev tasks.")
    parser.add("name", help="a world, such as lookup or crafting:1")
    parser.add("--to", dest="output_path", metavar="FILE", type=Path, help="file to write (default: print the page)")
    parser.add("--limit", type=parse_count, default=10, help="dev tasks of each tier that are played (default 10)")
    args = parser.parse_argv(argv)
    from evolvent.files import write_atomic
    from evolvent.view.world_page import build_world_page
    from evolvent.worlds.profile import profile_world

    profile = profile_world(load_world(args.name), limit=args.limit)
    description, options = _split_description(args.name, describe_worlds().get(args.name.partition(":")[0], ""))
    page = build_world_page(profile, load_name=args.name, description=description, options=options)
    if args.output_path is None:
        console.print(page, end="", soft_wrap=True)
    else:
        write_atomic(args.output_path, page)
        console.print(f"wrote {show_hidden(str(args.output_path))}", soft_wrap=True)
    return 0


def _split_description(name: str, text: str) -> tuple[str, str]:
    """Splits a registry's text into what the world is and the options that its name takes.

    >>> _split_description("maze", "find the way by the walls; maze:double_t")
    ('find the way by the walls', 'maze:double_t')
    """
    base = name.partition(":")[0]
    phrases = text.split("; ")
    options = (index for index, phrase in enumerate(phrases) if f"{base}:" in phrase)
    first_option = next(options, len(phrases))
    if first_option == 0:
        return text, ""
    return "; ".join(phrases[:first_option]), "; ".join(phrases[first_option:])
