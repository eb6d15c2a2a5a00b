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

from evolvent.view.data import Episode, ReportData, StageRow
from evolvent.view.markdown import escaped, grid, named, one_line, quoted
from evolvent.view.outcome import main_arm
from evolvent.view.published import Line, Published, lineage, lines, overall
from evolvent.view.sections import flat

__all__ = ["card", "front_matter", "missing", "percent", "placeless"]

_PLACE = re.compile(r"(^|[=:](?!//))(?:[A-Za-z]:(?=[\\/]))?[~/\\](?:[^=:]*[/\\])?")
_WORLD = re.compile(r"[A-Za-z0-9_.:-]{1,60}")
_LONGEST_OBSERVATION = 400
_MOST_SETTINGS, _MOST_LEARNED = 120, 40
_FOLDER = "path/to/this/folder"
_VERBS = {"fit": "learning", "collect": "exploring", "evaluate": "measuring"}
_COUNTS = {"tokens learned": "trained", "tokens generated": "generated", "tokens computed": "computed"}
_DIALECTS = {
    "words": "whole words of a closed vocabulary",
    "chat": "the chat template of the tokenizer",
    "lines": "lines that begin with `Observation:` and `Action:`",
}
_TURNS = """turns = [{{"role": "user", "content": {observation}}}]
inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)"""
_LINES = """observation = {observation}
inputs = tokenizer(f"Observation: {{observation}}\\nAction:", return_tensors="pt")"""
_TRANSFORMERS = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForCausalLM.from_pretrained("{folder}")
{asked}
written = model.generate(**inputs, max_new_tokens=32, do_sample=False)
print(tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```"""
_EVOLVENT = """```python
import evolvent as ev
from evolvent.cli.registry import worlds

policy = ev.load_policy("{folder}")
made = {made}
starts = [ev.Start(task) for world in made.values() for task in world.tasks("test", world.tiers[0])[:3]]
agent = ev.LanguageAgent(policy, ev.Sampling(temperature=0.0))
for played in ev.collect(made, starts, agent, engine=ev.LocalEngine(policy)):
    print(played.task.world, played.actions, played.success)
```"""


def card(published: Published) -> str:
    """The whole card. It holds no time but the run's own: the same run gives the same text."""
    shown = lines(published)
    parts = [
        front_matter(published, shown),
        f"# {escaped(published.name)}",
        _summary(published),
        "## The model",
        _model(published),
        "## What it was trained on",
        _training(published),
        "## How it was trained",
        _method(published),
        "## Results",
        _results(published, shown),
        "## How to use it",
        _use(published),
        "## Limits",
        _limits(published),
        "## Licence",
        _license(published),
        "## What the run does not say",
        _bullets(missing(published, shown)) or "Nothing is missing.",
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(published: Published, shown: Sequence[Line]) -> str:
    """What the Hub reads: library, task, licence, tags, and one result for each measured panel with a success rate."""
    license = published.license
    tags = ["evolvent", "agent", *([published.data.info.method] if published.data.info.method else [])]
    rows = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    rows.append(f"license: {quoted(license.hub if license else 'other')}")
    if license and license.name:
        rows += [f"license_name: {quoted(license.name)}", "license_link: LICENSE"]
    rows += ["tags:", *(f"- {quoted(tag)}" for tag in dict.fromkeys(tags))]
    scored = [line.result for line in shown if line.result.mean is not None]
    if scored:
        rows += ["model-index:", f"- name: {quoted(published.name)}", "  results:"]
    for row in scored:
        rows += [
            "  - task:",
            "      type: text-generation",
            "      name: Acting in a text world",
            "    dataset:",
            f"      name: {quoted(row.world)}",
            f"      type: {quoted(row.world)}",
            f"      config: {quoted(row.tier)}",
            f"      split: {quoted(row.split)}",
            "    metrics:",
            "    - type: success_rate",
            '      name: "Success rate, %"',
            f"      value: {100 * (row.mean or 0.0):.1f}",
        ]
    return "\n".join([*rows, "---"])


def percent(value: float | None) -> str:
    """A rate as a percentage with one decimal, `-` where it is not known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def placeless(text: str) -> str:
    """A setting or a word of a command without the folders before its last name: they tell of somebody's machine."""
    return _PLACE.sub(r"\1", text)


def missing(published: Published, shown: Sequence[Line]) -> list[str]:
    """What the run's files do not say, or cannot be read, one sentence each, safe as Markdown."""
    data, found = published.data, [f"{escaped(note)}." for note in published.data.notes]
    if data.info.state != "finished":
        state = f"The run's last recorded state is {named(data.info.state)}" if data.info.state else "No end of the run"
        found.append(f"{state}{': it may not be over' if data.info.state else ' is recorded'}.")
    if not data.info.config:
        found.append("The settings of the run are not recorded.")
    if published.fit is None:
        found.append("The ledger of the run does not tell which stage learned this policy.")
    if not shown:
        found.append("The run holds no evaluation of this policy.")
    elif not any(line.floors for line in shown):
        found.append("What random actions, blind replay and the expert win in these panels was not measured.")
    others = dict.fromkeys(line.result.split for line in shown if line.result.split != "test")
    found += [
        f"It was measured on the split {named(split)}: if rounds were chosen on it, the figures are too good."
        for split in others
    ]
    if any(line.control is not None and line.control.stage == line.result.stage for line in shown):
        found.append("The control is this very policy: what was explored changed nothing.")
    if published.arm not in ("base", "control") and shown and all(line.control is None for line in shown):
        found.append("There is no control of its round to compare it with.")
    return found


# ---------------------------------------------------------------- sections


def _summary(published: Published) -> str:
    worlds, method = _worlds(published), published.data.info.method
    where = f" ({', '.join(map(named, worlds))})" if worlds else ""
    how = f", method {named(method)}" if method else ""
    return (
        f"A causal language model that acts in text worlds{where}, trained with evolvent{how}. It reads observations "
        f"and writes actions; it is no assistant and knows nothing else.\n\n{_caution(published)}"
    )


def _caution(published: Published) -> str:
    seed = f" (seed {named(published.data.info.seed)})" if published.data.info.seed else ""
    return f"**One run on one seed{seed}: an exploration, not a proof. Another seed may end differently.**"


def _model(published: Published) -> str:
    weights, fit = published.weights, published.fit
    shape = "".join(f", {value:,} {escaped(name)}" for name, value in weights.shape.items())
    place = f"arm {named(fit.arm)}, round {fit.round}, stage {named(fit.name)}" if fit is not None else "-"
    rows = [
        ("architecture", f"{named(weights.architecture)}{shape}"),
        ("parameters", f"{weights.parameters:,}"),
        ("vocabulary", f"{weights.vocabulary:,} tokens"),
        ("context", f"{weights.context:,} tokens"),
        ("weights", f"{named(weights.dtype)}, safetensors"),
        ("conversation", f"{named(weights.dialect)}: {_DIALECTS.get(weights.dialect, 'a dialect of its own')}"),
        ("taken from", f"{named(placeless(published.source))} of the run {named(published.name)}"),
        ("learned in", place),
    ]
    if weights.merged:
        rows.insert(5, ("adapter", f"{named(weights.merged)}, merged into the weights"))
    return grid(("what", "value"), rows)


def _training(published: Published) -> str:
    config, stages = published.data.info.config, lineage(published)
    said = [f"Worlds: {', '.join(map(named, _worlds(published))) or 'not recorded'}."]
    said += _demonstrated(config, _worlds(published), published.data.info.method)
    explored = [row.result for row in stages if row.verb == "collect"]
    if explored:
        played, won = (sum(row.get(name, 0) for row in explored) for name in ("episodes", "success"))
        said.append(f"Explored: {played:,.0f} episodes in {len(explored)} rounds, of which {won:,.0f} succeeded.")
    learned = [row for row in stages if row.verb == "fit" and "trajectories" in row.result]
    said += [
        f"Learned in {named(row.name)}: {row.result['trajectories']:,.0f} episodes, repeats counted."
        for row in learned[:_MOST_LEARNED]
    ]
    taught = list(_taught(published.data))
    return _bullets([*said, *taught]) + ("" if taught else f"\n\n{_spent(stages, published.data.stages)}")


def _taught(data: ReportData) -> Iterator[str]:
    """What the log of a run of `train` says it has learned; such a run has no ledger."""
    if data.stages or not data.info.method.startswith("train "):
        return
    updates = {row.step: row.values for row in data.metrics if "lr" in row.values}  # those of a resumed run: the last
    learned, fed = (sum(values.get(name, 0.0) for values in updates.values()) for name in ("tokens", "fed"))
    yield f"Learned: {learned:,.0f} targets in {len(updates):,} updates, for which {fed:,.0f} tokens were fed."


def _demonstrated(config: Mapping[str, Any], worlds: Sequence[str], method: str) -> Iterator[str]:
    """What the settings of `evolve` and of `train` say about their data."""
    counts = config.get("demonstrations")
    if isinstance(counts, list) and counts and all(map(_is_count, counts)):
        padded = [*counts, *[counts[-1]] * len(worlds)]
        each = ", ".join(f"{count:,} of {named(world)}" for world, count in zip(worlds, padded, strict=False))
        yield f"Demonstrated tasks asked for: {each or counts}."
    for name, text in (
        ("namings", "Times a demonstration is shown under other names, itself included"),
        ("explore", "Tasks of each world to explore without a demonstration"),
    ):
        if _is_count(config.get(name)):
            yield f"{text}: {config[name]:,}."
    if isinstance(config.get("data"), str):
        recipe = f" by the recipe {named(method.removeprefix('train '))}" if method.startswith("train ") else ""
        yield f"Learned from {named(placeless(config['data']))}{recipe}."


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _spent(stages: Sequence[StageRow], every: Sequence[StageRow]) -> str:
    """Tokens by verb for this policy, and for the run as a whole."""
    if not every:
        return "The ledger holds no finished stage: what this policy cost is not known."
    groups = [(text, [row for row in stages if row.verb == verb]) for verb, text in _VERBS.items()]
    groups += [("this policy, in all", list(stages)), ("the whole run, every arm", list(every))]
    rows = [
        (text, str(len(rows)), *(f"{sum(row.counts.get(name, 0) for row in rows):,.0f}" for name in _COUNTS.values()))
        for text, rows in groups
    ]
    return grid(("what", "stages", *_COUNTS), rows, numbers=("stages", *_COUNTS))


def _method(published: Published) -> str:
    info = published.data.info
    words = " ".join(placeless(word) for word in info.command)
    said = [f"Method: {named(info.method) if info.method else 'not recorded'}."]
    said += [f"Seed: {named(info.seed)}."] if info.seed else []
    said += [f"Command: {named(words, 400)}."] if words else []
    said += [f"Begun: {named(info.created)}."] if info.created else []
    versions = ", ".join(f"{escaped(name)} {escaped(value)}" for name, value in flat(info.versions)[:12])
    said += [f"Versions: {versions}."] if versions else []
    rows = [(named(name), named(placeless(value))) for name, value in flat(info.config)]
    table = grid(("setting", "value"), rows[:_MOST_SETTINGS]) if rows else "Its settings are not recorded."
    more = len(rows) - _MOST_SETTINGS
    return f"{_bullets(said)}\n\n{table}" + (f"\n\n{more} more are in `evolvent.json`." if more > 0 else "")


def _results(published: Published, shown: Sequence[Line]) -> str:
    if not shown:
        return "This policy has not been evaluated in its run: nothing is known about how well it acts."
    floors = list(dict.fromkeys(name for line in shown for name in line.floors))[:6]
    cells = [(*_panel(line), *(percent(line.floors.get(name)) for name in floors)) for line in shown]
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
    names = [*columns, *(escaped(name.replace("_", " ")) for name in floors)]
    empty = {at for at, name in enumerate(names) if name in rates and all(row[at] == "-" for row in cells)}
    kept = [at for at in range(len(names)) if at not in empty]
    rows = [[row[at] for at in kept] for row in cells]
    table = grid([names[at] for at in kept], rows, numbers=names[3:])
    return f"Share of the tasks of each panel that were solved.\n\n{table}\n\n{_compared(published)}"


def _panel(line: Line) -> tuple[str, ...]:
    row, one = line.result, line.difference
    success = f"withheld: {row.errors} episodes with errors" if row.mean is None else percent(row.mean)
    interval = f"{percent(row.low)} to {percent(row.high)}" if row.low is not None and row.high is not None else "-"
    apart = "-" if one is None else f"{100 * one.mean:+.1f}"
    if one is not None and not isnan(one.low):
        apart += f" ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    return (
        named(row.world),
        named(row.tier),
        named(row.split),
        f"{row.n:,}",
        success,
        interval,
        percent(line.base.mean if line.base else None),
        percent(line.control.mean if line.control else None),
        apart,
    )


def _compared(published: Published) -> str:
    head = overall(published)
    if head is None or head.difference is None:
        return "One seed: read these rates as an exploration."
    one, tiers = head.difference, ", ".join(map(named, head.tiers))
    interval = (
        "too few tasks for an interval"
        if isnan(one.low)
        else (f"95 % interval {100 * one.low:+.1f} to {100 * one.high:+.1f}, paired by task")
    )
    return (
        f"Over {tiers}: {100 * one.mean:+.1f} points against the control of the same run ({interval}). One seed is no "
        "proof: another may differ."
    )


def _use(published: Published) -> str:
    asked = (_LINES if published.weights.dialect == "lines" else _TURNS).format(observation=_observation(published))
    worlds = [world for world in _worlds(published) if _WORLD.fullmatch(world)]
    known = bool(worlds) and len(worlds) == len(_worlds(published))
    made = (
        f"worlds({json.dumps(worlds)})  # installed worlds, by name" if known else "{}  # the worlds to act in, by name"
    )
    parts = ["With transformers, one action:", _TRANSFORMERS.format(folder=_FOLDER, asked=asked)]
    parts += ["With evolvent, whole episodes:", _EVOLVENT.format(folder=_FOLDER, made=made)]
    if known:
        measure = f"evolvent eval {_FOLDER} --worlds {','.join(worlds)}"
        parts += ["Measured again from the command line:", f"```\n{measure}\n```"]
    return "\n\n".join(parts)


def _observation(published: Published) -> str:
    """The first observation of an example episode as a Python string, where the run holds a short plain one."""
    firsts = [_first(one) for one in published.data.examples]
    plain = [text for text in firsts if 0 < len(text) <= _LONGEST_OBSERVATION and one_line(text, 1000) == text]
    return json.dumps(plain[0] if plain else "the first observation of a task", ensure_ascii=False)


def _first(episode: Episode) -> str:
    return episode.steps[0].observation if episode.steps else ""


def _limits(published: Published) -> str:
    weights, begun = published.weights, published.data.info.config.get("policy")
    said = [
        "It was trained and measured on the worlds named above only, and writes their actions, not prose.",
        f"An episode, observations and actions together, must fit {weights.context:,} tokens.",
        "Success is measured with the likeliest token at every step unless the settings say otherwise.",
    ]
    if weights.dialect == "words":
        said.append("It knows whole words only: evolvent refuses other words, transformers reads them as `<unk>`.")
    if isinstance(begun, str) and begun not in ("xs", "s", "m"):
        said.append(f"It began as {named(placeless(begun))}: the limits and the licence of that model hold here too.")
    return _bullets(said)


def _license(published: Published) -> str:
    if published.license is None:
        return "No licence is stated. Ask those who published it before you use it."
    return f"{named(published.license.spdx)}; see the file `LICENSE`."


# ---------------------------------------------------------------- parts


def _worlds(published: Published) -> list[str]:
    """The worlds of the settings, else those that were measured."""
    given = published.data.info.config.get("worlds")
    if isinstance(given, list) and given and all(isinstance(name, str) for name in given):
        return list(dict.fromkeys(placeless(name) for name in given))
    main = main_arm(published.data)
    rows = [row for row in published.data.results if row.arm in (main, "base", published.arm)]
    return sorted({row.world for row in rows})


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
