"""The science world: experiments in a house of ten rooms, in the manner of ScienceWorld, without Java.

    Your task: boil the ethanol, which is in the bedroom. Focus on it, then change its temperature until it is gas.
    You are in the hallway. You see: ...
        open door to bedroom  ->  go to bedroom  ->  focus on ethanol  ->  pick up tin cup  ->  ...
        move tin cup to stove  ->  activate stove  ->  The stove is broken.  ->  ...

Actions and task families follow Wang et al. 2022 (https://arxiv.org/abs/2203.07540); the physics, things, texts and
scores are this package's own, see `lab`, `catalogue` and `families`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, Value, sample_rng
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.science.actions import list_actions, list_reply_texts
from evolvent.worlds.science.describe import describe_room
from evolvent.worlds.science.episode import CANCELED, NO_TELEPORT, play_action
from evolvent.worlds.science.expert import solve
from evolvent.worlds.science.families import (
    FAMILIES,
    Part,
    build_scene,
    collect_names,
    collect_task_words,
    iterate_parts,
    name_kind,
)
from evolvent.worlds.science.house import FIXTURE_TYPES, ROOMS, Scene
from evolvent.worlds.science.lab import Lab

__all__ = ["Science", "ScienceEnv"]

_HORIZON = 80
_MAX_CACHED_SCENES = 1024
_FORMS = ("", "easy")


class ScienceEnv(StateEnv[Lab]):
    """One episode. Its state is the lab, which changes in place; a snapshot is a copy.

    `info` holds `admissible`, `score` (0 to 100, or -100 after a wrong focus) and `won`. Where an action was ambiguous,
    `admissible` holds the numbers of the choices.
    """

    def __init__(self, task: Task, scene: Scene, *, penalty: float) -> None:
        super().__init__(task, scene.lab)
        self._scene, self._penalty = scene, penalty
        self._listed: tuple[int, tuple[str, ...]] = (-1, ())

    def _copy_state(self, state: Lab) -> Lab:
        self._listed = (-1, ())
        return state.copy()

    def _observe_start(self) -> tuple[Value, Info]:
        return f"{self._scene.text}\n{describe_room(self._state)}", self._info(self._state)

    def _info(self, lab: Lab) -> dict[str, object]:
        if lab.question:
            admissible = list_actions(lab)
        else:
            if self._listed[0] != lab.version:
                self._listed = (lab.version, list_actions(lab, can_teleport=self._scene.can_teleport))
            admissible = self._listed[1]
        return {"admissible": admissible, "score": lab.score, "won": lab.score >= 100}

    def _transition(self, state: Lab, action: Value) -> tuple[Lab, Reply]:
        score = state.score
        answer, is_possible = play_action(self._scene, state, str(action))
        info = self._info(state)
        if not is_possible:
            return state, (answer, self._penalty, False, False, {**info, "invalid": True})
        is_over = state.score >= 100 or state.score < 0
        return state, (answer, _to_reward(state.score) - _to_reward(score), is_over, False, info)


def _to_reward(score: int) -> float:
    """Returns a score in 0..1, in steps of 1/128: their sums are exact, those of hundredths are not."""
    return round(score * 1.28) / 128


class Science(DealtOnce):
    """The science world.

    Args:
        form: "" or "easy": doors and containers are open at the start, and the agent can teleport between rooms.
        penalty: the reward of an impossible action, 0 or less.
        sizes: the panel sizes.
        horizon: maximum number of actions of an episode.

    Raises:
        ConfigError: an unknown form, a horizon below 1, or a penalty that is positive or not finite.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False
    tiers = TIERS
    instructions = (
        "Do an experiment in a house of several rooms. Actions: look around, look at THING, look in THING, open THING, "
        "close THING, open door to ROOM, go to ROOM, pick up THING, put down THING, move THING to THING, pour THING "
        "into THING, dunk THING into THING, mix THING, activate THING, deactivate THING, use THING on THING, connect "
        "THING terminal 1 to THING anode, disconnect THING, read THING, eat THING, flush THING, focus on THING, wait "
        "(10 ticks), wait1 (1 tick), inventory, task. Focus only on what the task asks for: a wrong focus ends the "
        "episode. Where an action is ambiguous, answer with the number of what you mean."
    )

    def __init__(
        self, form: str = "", *, penalty: float = 0.0, sizes: Sizes | None = None, horizon: int = _HORIZON
    ) -> None:
        problems = [] if form in _FORMS else [unknown_name_problem("form", str(form), _FORMS)]
        if horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.form, self.penalty, self.horizon = form, penalty, horizon
        self.name = "science-easy" if form else "science"
        self.reward_range = (min(penalty, -2.0), 1.0)
        self._get_scene = lru_cache(maxsize=_MAX_CACHED_SCENES)(self._build_scene)
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end, of all kinds of the tier in turn: those that the expert solves in 80 steps."""
        for number, parts in enumerate(iterate_parts(tier, lambda turn: sample_rng("science tasks", tier, turn))):
            spec: dict[str, Json] = {"parts": [list(part) for part in parts], "seed": number}
            kind = name_kind(parts)
            scene = self._create_scene(parts, number)
            if tier != "longer" or len(solve(scene, parts)) <= _HORIZON:
                yield Candidate(spec, kind, tier, scene.key)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in colors and letters."""
        return self._get_scene(task).key

    def make(self, task: Task) -> ScienceEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version.
        """
        return ScienceEnv(task, self._get_scene(task), penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = a score of 100; raw = the sum of the rewards, unit = the score in 0..1.

        Any reward of None makes the whole episode unscored.
        """
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        score = float(info.get("score", 0))
        return Score(math.fsum(known_rewards), max(0.0, score) / 100, score >= 100)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the actions of an agent that knows where to go, and measures before it answers."""
        return solve(self._get_scene(task), self._parse_spec(task)[0])

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations, instructions and listed actions, sorted."""
        texts = (
            *list_reply_texts(),
            *collect_task_words(),
            *collect_names(),
            *ROOMS,
            *(thing_type.name for thing_type in FIXTURE_TYPES),
            self.instructions,
            CANCELED,
            NO_TELEPORT,
        )
        return sorted({*map(str, range(2001)), *(word for text in texts for word in words_of(text))})

    def _create_scene(self, parts: Sequence[Part], seed: int) -> Scene:
        rng = sample_rng("science", name_kind(parts), seed)
        return build_scene(parts, rng, is_easy=self.form == "easy")

    def _build_scene(self, task: Task) -> Scene:
        return self._create_scene(*self._parse_spec(task))

    def _parse_spec(self, task: Task) -> tuple[tuple[Part, ...], int]:
        """Parses the parts and seed of a task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        rows, seed = task.spec.get("parts"), task.spec.get("seed")
        problems: list[Problem] = []
        parts = []
        for row in rows if isinstance(rows, list | tuple) else ():
            is_row = isinstance(row, list | tuple) and len(row) == 3 and all(isinstance(word, str) for word in row)
            if not is_row:
                problems.append(Problem("parts", f"got {row!r}", "give a family, a topic and a room"))
                continue
            part = Part(*map(str, row))
            parts.append(part)
            if part.family not in FAMILIES:
                problems.append(unknown_name_problem("family", part.family, FAMILIES))
            elif part.topic not in FAMILIES[part.family].topics:
                problems.append(unknown_name_problem("topic", part.topic, FAMILIES[part.family].topics))
            if part.room not in ROOMS:
                problems.append(unknown_name_problem("room", part.room, ROOMS))
        if not problems and (not 1 <= len(parts) <= 2 or len({part.family for part in parts}) < len(parts)):
            problems.append(Problem("parts", f"got {rows!r}", "give one task, or two of different families"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if problems:
            raise ConfigError(problems)
        return tuple(parts), int(str(seed))
