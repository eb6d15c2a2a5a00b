"""Functions: call the right tools with the right arguments, or none where none fits or something is missing.

    find hotel : search for a hotel ( city string the city ; nights integer number of nights ; ... )
    cancel flight : call off a flight ( number integer number of the flight )
    user : can you find a hotel in oslo staying 3 nights
        ->  [find hotel(city="oslo", nights=3)]

More than 300 tools of 19 domains (`catalogue`), requests of seven shapes (`requests`), tools split into train, dev and
test (`panels`). Answers are judged by `grade.calls`: each call that is expected, with accepted values, and no other. A
right answer earns its share; the first wrong one ends the episode. `renamed` tells a task under other names of tools
and parameters: only descriptions then say what they are. Any conversation can be a task (`task_of`), also one whose
names somebody masked, or whose fitting tools were taken away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from random import Random

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.messages import Call, CallSample, Tool
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import TIERS, Info, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.functions.catalogue import catalogue
from evolvent.worlds.functions.episode import FORMS, UNREADABLE, CallForm, Calls, FunctionsEnv, Scene, write_calls
from evolvent.worlds.functions.naming import SYLLABLES, fresh_names, renamed_talk
from evolvent.worlds.functions.panels import NAME, VERSION, key_of, panel, task_from
from evolvent.worlds.functions.requests import FRAMES, JOINTS
from evolvent.worlds.functions.slots import Slot
from evolvent.worlds.functions.spelling import show_tools
from evolvent.worlds.functions.tasks import read_talk, sample_at, talk_of_sample
from evolvent.worlds.grammar import Grammar
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["Functions", "Toolbox", "closed_words"]

_KNOWN_TASKS = 4096  # scenes kept ready
_INSTRUCTIONS: Mapping[str, str] = {
    "words": 'Write the calls that the user asks for, as in [find hotel(city="oslo", nights=3)].',
    "python": 'Write the calls that the user asks for, as in [find_hotel(city="oslo", nights=3)].',
    "json": "Write the calls that the user asks for, as a JSON list of objects with name and arguments.",
    "xml": "Write each call that the user asks for, a JSON object with name and arguments, in <tool_call> tags.",
}
_ABSTAIN = " Write [] where no tool fits or where the user leaves out what a tool requires."


class Toolbox:
    """The tools of a task."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)


@cache
def closed_words() -> frozenset[str]:
    """Every word and mark of observations, instructions and answers of generated tasks in the words form."""
    texts = [*_INSTRUCTIONS.values(), _ABSTAIN, UNREADABLE, *SYLLABLES, *JOINTS, *map(str, range(100))]
    texts += [frame for frames in FRAMES.values() for frame in frames]
    texts += ['[] () {} " , : ; = . - user tool assistant True False true false one of list any']
    for entry in catalogue().values():
        texts += [show_tools([entry.tool]), entry.noun, *entry.heads, *entry.again]
        texts += [text for slot in entry.slots for text in _texts(slot)]
    return frozenset(word for text in texts for word in words_of(text.replace("_", " ")))


def _texts(slot: Slot) -> list[str]:
    parts = [text for part in slot.parts for text in _texts(part)]
    return [slot.name, *slot.phrases, *slot.denials, *map(str, slot.values), *parts]


class Functions:
    """The functions world.

    Args:
        form: how calls are written and tools shown. "words" is the Python form with names in pieces (`spelling`), for
            models over a closed vocabulary; "python", "json" and "xml" are those of `grade.calls`, with tools as JSON.
        penalty: the reward of a text that is no calls, 0 or less.
        sizes: of the panels.
    Attributes:
        chance: what somebody wins who never calls anything: the share of tasks in which that is right.
    Raises:
        ConfigError: an unknown form, or a penalty that is positive or not finite.
    """

    name, version, tiers, blocking, horizon, chance = NAME, VERSION, TIERS, False, 6, 0.2

    def __init__(self, form: CallForm = "words", *, penalty: float = 0.0, sizes: Sizes | None = None) -> None:
        problems = [unknown("form", form, FORMS)] if form not in FORMS else []
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.form, self.penalty, self._sizes = form, penalty, sizes or Sizes()
        self.reward_range = (min(0.0, penalty), 1.0)
        self.grammar: Grammar = Calls(form)
        self.instructions = _INSTRUCTIONS[form] + _ABSTAIN
        self._panels: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._scenes: dict[str, Scene] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._panels:
            self._panels[split, tier] = panel(split, tier, self._sizes)
        return self._panels[split, tier]

    def _scene(self, task: Task) -> Scene:
        check_task(self, task)
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = Scene(read_talk(task.spec), self.form)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def make(self, task: Task) -> FunctionsEnv:
        """An Env for one task.

        Raises:
            ConfigError: for a task of another world, or a spec that is no conversation. VersionMismatch
        """
        return FunctionsEnv(task, self._scene(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = every turn was answered right, whatever penalties came before; unit = the share of right turns."""
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        earned = sum(reward for reward in known if reward > 0)
        return Score(float(sum(known)), min(1.0, float(earned)), earned >= 1.0 - 1e-9)

    def expert(self, task: Task) -> Sequence[str]:
        """The right answers, turn by turn."""
        return list(self._scene(task).plan)

    def toolbox(self, task: Task) -> Toolbox:
        """The tools of a task."""
        return Toolbox(self._scene(task).talk.tools)

    def render(self, call: Call) -> str:
        """One call as an action."""
        return write_calls([call], self.form)

    def key(self, task: Task) -> str:
        """The canonical form of a task: equal for tasks that differ in names of tools and parameters only."""
        return key_of(self._scene(task).talk)

    def renamed(self, task: Task, rng: Random) -> Task:
        """The task with other names of tools and parameters; the same key, kind, tier and split."""
        talk = self._scene(task).talk
        new = renamed_talk(talk, fresh_names(talk.tools, rng))
        return task_from(new, kind=task.kind, tier=task.tier, split=task.split)

    def sample_of(self, task: Task, turn: int = -1) -> CallSample:
        """A turn of a task as a sample, by default the last one; raises ConfigError for a turn that there is not."""
        check_task(self, task)
        return sample_at(task, turn)

    def task_of(self, sample: CallSample, *, kind: str = "given", tier: str = "seen", split: str = "train") -> Task:
        """A sample as a task of one turn: what was masked, or reduced to tools that do not fit, can be played.

        Raises:
            ConfigError: two tools of one name, or a call of a tool that is not offered.
        """
        task = task_from(talk_of_sample(sample), kind=kind, tier=tier, split=split)
        self._scene(task)
        return task

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of generated tasks in the words form, sorted; None in the others."""
        return sorted(closed_words()) if self.form == "words" else None
