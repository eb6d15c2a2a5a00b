"""Tasks restated in other words: AgentGym's expanded instructions, by parametrized paraphrases.

A wording is an opening and a form of the sentence that states the goal, with the goal's own words in its slots. Whole
forms are held out: those that dev and test use are never seen in training, as tasks of dev and test are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from evolvent.errors import ConfigError, Problem, WorldError
from evolvent.trajectory import Score, Task, Value, sample_seed
from evolvent.worlds.base import Env, Forkable, Info, Reply, World, check_task
from evolvent.worlds.panel import check_names

__all__ = ["OPENINGS", "Worded", "Wording"]

OPENINGS = ("", "please ", "now ", "your task : ", "this time , ")


@dataclass(frozen=True)
class Wording:
    """Forms of the sentence that states a world's goal.

    Args:
        pattern: matches the sentence in the first observation; its named groups are the slots.
        train, dev, test: forms with the slots in braces. No form is in two splits.
    """

    pattern: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]

    def __post_init__(self) -> None:
        slots = set(re.compile(self.pattern).groupindex)
        forms = (*self.train, *self.dev, *self.test)
        wrong = [form for form in forms if set(re.findall(r"\{(\w+)\}", form)) != slots]
        problems = [Problem("form", f"{form!r} does not have the slots {sorted(slots)}", "use each") for form in wrong]
        if len(set(forms)) != len(forms) or not (self.train and self.dev and self.test):
            problems.append(
                Problem("forms", "a form occurs twice, or a split has no form", "give each split different forms")
            )
        if problems:
            raise ConfigError(problems)

    def forms(self, split: str) -> tuple[str, ...]:
        """Returns the forms of a split."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]

    def reword(self, observation: str, *, opening: str, form: str) -> str:
        """Returns the observation with its goal restated by an opening and a form.

        Raises:
            WorldError: the observation does not state a goal as the pattern expects.
        """
        match = re.search(self.pattern, observation)
        if match is None:
            raise WorldError(
                "the observation lacks the sentence to rephrase",
                value=observation[:200],
                expected=self.pattern,
            )
        sentence = opening + re.sub(r"\{(\w+)\}", lambda slot: match[slot[1]], form)
        return observation[: match.start()] + sentence + observation[match.end() :]


class Worded:
    """A world whose tasks are restated in other words; everything else is the base world's.

    Args:
        world: the base world.
        wording: the forms of its goals.
        times: how many restatements each training task gets, all different: at most the number of training forms.
            Dev and test tasks get one.
    Attributes:
        times: the number of restatements in use.
    Raises:
        ConfigError: times below 1.
    """

    def __init__(self, world: World, wording: Wording, *, times: int = 3) -> None:
        if times < 1:
            raise ConfigError("number of phrasings out of range", value=times, expected="1 or more")
        self.base, self.wording, self.times = world, wording, min(times, len(wording.train))
        self.name, self.version = f"{world.name}-worded", world.version
        self.instructions, self.grammar, self.horizon = world.instructions, world.grammar, world.horizon
        self.reward_range, self.tiers, self.run_in_thread = world.reward_range, world.tiers, world.run_in_thread
        self._panels: dict[tuple[str, str], tuple[Task, ...]] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the world's panel, each task reworded with forms of that split."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._panels:
            times = self.times if split == "train" else 1
            reworded_tasks = [self._reword_task(task, n) for task in self.base.tasks(split, tier) for n in range(times)]
            self._panels[split, tier] = tuple(dict.fromkeys(reworded_tasks))
        return self._panels[split, tier]

    def _reword_task(self, task: Task, n: int) -> Task:
        """Returns the n-th restatement: forms in turn from an offset of the task, so that no task gets a form twice."""
        forms, offset = self.wording.forms(task.split), sample_seed("wording", task.id)
        form, opening = (offset + n) % len(forms), (offset // 97 + n) % len(OPENINGS)
        spec = {"task": dict(task.spec), "opening": OPENINGS[opening], "form": forms[form]}
        return Task(self.name, self.version, spec, task.kind, task.tier, task.split)

    def original_task(self, task: Task) -> Task:
        """Returns the task of the base world.

        Raises:
            ConfigError: a task of another world, or in words that are not of its wording. VersionMismatch
        """
        check_task(self, task)
        spec, opening, form = (task.spec.get(name) for name in ("task", "opening", "form"))
        is_known = form in (*self.wording.train, *self.wording.dev, *self.wording.test) and opening in OPENINGS
        if not isinstance(spec, Mapping) or not is_known:
            raise ConfigError(
                f"the task does not belong to world {self.name!r}",
                value=dict(task.spec),
                expected="a spec with task, opening and form",
            )
        return Task(self.base.name, self.base.version, dict(spec), task.kind, task.tier, task.split)

    def make(self, task: Task) -> Env:
        """Creates an Env whose first observation states the goal in the task's words."""
        env = self.base.make(self.original_task(task))
        kind = _ForkableWordedEnv if isinstance(env, Forkable) else _WordedEnv
        return kind(env, self.wording, opening=task.spec["opening"], form=task.spec["form"])

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        return self.base.score(rewards, info)

    def expert(self, task: Task) -> Sequence[str] | None:
        return self.base.expert(self.original_task(task))

    def vocabulary(self) -> Sequence[str] | None:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> Sequence[str] | None:
        base_vocabulary = self.base.vocabulary()
        if base_vocabulary is None:
            return None
        forms = (*OPENINGS, *self.wording.train, *self.wording.dev, *self.wording.test)
        form_text = " ".join(re.sub(r"\{\w+\}", " ", form) for form in forms)
        return tuple(dict.fromkeys([*base_vocabulary, *re.findall(r"\w+|[^\w\s]", form_text)]))


class _WordedEnv:
    """The base world's Env with a reworded first observation."""

    def __init__(self, env: Env, wording: Wording, *, opening: str, form: str) -> None:
        self._env, self._wording, self._opening, self._form = env, wording, opening, form

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        observation, info = self._env.reset(seed=seed, options=options)
        return self._wording.reword(str(observation), opening=self._opening, form=self._form), info

    def step(self, action: Value) -> Reply:
        return self._env.step(action)

    def close(self) -> None:
        self._env.close()


class _ForkableWordedEnv(_WordedEnv):
    def snapshot(self) -> object:
        return self._env.snapshot()  # type: ignore[attr-defined]

    def restore(self, value: object) -> None:
        self._env.restore(value)  # type: ignore[attr-defined]
