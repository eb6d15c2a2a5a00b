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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from random import Random

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.messages import Call, CallSample, Tool
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import TIERS, Grammar, Info, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.functions.catalogue import catalogue
from evolvent.worlds.functions.episode import FORMS, UNREADABLE, CallForm, Calls, FunctionsEnv, Scene, write_calls
from evolvent.worlds.functions.naming import SYLLABLES, fresh_names, rename_talk
from evolvent.worlds.functions.panels import NAME, VERSION, build_panel, build_task, canonical_key
from evolvent.worlds.functions.requests import CONNECTORS, FRAMES
from evolvent.worlds.functions.slots import Slot
from evolvent.worlds.functions.spelling import show_tools
from evolvent.worlds.functions.tasks import build_sample, conversation_of_sample, parse_spec
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["Functions", "Toolbox", "closed_vocabulary"]

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
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
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
