"""The documentation page of a world: a profile as Markdown, the same text for the same profile.

A world may come from another package, so its texts are untrusted: they stand in fenced blocks that they cannot close,
or are escaped.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap

from evolvent.trajectory import Score
from evolvent.view.card import format_percent
from evolvent.view.escape import clip, show_hidden
from evolvent.view.markdown import escape_markdown, format_name, format_table, join_lines
from evolvent.worlds.base import SPLITS
from evolvent.worlds.profile import PLAYED_SPLIT, ExampleEpisode, ExampleStep, TierProfile, WorldProfile

__all__ = ["TIER_LABELS", "build_world_page"]

TIER_LABELS = {"seen": "seen kinds", "evo": "unseen kinds", "combo": "new combinations", "longer": "longer"}
_LINE_CHARS = 100
_MAX_INSTRUCTION_CHARS = 4000
_MAX_FIRST_OBSERVATION_CHARS = 2000
_MAX_OBSERVATION_CHARS = 500
_MAX_ACTION_CHARS = 600
_MAX_STEPS = 40
_MAX_ADMISSIBLE = 8


def build_world_page(profile: WorldProfile, *, load_name: str, description: str = "", options: str = "") -> str:
    """Builds the page of a world.

    Args:
        profile: the facts.
        load_name: the name by which commands load the world, such as `crafting` or `kitchen:small`.
        description: a phrase about the world, or its origin.
        options: the options that its name takes, in words.
    """
    sections = [
        f"# {escape_markdown(load_name, 80) or '-'}",
        *([_format_sentence(description)] if description else []),
        _format_properties(profile),
        *_format_instructions(profile.instructions),
        *_format_actions(profile),
        *_format_observations(profile.example),
        *_format_rewards(profile),
        *_format_end(profile),
        *_format_tiers(profile.tiers),
        *_format_baselines(profile, load_name),
        *_format_example(profile.example),
        *_format_usage(profile, load_name, options),
    ]
    return "\n\n".join(sections) + "\n"


def _format_sentence(text: str) -> str:
    """Formats a phrase as a sentence. It begins with a letter, since other characters might begin a list."""
    phrase = join_lines(text, 400).rstrip(".")
    is_plain = phrase[:1].isalpha()
    return f"{escape_markdown(phrase[:1].upper() + phrase[1:] if is_plain else f'Summary: {phrase}', 420)}."


def _format_instructions(instructions: str) -> Iterator[str]:
    if instructions.strip():
        yield "## Task\n\nAn agent reads these instructions before its first observation:"
        yield _fence(clip(instructions, _MAX_INSTRUCTION_CHARS))
    else:
        yield "## Task\n\nThe world gives no instructions: its observations say what to do."


def _format_properties(profile: WorldProfile) -> str:
    size = profile.vocabulary_size
    rows = [
        ("world", f"{format_name(profile.name)}, version {format_name(profile.version)}"),
        ("horizon", _count_steps(profile.horizon)),
        ("reward of a step", _format_range(profile.reward_range)),
        ("vocabulary", "open" if size is None else f"closed, {size:,} words"),
        ("forks", _format_bool(profile.is_forkable, "a search can copy a running episode")),
        ("renames", _format_bool(profile.supports_renaming, "a task can be restated under other names")),
        ("rationales", _format_bool(profile.supports_rationales, "the expert gives a thought for each action")),
    ]
    if profile.run_in_thread:
        rows.append(("runs in a thread", "yes: a step may be slow"))
    if profile.chance:
        rows.append(("success of guessing", format_percent(profile.chance)))
    return format_table(("property", "value"), rows)


def _format_actions(profile: WorldProfile) -> Iterator[str]:
    summary = f" {escape_markdown(profile.grammar_summary, 300)}." if profile.grammar_summary else ""
    yield f"## Actions\n\nGrammar: {format_name(profile.grammar_name)}.{summary}"
    example = profile.grammar_example
    if example is None:
        yield "There is no example: the world has neither an expert nor a list of actions."
    else:
        yield "A model writes, for example:"
        yield _fence(clip(example.text, _MAX_ACTION_CHARS))
        thought = "" if example.parsed.thought is None else ", after a thought"
        if example.parsed.action == example.text:
            yield f"This text is the action{thought}."
        else:
            yield f"The action in this text{thought}:"
            yield _fence(clip(example.parsed.action, _MAX_ACTION_CHARS))
    admissible = profile.example.admissible if profile.example is not None else ()
    if admissible:
        yield f"The world lists its admissible actions: {len(admissible):,} before the first step of the example below."
        yield _fence("\n".join(_select_evenly(admissible, _MAX_ADMISSIBLE)), cut=len(admissible) - _MAX_ADMISSIBLE)
    else:
        yield "The world does not list admissible actions."


def _select_evenly(texts: Sequence[str], limit: int) -> list[str]:
    """Returns at most `limit` texts, spread over the sequence.

    >>> _select_evenly("abcdefgh", 3)
    ['a', 'c', 'f']
    """
    count = min(limit, len(texts))
    return [clip(join_lines(texts[index * len(texts) // count]), 200) for index in range(count)]


def _format_observations(example: ExampleEpisode | None) -> Iterator[str]:
    if example is None:
        yield "## Observations\n\nThe world has no task, so there is no observation to show."
    else:
        yield f"## Observations\n\nThe first observation of {_name_task(example)}:"
        yield _fence(_shorten(example.observation, _MAX_FIRST_OBSERVATION_CHARS))


def _name_task(example: ExampleEpisode) -> str:
    kind = f" (kind {format_name(example.kind, 80)})" if example.kind else ""
    tier = TIER_LABELS.get(example.tier) or f"the tier {format_name(example.tier)}"
    return f"the first {format_name(example.split)} task of {tier}{kind}"


def _name_tier(tier: str) -> str:
    return TIER_LABELS.get(tier) or format_name(tier)


def _count_steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def _format_rewards(profile: WorldProfile) -> Iterator[str]:
    yield f"## Rewards\n\nThe reward of one step lies in the range {_format_range(profile.reward_range)}."
    if profile.example is None or not profile.example.steps:
        return
    rewards = [step.reward for step in profile.example.steps]
    values = ", ".join([*map(_format_reward, rewards[:_MAX_STEPS]), *(["..."] if len(rewards) > _MAX_STEPS else [])])
    sentence = f"The example below earns the reward{'s' if len(rewards) > 1 else ''} {values}."
    yield f"{sentence} {_format_score(profile.example.score)}".strip()


def _format_score(score: Score | None) -> str:
    if score is None:
        return ""
    if score.raw is None:
        return "A step without a reward leaves the episode without a score."
    unit = "" if score.unit in (None, score.raw) else f" ({score.unit:g} on the scale from 0 to 1)"
    return f"The episode scores {score.raw:g}{unit} and counts as {'a success' if score.success else 'a failure'}."


def _format_end(profile: WorldProfile) -> Iterator[str]:
    yield "## End of an episode"
    if profile.horizon == 1:
        yield "An episode is one step: the first action ends it."
        return
    end = f"The environment decides when an episode ends. It lasts at most {_count_steps(profile.horizon)}."
    if profile.expert_steps is None:
        yield end
    else:
        low, high = profile.expert_steps
        lengths = _count_steps(low) if low == high else f"{low:,} to {_count_steps(high)}"
        yield f"{end} The expert takes {lengths} on the tasks played below."


def _format_tiers(tiers: Sequence[TierProfile]) -> Iterator[str]:
    yield (
        "## Tiers\n\nTiers group tasks by their distance from the demonstrations, nearest first. A kind is the "
        "structure of a task without its names. The table counts tasks by split, and kinds over all splits."
    )
    rows = [
        (
            _name_tier(tier.name),
            format_name(tier.name),
            *(f"{tier.num_tasks.get(split, 0):,}" for split in SPLITS),
            f"{tier.num_kinds:,}",
        )
        for tier in tiers
    ]
    yield format_table(("tasks", "tier", *SPLITS, "kinds"), rows, numbers=(*SPLITS, "kinds"))


def _format_baselines(profile: WorldProfile, load_name: str) -> Iterator[str]:
    num_played = max((tier.num_played for tier in profile.tiers), default=0)
    yield (
        f"## Baselines\n\nSuccess on the first {num_played:,} `{PLAYED_SPLIT}` tasks of each tier, seed "
        f"{profile.seed}. The random agent draws uniformly from the admissible actions. Blind replay repeats the "
        "most frequent training plan of the task's kind and reads no observation."
    )
    columns = ("tasks", "played", "expert", "random agent", "blind replay")
    rows = [
        (
            _name_tier(tier.name),
            f"{tier.num_played:,}",
            format_percent(tier.audit.expert),
            format_percent(tier.audit.random),
            format_percent(tier.audit.replay),
        )
        for tier in profile.tiers
    ]
    yield format_table(columns, rows, numbers=columns[1:])
    notes = []
    if all(tier.audit.expert is None for tier in profile.tiers):
        notes.append("The world has no expert, hence no blind replay.")
    if all(tier.audit.random is None for tier in profile.tiers):
        notes.append("The world lists no admissible actions, hence no random agent.")
    if notes:
        yield " ".join(notes)
    yield "So few tasks give rough figures. The audit plays every test task:"
    yield _fence(f"evolvent worlds audit {_quote_argument(load_name)}", language="sh")


def _format_example(example: ExampleEpisode | None) -> Iterator[str]:
    if example is None or not example.steps:
        return
    heading = "The expert" if example.player == "expert" else "A random agent"
    yield f"## Example episode\n\n{heading} plays {_name_task(example)}."
    blocks = [_format_field("observation", example.observation, _MAX_FIRST_OBSERVATION_CHARS)]
    blocks += [_format_step(number, step) for number, step in enumerate(example.steps[:_MAX_STEPS], 1)]
    left_out = len(example.steps) - _MAX_STEPS
    if left_out > 0:
        blocks.append(f"[{left_out:,} more steps are not shown]")
    if example.is_ended_by_world:
        blocks.append("The environment ends the episode.")
    elif example.player == "expert":
        blocks.append("The plan of the expert ends.")
    else:
        blocks.append("[the episode goes on]")
    yield _fence("\n\n".join(blocks), is_wrapped=True)


def _format_step(number: int, step: ExampleStep) -> str:
    return "\n".join(
        [
            f"step {number}",
            _format_field("action", step.action, _MAX_ACTION_CHARS),
            _format_field("reward", _format_reward(step.reward), _MAX_ACTION_CHARS),
            _format_field("observation", step.observation, _MAX_OBSERVATION_CHARS),
        ]
    )


def _format_field(name: str, text: str, limit: int) -> str:
    """Formats a name and a text of any number of lines beside it."""
    margin = " " * 13
    lines = _wrap_lines(_shorten(text.strip("\n"), limit) or "(empty)", _LINE_CHARS - len(margin))
    return "\n".join([f"{name:13}{lines[0]}", *(f"{margin}{line}".rstrip() for line in lines[1:])])


def _format_usage(profile: WorldProfile, load_name: str, options: str) -> Iterator[str]:
    argument = _quote_argument(load_name)
    yield "## Use"
    if options:
        yield f"Names with options: {escape_markdown(options, 400)}."
    commands = [f"evolvent worlds {verb} {argument}" for verb in ("show", "play")]
    yield _fence("\n".join([*commands, f"evolvent worlds page {argument} --to page.md"]), language="sh")
    lines = ["import evolvent as ev", "", f"world = ev.load_world({json.dumps(load_name)})"]
    if profile.example is not None:
        split, tier = json.dumps(profile.example.split), json.dumps(profile.example.tier)
        lines += [
            f"task = world.tasks({split}, {tier})[0]",
            "env = world.make(task)",
            "observation, info = env.reset()",
            "env.close()",
        ]
    yield _fence("\n".join(lines), language="python")
    yield "`evolvent worlds page` writes this page from the world itself."


def _fence(text: str, *, language: str = "text", cut: int = 0, is_wrapped: bool = False) -> str:
    """Returns a fenced block that its text cannot close; `cut`: number of lines left out, which a mark states."""
    keeps_lines = is_wrapped or language != "text"
    lines = show_hidden(text).split("\n") if keeps_lines else _wrap_lines(text.strip("\n"), _LINE_CHARS)
    if cut > 0:
        lines.append(f"[{cut:,} more are not shown]")
    runs = re.findall(r"`+", "\n".join(lines))
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    return "\n".join([f"{fence}{language}", *lines, fence])


def _shorten(text: str, limit: int) -> str:
    """Replaces the middle of a long text by a mark: the newest part of an observation is often its end.

    >>> print(_shorten("0123456789", 4))
    01
    [... 6 characters are not shown ...]
    89
    """
    if len(text) <= limit:
        return text
    head, tail = text[: limit - limit // 2], text[len(text) - limit // 2 :]
    return f"{head}\n[... {len(text) - limit:,} characters are not shown ...]\n{tail}"


def _wrap_lines(text: str, width: int) -> list[str]:
    """Splits a text into lines of at most `width` characters; lines that fit stay as they are."""
    lines: list[str] = []
    for line in show_hidden(text).split("\n"):
        if len(line) <= width:
            lines.append(line.rstrip())
        else:
            lines += wrap(line, width, expand_tabs=False, replace_whitespace=False, break_on_hyphens=False)
    return lines


def _quote_argument(text: str) -> str:
    return shlex.quote(show_hidden(text).replace("\n", " "))


def _format_range(reward_range: tuple[float, float]) -> str:
    return f"{reward_range[0]:g} to {reward_range[1]:g}"


def _format_bool(value: bool, explanation: str) -> str:
    return f"yes: {explanation}" if value else "no"


def _format_reward(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"
