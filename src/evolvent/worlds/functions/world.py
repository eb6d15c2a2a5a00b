"""Functions: call the right tools with the right arguments, or none if no tool fits or a requirement is missing.

    find hotel : search for a hotel ( city string the city ; nights integer number of nights ; ... )
    cancel flight : call off a flight ( number integer number of the flight )
    user : can you find a hotel in oslo staying 3 nights
        ->  [find hotel(city="oslo", nights=3)]

More than 300 tools of 19 domains (`catalogue`), requests of seven shapes (`requests`), tools split into train,
dev and test (`panels`). `grade.calls` checks answers: every expected call with accepted values, and no other
call. A right answer earns its share; the first wrong answer ends the episode. `rename` restates a task with
other names of tools and parameters, so that only the descriptions identify them. Any conversation can be a task
(`task_of`), including those with masked names or without a fitting tool.

Panels and samples: the shapes of each tier, the tools they use, and the number of tasks of each kind.

| tier | tools | shapes |
|---|---|---|
| seen | domains in training | simple, multiple; one of ten irrelevant, one of ten missing |
| evo | the same | parallel, parallel_multiple |
| combo | domains without a tool in training | all of one turn, abstentions in the same share as in seen |
| longer | as seen | multi_turn, and three calls of different tools, among five or six tools |

All tools of a task, unneeded ones included, belong to the task's split. There is no training on combo, which
has no training tools, and on longer.

Renaming: a conversation with other names of tools and parameters, replaced everywhere at once.

Descriptions, values and user messages stay, so that a tool and its parameters can be found by their function
alone. New names are two meaningless syllables; a model over words knows all syllables, but has seen hardly any
pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import Score, Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import TIERS, Grammar, Info, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.functions.catalogue import catalogue, select_entries
from evolvent.worlds.functions.episode import FORMS, UNREADABLE, CallForm, Calls, FunctionsEnv, Scene, write_calls
from evolvent.worlds.functions.requests import CONNECTORS, FRAMES, SHAPES, Draft, draw_draft
from evolvent.worlds.functions.slots import Slot
from evolvent.worlds.functions.spelling import show_tools
from evolvent.worlds.functions.tasks import (
    CallConversation,
    Turn,
    build_sample,
    build_spec,
    conversation_of_draft,
    conversation_of_sample,
    parse_spec,
)
from evolvent.worlds.panel import UNTRAINED, Sizes, check_names

__all__ = [
    "NAME",
    "SYLLABLES",
    "VERSION",
    "Functions",
    "Toolbox",
    "build_panel",
    "build_task",
    "call_samples",
    "canonical_key",
    "canonical_names",
    "closed_vocabulary",
    "fresh_names",
    "rename_talk",
]


SYLLABLES = tuple(onset + ending for onset in "bdfgklmnprstvz" for ending in ("ax", "ov", "uk"))
Names = Mapping[str, tuple[str, Mapping[str, str]]]


def _parameter_names(schema: Any) -> list[str]:
    """Returns the names of all parameters of a schema, nested parameters included, without duplicates."""
    names: dict[str, None] = {}
    if isinstance(schema, Mapping):
        rows = schema.get("properties")
        for name, row in rows.items() if isinstance(rows, Mapping) else ():
            names |= dict.fromkeys([name, *_parameter_names(row)])
        names |= dict.fromkeys(_parameter_names(schema.get("items")))
    return list(names)


def fresh_names(tools: Sequence[Tool], rng: Random) -> Names:
    """Draws new names: tool -> (its name, parameter -> its name). Names are unique among tools and within a tool."""
    names = iter(rng.sample(range(len(SYLLABLES) ** 2), len(tools)))
    new_names: dict[str, tuple[str, Mapping[str, str]]] = {}
    for tool in tools:
        parameters = _parameter_names(tool.parameters)
        parameter_numbers = rng.sample(range(len(SYLLABLES) ** 2), len(parameters))
        new_names[tool.name] = (
            _syllable_pair(next(names)),
            dict(zip(parameters, map(_syllable_pair, parameter_numbers), strict=True)),
        )
    return new_names


def _syllable_pair(number: int) -> str:
    return f"{SYLLABLES[number // len(SYLLABLES)]}_{SYLLABLES[number % len(SYLLABLES)]}"


def canonical_names(tools: Sequence[Tool]) -> Names:
    """Returns names that depend only on the order, equal for conversations that differ in names only."""
    return {
        tool.name: (f"t{index}", {name: f"p{n}" for n, name in enumerate(_parameter_names(tool.parameters))})
        for index, tool in enumerate(tools)
    }


def rename_talk(talk: CallConversation, names: Names) -> CallConversation:
    """Renames tools and parameters in a conversation: in schemas and in calls, earlier calls included."""
    tools = []
    for tool in talk.tools:
        name, parameter_names = names[tool.name]
        tools.append(Tool(name, tool.description, _rename_schema(tool.parameters, parameter_names)))
    turns = tuple(
        Turn(_rename_calls(turn.calls, names), _rename_messages(turn.messages_after, names)) for turn in talk.turns
    )
    return CallConversation(_rename_messages(talk.messages, names), tuple(tools), turns)


def _rename_schema(schema: Any, parameter_names: Mapping[str, str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    renamed = dict(schema)
    if isinstance(schema.get("properties"), Mapping):
        renamed["properties"] = {
            parameter_names[name]: _rename_schema(row, parameter_names) for name, row in schema["properties"].items()
        }
    if isinstance(schema.get("required"), list):
        renamed["required"] = [parameter_names.get(name, name) for name in schema["required"]]
    if "items" in schema:
        renamed["items"] = _rename_schema(schema["items"], parameter_names)
    return renamed


def _rename_calls(calls: Sequence[Call], names: Names) -> tuple[Call, ...]:
    """Renames calls; a call of a tool that is no longer offered keeps its names."""
    renamed = []
    for call in calls:
        name, parameter_names = names.get(call.name, (call.name, {}))
        renamed.append(Call(name, _rename_values(call.arguments, parameter_names), call.id))
    return tuple(renamed)


def _rename_values(value: Any, parameter_names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {parameter_names.get(name, name): _rename_values(item, parameter_names) for name, item in value.items()}
    return [_rename_values(item, parameter_names) for item in value] if isinstance(value, list) else value


def _rename_messages(messages: Sequence[Message], names: Names) -> tuple[Message, ...]:
    return tuple(
        Message(message.role, message.content, _rename_calls(message.calls, names), message.tool_call_id, message.extra)
        for message in messages
    )


NAME = "functions"
VERSION = "1"
_SHAPES_BY_TIER: Mapping[str, tuple[str, ...]] = {
    "seen": (
        "simple",
        "multiple",
        "irrelevant",
        "multiple",
        "simple",
        "multiple",
        "simple",
        "missing",
        "multiple",
        "simple",
    ),
    "evo": ("parallel", "parallel_multiple"),
    "combo": (
        "simple",
        "multiple",
        "irrelevant",
        "parallel",
        "multiple",
        "simple",
        "parallel_multiple",
        "missing",
        "multiple",
        "multiple",
    ),
    "longer": ("multi_turn", "parallel_multiple", "multi_turn", "multi_turn", "parallel_multiple"),
}
"""The shapes of a tier in turn: task n has shape n, and so on from the beginning."""
_MAX_DRAFTS = 500  # drafts that may be passed over for one task


def canonical_key(talk: CallConversation) -> str:
    """Returns the canonical form of a conversation, equal for conversations that differ in names only."""
    return canonical_json(build_spec(rename_talk(talk, canonical_names(talk.tools))))


def build_task(talk: CallConversation, *, kind: str, tier: str, split: str) -> Task:
    """Builds a task from a conversation."""
    return Task(NAME, VERSION, build_spec(talk), kind, tier, split)


def build_panel(split: str, tier: str, sizes: Sizes) -> tuple[Task, ...]:
    """Builds the task panel of a split and tier: without duplicates, in dev and test at most `per_kind` tasks of a
    kind.

    Raises:
        ConfigError: an unknown name, or sizes that the tools cannot fill.
    """
    check_names(split, tier, TIERS)
    if split == "train" and tier in UNTRAINED:
        return ()
    tasks: list[Task] = []
    kinds: Counter[str] = Counter()
    keys: set[str] = set()
    for index in range(sizes.of(split)):
        shape = _SHAPES_BY_TIER[tier][index % len(_SHAPES_BY_TIER[tier])]
        for draft in _draw_drafts(split, tier, shape, index, stream="panel"):
            talk = conversation_of_draft(draft)
            key = canonical_key(talk)
            if key not in keys and (split == "train" or kinds[draft.kind] < sizes.per_kind):
                break
        else:
            raise ConfigError(
                f"the panel {split}/{tier} of {NAME!r} cannot be filled",
                value=len(tasks),
                expected=sizes.of(split),
                hint="use smaller panels, or more tasks of a kind",
            )
        keys.add(key)
        kinds[draft.kind] += 1
        tasks.append(build_task(talk, kind=draft.kind, tier=tier, split=split))
    return tuple(tasks)


def _draw_drafts(split: str, tier: str, shape: str, index: int, *, stream: str) -> Iterator[Draft]:
    pool = select_entries(split, is_unseen=tier == "combo")
    for attempt in range(_MAX_DRAFTS):
        rng = sample_rng(NAME, stream, split, tier, shape, index, attempt)
        yield draw_draft(shape, pool, rng, split=split, is_long=tier == "longer")


def call_samples(
    split: str, tier: str, count: int, *, kinds: Sequence[str] | None = None, seed: int = 0
) -> tuple[CallSample, ...]:
    """Draws samples as data for training and measurements: one for every turn, independent of the panels.

    Args:
        split, tier: select the tools; "train" has all tiers but combo.
        count: number of samples.
        kinds: shapes that take turns; None: the shapes of the tier, in their shares.
        seed: different seeds give different samples.
    Returns:
        Samples with unique ids. Those of "dev" and "test" share tools with the panels, those of "train" do not.
    Raises:
        ConfigError: an unknown name, a negative count, or a split and tier without tools.
    """
    check_names(split, tier, TIERS)
    shapes = _SHAPES_BY_TIER[tier] if kinds is None else tuple(kinds)
    problems = [unknown_name_problem("kind", shape, SHAPES) for shape in shapes if shape not in SHAPES]
    if count < 0 or not shapes:
        problems.append(
            Problem("count", f"got {count} samples of {len(shapes)} kinds, expected at least 0 samples and one kind")
        )
    if not select_entries(split, is_unseen=tier == "combo"):
        problems.append(Problem("tier", f"{split!r} has no tools of {tier!r}", "use dev or test"))
    if problems:
        raise ConfigError(problems)
    samples: dict[str, CallSample] = {}
    index = 0
    while len(samples) < count:
        shape = shapes[index % len(shapes)]
        draft = next(_draw_drafts(split, tier, shape, index, stream=f"samples {seed}"))
        task = build_task(conversation_of_draft(draft), kind=draft.kind, tier=tier, split=split)
        for turn in range(len(draft.rounds)):
            sample = build_sample(task, turn)
            name = f"{draft.kind}/{sample_seed(sample.id):016x}"
            samples.setdefault(name, replace(sample, id=name))
        index += 1
    return tuple(samples.values())[:count]


_MAX_CACHED_SCENES = 4096  # scenes kept ready
_INSTRUCTIONS: Mapping[str, str] = {
    "words": 'Write the calls that the user asks for, as in [find hotel(city="oslo", nights=3)].',
    "python": 'Write the calls that the user asks for, as in [find_hotel(city="oslo", nights=3)].',
    "json": "Write the calls that the user asks for, as a JSON list of objects with name and arguments.",
    "xml": "Write each call that the user asks for, a JSON object with name and arguments, in <tool_call> tags.",
}
_ABSTENTION_RULE = " Write [] where no tool fits or where the user leaves out what a tool requires."


class Toolbox:
    """The tools of a task."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)


@cache
def closed_vocabulary() -> frozenset[str]:
    """Returns every word and mark of observations, instructions and answers of generated tasks in the words form."""
    texts = [*_INSTRUCTIONS.values(), _ABSTENTION_RULE, UNREADABLE, *SYLLABLES, *CONNECTORS, *map(str, range(100))]
    texts += [frame for frames in FRAMES.values() for frame in frames]
    texts += ['[] () {} " , : ; = . - user tool assistant True False true false one of list any']
    for entry in catalogue().values():
        texts += [show_tools([entry.tool]), entry.noun, *entry.heads, *entry.follow_up_heads]
        texts += [text for slot in entry.slots for text in _slot_texts(slot)]
    return frozenset(word for text in texts for word in words_of(text.replace("_", " ")))


def _slot_texts(slot: Slot) -> list[str]:
    parts = [text for part in slot.parts for text in _slot_texts(part)]
    return [slot.name, *slot.phrases, *slot.false_phrases, *map(str, slot.values), *parts]


class Functions:
    """The functions world.

    Args:
        form: notation of calls and tools. "words" is the Python form with names split into words (`spelling`), for
            models over a closed vocabulary; "python", "json" and "xml" are those of `grade.calls`, with tools as
            JSON.
        penalty: the reward of a text without readable calls, 0 or less.
        sizes: the panel sizes.
    Attributes:
        chance: success rate of never calling a tool: the share of tasks in which that is right.
    Raises:
        ConfigError: an unknown form, or a penalty that is positive or not finite.
    """

    name, version, tiers, run_in_thread, horizon, chance = NAME, VERSION, TIERS, False, 6, 0.2

    def __init__(self, form: CallForm = "words", *, penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = [unknown_name_problem("form", form, FORMS)] if form not in FORMS else []
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.form, self.penalty, self._sizes = form, penalty, sizes or Sizes()
        self.reward_range = (min(0.0, penalty), 1.0)
        self.grammar: Grammar = Calls(form)
        self.instructions = _INSTRUCTIONS[form] + _ABSTENTION_RULE
        self._panels: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._scenes: dict[str, Scene] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._panels:
            self._panels[split, tier] = build_panel(split, tier, self._sizes)
        return self._panels[split, tier]

    def _scene(self, task: Task) -> Scene:
        check_task(self, task)
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = Scene(parse_spec(task.spec), self.form)
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def make(self, task: Task) -> FunctionsEnv:
        """Creates an Env for one task.

        Raises:
            ConfigError: the task belongs to another world, or its spec is not a conversation.
            VersionMismatch: the task belongs to another version of this world.
        """
        return FunctionsEnv(task, self._scene(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = every turn was answered right, penalties aside; unit = the share of right
        turns.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        earned = sum(reward for reward in known_rewards if reward > 0)
        return Score(float(sum(known_rewards)), min(1.0, float(earned)), earned >= 1.0 - 1e-9)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the expected answers, turn by turn."""
        return list(self._scene(task).plan)

    def toolbox(self, task: Task) -> Toolbox:
        """Returns the tools of a task."""
        return Toolbox(self._scene(task).talk.tools)

    def render(self, call: Call) -> str:
        """Renders a call as an action."""
        return write_calls([call], self.form)

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task, equal for tasks that differ in names of tools and parameters only."""
        return canonical_key(self._scene(task).talk)

    def rename(self, task: Task, rng: Random) -> Task:
        """Renames the tools and parameters of a task; key, kind, tier and split stay."""
        talk = self._scene(task).talk
        renamed = rename_talk(talk, fresh_names(talk.tools, rng))
        return build_task(renamed, kind=task.kind, tier=task.tier, split=task.split)

    def sample_of(self, task: Task, turn: int = -1) -> CallSample:
        """Builds the sample of a task's turn, by default the last; raises ConfigError for an unknown turn."""
        check_task(self, task)
        return build_sample(task, turn)

    def task_of(self, sample: CallSample, *, kind: str = "given", tier: str = "seen", split: str = "train") -> Task:
        """Builds a one-turn task of a sample, also of one with masked names or without a fitting tool.

        Raises:
            ConfigError: two tools share a name, or a call uses a tool that is not offered.
        """
        task = build_task(conversation_of_sample(sample), kind=kind, tier=tier, split=split)
        self._scene(task)
        return task

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of generated tasks in the words form, sorted; None in the other forms."""
        return sorted(closed_vocabulary()) if self.form == "words" else None
