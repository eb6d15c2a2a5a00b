"""The model card of a published policy: Markdown under YAML front matter, filled from the files of its run.

What the run's files do not say is said to be missing, never made up. Everything that comes from them is untrusted and
goes through `markdown`: names become code spans, other text is escaped, strings of the front matter are quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from evolvent.models.catalog import CATALOG
from evolvent.view.data import Episode, ReportData, StageRow
from evolvent.view.markdown import escape_markdown, format_name, format_table, join_lines, quote_yaml
from evolvent.view.outcome import main_arm
from evolvent.view.published import PanelLine, PublishedPolicy, build_lines, compare_with_control, find_lineage
from evolvent.view.sections import flatten_settings

__all__ = ["build_card", "build_front_matter", "format_percent", "list_missing", "strip_folders"]

_FOLDER_PREFIX = re.compile(r"(^|[=:](?!//))(?:[A-Za-z]:(?=[\\/]))?[~/\\](?:[^=:]*[/\\])?")
_WORLD_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,60}")
_MAX_OBSERVATION_CHARS = 400
_MAX_SETTINGS, _MAX_LEARNED_STAGES = 120, 40
_FOLDER = "path/to/this/folder"
_VERB_LABELS = {"fit": "learning", "collect": "exploring", "evaluate": "measuring"}
_TOKEN_COUNTS = {"tokens learned": "trained", "tokens generated": "generated", "tokens computed": "computed"}
_DIALECT_TEXTS = {
    "words": "whole words of a closed vocabulary",
    "chat": "the chat template of the tokenizer",
    "lines": "lines that begin with `Observation:` and `Action:`",
}
_CHAT_EXAMPLE = """turns = [{{"role": "user", "content": {observation}}}]
inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
_LINES_EXAMPLE = """observation = {observation}
inputs = tokenizer(f"Observation: {{observation}}\\nAction:", return_tensors="pt")"""
_TRANSFORMERS_EXAMPLE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForCausalLM.from_pretrained("{folder}")
{asked}
written = model.generate(**inputs, max_new_tokens=32, do_sample=False)
print(tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```"""
_EVOLVENT_EXAMPLE = """```python
import evolvent as ev
from evolvent.cli.setup.registry import load_worlds

policy = ev.load_policy("{folder}")
made = {made}
starts = [ev.Start(task) for world in made.values() for task in world.tasks("test", world.tiers[0])[:3]]
agent = ev.LanguageAgent(policy, ev.Sampling(temperature=0.0))
for played in ev.collect(made, starts, agent, engine=ev.LocalEngine(policy)):
    print(played.task.world, played.actions, played.success)
```"""


def build_card(published: PublishedPolicy) -> str:
    """Builds the whole card. Its only time is the time of the run: the same run gives the same text."""
    panel_lines = build_lines(published)
    parts = [
        build_front_matter(published, panel_lines),
        f"# {escape_markdown(published.name)}",
        _summarize(published),
        "## The model",
        _describe_model(published),
        "## What it was trained on",
        _describe_training(published),
        "## How it was trained",
        _describe_method(published),
        "## Results",
        _describe_results(published, panel_lines),
        "## How to use it",
        _describe_use(published),
        "## Limits",
        _describe_limits(published),
        "## Licence",
        _describe_license(published),
        "## What the run does not say",
        _bullets(list_missing(published, panel_lines)) or "Nothing is missing.",
    ]
    return "\n\n".join(parts) + "\n"


def build_front_matter(published: PublishedPolicy, panel_lines: Sequence[PanelLine]) -> str:
    """Builds the metadata for the Hub: library, task, license, tags, and a result per measured panel with a success
    rate.
    """
    stated_license = published.license
    tags = ["evolvent", "agent", *([published.data.info.method] if published.data.info.method else [])]
    rows = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    rows.append(f"license: {quote_yaml(stated_license.hub if stated_license else 'other')}")
    if stated_license and stated_license.name:
        rows += [f"license_name: {quote_yaml(stated_license.name)}", "license_link: LICENSE"]
    if _initial_name(published) in CATALOG:
        rows.append(f"base_model: {quote_yaml(CATALOG[_initial_name(published)].hub_name)}")
    rows += ["tags:", *(f"- {quote_yaml(tag)}" for tag in dict.fromkeys(tags))]
    scored = [line.result for line in panel_lines if line.result.mean is not None]
    if scored:
        rows += ["model-index:", f"- name: {quote_yaml(published.name)}", "  results:"]
    for row in scored:
        rows += [
            "  - task:",
            "      type: text-generation",
            "      name: Acting in a text world",
            "    dataset:",
            f"      name: {quote_yaml(row.world)}",
            f"      type: {quote_yaml(row.world)}",
            f"      config: {quote_yaml(row.tier)}",
            f"      split: {quote_yaml(row.split)}",
            "    metrics:",
            "    - type: success_rate",
            '      name: "Success rate, %"',
            f"      value: {100 * (row.mean or 0.0):.1f}",
        ]
    return "\n".join([*rows, "---"])


def format_percent(value: float | None) -> str:
    """Formats a rate as a percentage with one decimal, `-` where it is unknown."""
    return "-" if value is None else f"{100 * value:.1f} %"


def strip_folders(text: str) -> str:
    """Returns a setting or a command word without leading folders, which reveal the user's machine."""
    return _FOLDER_PREFIX.sub(r"\1", text)


def list_missing(published: PublishedPolicy, panel_lines: Sequence[PanelLine]) -> list[str]:
    """Lists facts that the run's files lack, or that cannot be read, one sentence each, safe as Markdown."""
    data, sentences = published.data, [f"{escape_markdown(note)}." for note in published.data.notes]
    if data.info.state != "finished":
        state = (
            f"The run's last recorded state is {format_name(data.info.state)}"
            if data.info.state
            else "No end of the run"
        )
        sentences.append(f"{state}{': it may not be over' if data.info.state else ' is recorded'}.")
    if not data.info.config:
        sentences.append("The settings of the run are not recorded.")
    if published.fit is None:
        sentences.append("The ledger of the run does not tell which stage learned this policy.")
    if not panel_lines:
        sentences.append("The run holds no evaluation of this policy.")
    elif not any(line.floors for line in panel_lines):
        sentences.append("What random actions, blind replay and the expert win in these panels was not measured.")
    other_splits = dict.fromkeys(line.result.split for line in panel_lines if line.result.split != "test")
    sentences += [
        f"It was measured on the split {format_name(split)}: if rounds were chosen on it, the figures are too good."
        for split in other_splits
    ]
    if any(line.control is not None and line.control.stage == line.result.stage for line in panel_lines):
        sentences.append("The control is this very policy: what was explored changed nothing.")
    if published.arm not in ("base", "control") and panel_lines and all(line.control is None for line in panel_lines):
        sentences.append("There is no control of its round to compare it with.")
    return sentences


# ---------------------------------------------------------------- sections


def _summarize(published: PublishedPolicy) -> str:
    worlds, method = _world_names(published), published.data.info.method
    worlds_text = f" ({', '.join(map(format_name, worlds))})" if worlds else ""
    method_text = f", method {format_name(method)}" if method else ""
    if published.weights.dialect != "words":
        initial = _find_initial_model(published)
        origin = f"{format_name(initial)}, trained" if initial else "A pretrained model, trained"
        return f"{origin} further with evolvent{method_text}{worlds_text}.\n\n{_caution_text(published)}"
    return (
        f"A causal language model that acts in text worlds{worlds_text}, trained with evolvent{method_text}. It "
        f"reads observations "
        f"and writes actions; it is no assistant and knows nothing else.\n\n{_caution_text(published)}"
    )


def _find_initial_model(published: PublishedPolicy) -> str:
    """Returns the public name of the model that training began with; empty where it was made here."""
    name = _initial_name(published)
    return CATALOG[name].hub_name if name in CATALOG else strip_folders(name)


def _initial_name(published: PublishedPolicy) -> str:
    name = published.data.info.config.get("policy")
    return name if isinstance(name, str) and name not in ("xs", "s", "m") else ""


def _caution_text(published: PublishedPolicy) -> str:
    seed = f" (seed {format_name(published.data.info.seed)})" if published.data.info.seed else ""
    return f"**One run on one seed{seed}: an exploration, not a proof. Another seed may end differently.**"


def _describe_model(published: PublishedPolicy) -> str:
    weights, fit = published.weights, published.fit
    shape = "".join(f", {value:,} {escape_markdown(name)}" for name, value in weights.shape.items())
    origin = f"arm {format_name(fit.arm)}, round {fit.round}, stage {format_name(fit.name)}" if fit is not None else "-"
    rows = [
        ("architecture", f"{format_name(weights.architecture)}{shape}"),
        ("parameters", f"{weights.parameters:,}"),
        ("vocabulary", f"{weights.vocabulary:,} tokens"),
        ("context", f"{weights.context:,} tokens"),
        ("weights", f"{format_name(weights.dtype)}, safetensors"),
        (
            "conversation",
            f"{format_name(weights.dialect)}: {_DIALECT_TEXTS.get(weights.dialect, 'a dialect of its own')}",
        ),
        ("taken from", f"{format_name(strip_folders(published.source))} of the run {format_name(published.name)}"),
        ("learned in", origin),
    ]
    if weights.merged:
        rows.insert(5, ("adapter", f"{format_name(weights.merged)}, merged into the weights"))
    return format_table(("what", "value"), rows)


def _describe_training(published: PublishedPolicy) -> str:
    config, stages = published.data.info.config, find_lineage(published)
    sentences = [f"Worlds: {', '.join(map(format_name, _world_names(published))) or 'not recorded'}."]
    sentences += _describe_data(config, _world_names(published), published.data.info.method)
    explored = [row.result for row in stages if row.verb == "collect"]
    if explored:
        num_played, num_won = (sum(row.get(name, 0) for row in explored) for name in ("episodes", "success"))
        sentences.append(
            f"Explored: {num_played:,.0f} episodes in {len(explored)} rounds, of which {num_won:,.0f} succeeded."
        )
    learned = [row for row in stages if row.verb == "fit" and "trajectories" in row.result]
    sentences += [
        f"Learned in {format_name(row.name)}: {row.result['trajectories']:,.0f} episodes, repeats counted."
        for row in learned[:_MAX_LEARNED_STAGES]
    ]
    logged_sentences = list(_describe_logged_training(published.data))
    return _bullets([*sentences, *logged_sentences]) + (
        "" if logged_sentences else f"\n\n{_tabulate_tokens(stages, published.data.stages)}"
    )


def _describe_logged_training(data: ReportData) -> Iterator[str]:
    """Yields the training totals from the log of a run of `train`, which has no ledger."""
    if data.stages or not data.info.method.startswith("train "):
        return
    updates = {row.step: row.values for row in data.metrics if "lr" in row.values}  # those of a resumed run: the last
    learned, fed = (sum(values.get(name, 0.0) for values in updates.values()) for name in ("tokens", "fed"))
    yield f"Learned: {learned:,.0f} targets in {len(updates):,} updates, for which {fed:,.0f} tokens were fed."


def _describe_data(config: Mapping[str, Any], worlds: Sequence[str], method: str) -> Iterator[str]:
    """Yields the settings of `evolve` and of `train` about their data."""
    counts = config.get("demonstrations")
    if isinstance(counts, list) and counts and all(map(_is_count, counts)):
        padded = [*counts, *[counts[-1]] * len(worlds)]
        counts_text = ", ".join(
            f"{count:,} of {format_name(world)}" for world, count in zip(worlds, padded, strict=False)
        )
        yield f"Demonstrated tasks asked for: {counts_text or counts}."
    for name, text in (
        ("namings", "Times a demonstration is shown under other names, itself included"),
        ("explore", "Tasks of each world to explore without a demonstration"),
    ):
        if _is_count(config.get(name)):
            yield f"{text}: {config[name]:,}."
    if isinstance(config.get("data"), str):
        recipe = f" by the recipe {format_name(method.removeprefix('train '))}" if method.startswith("train ") else ""
        yield f"Learned from {format_name(strip_folders(config['data']))}{recipe}."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _tabulate_tokens(stages: Sequence[StageRow], all_stages: Sequence[StageRow]) -> str:
    """Builds the table of tokens by verb for this policy, and for the run as a whole."""
    if not all_stages:
        return "The ledger holds no finished stage: what this policy cost is not known."
    groups = [(text, [row for row in stages if row.verb == verb]) for verb, text in _VERB_LABELS.items()]
    groups += [("this policy, in all", list(stages)), ("the whole run, every arm", list(all_stages))]
    rows = [
        (
            text,
            str(len(rows)),
            *(f"{sum(row.counts.get(name, 0) for row in rows):,.0f}" for name in _TOKEN_COUNTS.values()),
        )
        for text, rows in groups
    ]
    return format_table(("what", "stages", *_TOKEN_COUNTS), rows, numbers=("stages", *_TOKEN_COUNTS))


def _describe_method(published: PublishedPolicy) -> str:
    info = published.data.info
    command_text = " ".join(strip_folders(argument) for argument in info.command)
    sentences = [f"Method: {format_name(info.method) if info.method else 'not recorded'}."]
    sentences += [f"Seed: {format_name(info.seed)}."] if info.seed else []
    sentences += [f"Command: {format_name(command_text, 400)}."] if command_text else []
    sentences += [f"Begun: {format_name(info.created)}."] if info.created else []
    versions = ", ".join(
        f"{escape_markdown(name)} {escape_markdown(value)}" for name, value in flatten_settings(info.versions)[:12]
    )
    sentences += [f"Versions: {versions}."] if versions else []
    rows = [(format_name(name), format_name(strip_folders(value))) for name, value in flatten_settings(info.config)]
    table = format_table(("setting", "value"), rows[:_MAX_SETTINGS]) if rows else "Its settings are not recorded."
    num_omitted = len(rows) - _MAX_SETTINGS
    return f"{_bullets(sentences)}\n\n{table}" + (
        f"\n\n{num_omitted} more are in `evolvent.json`." if num_omitted > 0 else ""
    )


def _describe_results(published: PublishedPolicy, panel_lines: Sequence[PanelLine]) -> str:
    if not panel_lines:
        return "This policy has not been evaluated in its run: nothing is known about how well it acts."
    floor_names = list(dict.fromkeys(name for line in panel_lines for name in line.floors))[:6]
    cells = [
        (*_panel_cells(line), *(format_percent(line.floors.get(name)) for name in floor_names)) for line in panel_lines
    ]
    columns = [
        "world",
        "tier",
        "split",
        "tasks",
        "success",
        "95 % interval",
        "before exploring",
        "control",
        "difference, 95 %",
    ]
    rates = columns[4:]
    names = [*columns, *(escape_markdown(name.replace("_", " ")) for name in floor_names)]
    empty = {index for index, name in enumerate(names) if name in rates and all(row[index] == "-" for row in cells)}
    kept_columns = [index for index in range(len(names)) if index not in empty]
    rows = [[row[index] for index in kept_columns] for row in cells]
    table = format_table([names[index] for index in kept_columns], rows, numbers=names[3:])
    return f"Share of the tasks of each panel that were solved.\n\n{table}\n\n{_describe_comparison(published)}"


def _panel_cells(line: PanelLine) -> tuple[str, ...]:
    row, paired_difference = line.result, line.difference
    success = f"withheld: {row.errors} episodes with errors" if row.mean is None else format_percent(row.mean)
    interval = (
        f"{format_percent(row.low)} to {format_percent(row.high)}"
        if row.low is not None and row.high is not None
        else "-"
    )
    difference_text = "-" if paired_difference is None else f"{100 * paired_difference.mean:+.1f}"
    if paired_difference is not None and not isnan(paired_difference.low):
        difference_text += f" ({100 * paired_difference.low:+.1f} to {100 * paired_difference.high:+.1f})"
    return (
        format_name(row.world),
        format_name(row.tier),
        format_name(row.split),
        f"{row.n:,}",
        success,
        interval,
        format_percent(line.base.mean if line.base else None),
        format_percent(line.control.mean if line.control else None),
        difference_text,
    )


def _describe_comparison(published: PublishedPolicy) -> str:
    head = compare_with_control(published)
    if head is None or head.difference is None:
        return "One seed: read these rates as an exploration."
    difference, tiers = head.difference, ", ".join(map(format_name, head.tiers))
    interval = (
        "too few tasks for an interval"
        if isnan(difference.low)
        else (f"95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, paired by task")
    )
    return (
        f"Over {tiers}: {100 * difference.mean:+.1f} points against the control of the same run ({interval}). "
        f"One seed is no "
        "proof: another may differ."
    )


def _describe_use(published: PublishedPolicy) -> str:
    input_code = (_LINES_EXAMPLE if published.weights.dialect == "lines" else _CHAT_EXAMPLE).format(
        observation=_example_observation(published)
    )
    worlds = [world for world in _world_names(published) if _WORLD_NAME.fullmatch(world)]
    worlds_are_known = bool(worlds) and len(worlds) == len(_world_names(published))
    worlds_code = (
        f"load_worlds({json.dumps(worlds)})  # installed worlds, by name"
        if worlds_are_known
        else "{}  # the worlds to act in, by name"
    )
    parts = ["With transformers, one action:", _TRANSFORMERS_EXAMPLE.format(folder=_FOLDER, asked=input_code)]
    parts += ["With evolvent, whole episodes:", _EVOLVENT_EXAMPLE.format(folder=_FOLDER, made=worlds_code)]
    if worlds_are_known:
        measure = f"evolvent eval {_FOLDER} --worlds {','.join(worlds)}"
        parts += ["Measured again from the command line:", f"```\n{measure}\n```"]
    return "\n\n".join(parts)


def _example_observation(published: PublishedPolicy) -> str:
    """Returns the first observation of an example episode as a Python string, if the run has a short plain
    observation.
    """
    first_observations = [_first_observation(episode) for episode in published.data.examples]
    plain_observations = [
        text
        for text in first_observations
        if 0 < len(text) <= _MAX_OBSERVATION_CHARS and join_lines(text, 1000) == text
    ]
    return json.dumps(
        plain_observations[0] if plain_observations else "the first observation of a task", ensure_ascii=False
    )


def _first_observation(episode: Episode) -> str:
    return episode.steps[0].observation if episode.steps else ""


def _describe_limits(published: PublishedPolicy) -> str:
    weights, initial = published.weights, _find_initial_model(published)
    sentences = [
        "It was trained and measured on what is named above only.",
        f"An episode, observations and actions together, must fit {weights.context:,} tokens.",
        "Success is measured with the likeliest token at every step unless the settings say otherwise.",
    ]
    if weights.dialect == "words":
        sentences.append("It writes actions of these worlds, not prose.")
        sentences.append("It knows whole words only: evolvent refuses other words, transformers reads them as `<unk>`.")
    if initial:
        sentences.append(f"It began as {format_name(initial)}: the limits and the license of that model hold here too.")
    return _bullets(sentences)


def _describe_license(published: PublishedPolicy) -> str:
    if published.license is None:
        return "No license is stated. Ask those who published it before you use it."
    return f"{format_name(published.license.spdx)}; see the file `LICENSE`."


# ---------------------------------------------------------------- parts


def _world_names(published: PublishedPolicy) -> list[str]:
    """Returns the worlds of the settings, else the measured worlds."""
    configured_worlds = published.data.info.config.get("worlds")
    if (
        isinstance(configured_worlds, list)
        and configured_worlds
        and all(isinstance(name, str) for name in configured_worlds)
    ):
        return list(dict.fromkeys(strip_folders(name) for name in configured_worlds))
    main = main_arm(published.data)
    rows = [row for row in published.data.results if row.arm in (main, "base", published.arm)]
    return sorted({row.world for row in rows})


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
