"""The recipes of `evolvent train`: what each asks for, and how data become its parts and its objective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from evolvent.cli.names import policy as policy_named
from evolvent.cli.runs import store_folder
from evolvent.cli.settings import OverWorlds
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.learn.annotate import annotate
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import Objective, distill, dpo, outcome, reward_pairs, value, weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parts import Parts
from evolvent.learn.preferences import outcome_readout, pairs, readout, with_returns
from evolvent.learn.rows import Reading, Row, read_rows, read_trajectories
from evolvent.learn.sources import dataset_rows, json_lines, open_dataset, vocabulary_digest
from evolvent.learn.windows import Intake
from evolvent.models.adapters import AdapterConfig
from evolvent.models.policy import Policy
from evolvent.scale.training import Keeping
from evolvent.store.exchange import read_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Task, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = ["RECIPES", "Prepared", "Recipe"]


class Recipe(OverWorlds):
    """What every recipe can be told."""

    data: Path = Field(
        description="a run, episodes exported as jsonl, JSON lines, or a folder of a Hugging Face data set"
    )
    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/train-N")
    context: int | None = Field(default=None, ge=2, description="longest sequence in tokens; none: the policy's")
    too_long: Literal["refuse", "truncate", "split"] = Field(
        default="refuse", description="what becomes of longer ones"
    )
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch in every rank")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where the model is trained")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="the optimizer")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    parallel: Parallelism = Field(default_factory=Parallelism, description="how the model is laid over processes")
    keep: Keeping = Field(default_factory=Keeping, description="checkpoints and snapshots")

    def reading(self) -> Reading:
        """How rows become sequences."""
        return Reading(kind="messages", context=self.context, too_long=self.too_long)

    def prepare(self, given: Given) -> Prepared:
        """The parts and the objective."""
        raise NotImplementedError


@dataclass(frozen=True)
class Given:
    """What a recipe works with: the policy (not adapted yet) and the worlds by name."""

    policy: Policy
    worlds: Mapping[str, World]

    def instructions(self, task: Task) -> str:
        """What the agent is told first in a world."""
        return self.worlds[task.world].instructions

    def text(self, task: Task, step: Any) -> str:
        """What an agent writes for a step that no model wrote."""
        return self.worlds[task.world].grammar.render(Parsed(str(step.action), step.thought))

    @property
    def end(self) -> int:
        """A token that ends what is read out."""
        tokenizer = self.policy.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.eos_token_id is not None else len(tokenizer) - 1)


@dataclass(frozen=True)
class Prepared:
    """What is learned, and how. `made` reads the data once, counting what it refuses; `also` is what else it reads."""

    objective: Objective
    made: Callable[[Intake], Iterable[Parts]]
    also: str = ""


class Sft(Recipe):
    """Episodes and conversations are imitated."""

    threshold: float | None = Field(default=0.99, description="learn episodes above this reward; none: all of them")

    def prepare(self, given: Given) -> Prepared:
        return Prepared(weighted_nll, partial(_imitated, self, given), str(self.threshold))


class Pretrain(Recipe):
    """Raw text is learned, every token of it."""

    overlap: int = Field(default=0, ge=0, description="tokens of the window before that a window begins with")
    join: bool = Field(default=True, description="join documents and cut them into blocks of the context")

    def reading(self) -> Reading:
        split = self.too_long if self.too_long != "refuse" or self.join else "split"
        return Reading(kind="text", context=self.context, too_long=split, overlap=self.overlap, join=self.join)

    def prepare(self, given: Given) -> Prepared:
        return Prepared(weighted_nll, lambda intake: read_rows(rows(self.data, intake), given.policy, self.reading(),
                                                               intake=intake))  # fmt: skip


class OfPairs(Recipe):
    """Pairs of a better and a worse reply, or of episodes of one task."""

    most: int = Field(default=4, ge=1, description="pairs of episodes of one task or group")
    margin: float = Field(default=0.0, ge=0, description="scores that differ by no more than this are a tie")

    def reading(self) -> Reading:
        return Reading(kind="pairs", context=self.context, too_long=self.too_long)

    def both(self, given: Given, intake: Intake) -> Iterator[Parts]:
        """Chosen, rejected, chosen, rejected, ..."""
        if not holds_episodes(self.data):
            yield from read_rows(rows(self.data, intake), given.policy, self.reading(), intake=intake)
            return
        found = pairs(
            episodes(self.data, given.worlds), given.policy.dialect, instructions=given.instructions,
            context=self.context or given.policy.context, most=self.most, margin=self.margin, seed=self.seed,
            render=given.text,
        )  # fmt: skip
        for problem in found.refused:
            intake.refuse(problem.where, ConfigError([problem]))
        intake.rows += len(found.parts) // 2
        yield from found.parts


class Dpo(OfPairs):
    """Preferences, held to the policy that training begins with."""

    beta: float = Field(default=0.1, gt=0, description="how strongly the policy is held to the reference")
    kind: Literal["sigmoid", "ipo"] = Field(default="sigmoid", description="the loss of a pair")
    smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="how often a label is taken to be wrong (sigmoid)")
    sft: float = Field(default=0.0, ge=0, description="this times the chosen side's likelihood is learned too")

    def prepare(self, given: Given) -> Prepared:
        digest = vocabulary_digest(given.policy.tokenizer)

        def made(intake: Intake) -> Iterator[Parts]:
            return annotate(given.policy, self.both(given, intake), vocabulary=digest)

        objective = dpo(beta=self.beta, kind=self.kind, smoothing=self.smoothing, sft=self.sft)
        return Prepared(objective, made, f"reference {self.policy} {self.most} {self.margin}")


class Reward(OfPairs):
    """A value head on the state after an episode or reply, from pairs or from scores."""

    kind: Literal["pairs", "scores"] = Field(default="pairs", description="which side is better; or an episode's score")

    def prepare(self, given: Given) -> Prepared:
        if self.kind == "scores":
            return Prepared(outcome, partial(_scored, self, given), "scores")

        def made(intake: Intake) -> Iterator[Parts]:
            return (readout(parts, token=given.end) for parts in self.both(given, intake))

        return Prepared(reward_pairs(), made, f"pairs {self.most} {self.margin}")


class Value(Recipe):
    """A value head on every written token, from what episodes still earned."""

    discount: float = Field(default=1.0, gt=0, le=1, description="of later rewards, for each environment step")
    huber: float | None = Field(default=None, gt=0, description="errors beyond it count linearly; none: none do")

    def prepare(self, given: Given) -> Prepared:
        then = partial(with_returns, discount=self.discount)
        return Prepared(value(huber=self.huber), partial(_flattened, self, given, then), f"returns {self.discount}")


class Distill(Sft):
    """A teacher's distribution over the next token is learned."""

    teacher: str = Field(default="", description="a model folder or a run, with the same tokenizer")
    top: int = Field(default=32, ge=1, description="how many of the teacher's likeliest words are kept a token")
    temperature: float = Field(default=1.0, gt=0, description="of both distributions")
    share: float = Field(default=1.0, gt=0, le=1, description="of the divergence; the rest is likelihood")

    def prepare(self, given: Given) -> Prepared:
        if not self.teacher:
            raise ConfigError([Problem("teacher", "no teacher is named", "--teacher FOLDER, a model or a run")])
        teacher = policy_named(self.teacher, list(given.worlds.values()), seed=self.seed)
        digest, k = vocabulary_digest(given.policy.tokenizer), min(self.top, len(given.policy.tokenizer))

        def made(intake: Intake) -> Iterator[Parts]:
            return annotate(teacher, _imitated(self, given, intake), vocabulary=digest, teacher_k=k)

        objective = distill(temperature=self.temperature, share=self.share)
        return Prepared(objective, made, f"{self.threshold} teacher {self.teacher} {k}")


RECIPES: dict[str, tuple[type[Recipe], str]] = {
    "sft": (Sft, "Imitate recorded episodes, or conversations."),
    "pretrain": (Pretrain, "Go on pre-training on raw text."),
    "dpo": (Dpo, "Learn preferences from pairs (DPO, IPO)."),
    "reward": (Reward, "Train a reward model, a head on the policy's states."),
    "value": (Value, "Train a value head on the returns of episodes."),
    "distill": (Distill, "Learn a teacher's distribution on recorded episodes or conversations."),
}


# ---------------------------------------------------------------------- data


def holds_episodes(data: Path) -> bool:
    """Whether the data are episodes: a run's, or a file that `evolvent runs export` wrote as jsonl."""
    if data.is_dir():
        return any((data / name).exists() for name in ("trajectories", "log", "manifest.jsonl"))
    if not data.is_file():
        raise ConfigError([Problem("data", f"{data} is neither a folder nor a file", "name a run or a file")])
    first = next(json_lines(data), ("", None))[1] if data.suffix != ".txt" else None
    return isinstance(first, Mapping) and "task" in first and "steps" in first


def episodes(data: Path, worlds: Mapping[str, World]) -> Iterator[Trajectory]:
    """The recorded episodes, without those that failed.

    Raises:
        ConfigError: one of a world that is not named.
    """
    every = Store.open(store_folder(data)).trajectories() if data.is_dir() else read_jsonl(data)
    for trajectory in every:
        if trajectory.task.world not in worlds:
            raise ConfigError([unknown("world", trajectory.task.world, worlds, where=str(data))])
        if trajectory.error is None:
            yield trajectory


def rows(data: Path, intake: Intake) -> Iterator[Row]:
    """The rows of a file of JSON lines, a text file (one document), or a folder of a Hugging Face data set."""
    if data.is_dir():
        return dataset_rows(open_dataset(data), name=data.name)
    if data.suffix == ".txt":
        return iter([(data.name, {"text": data.read_text(encoding="utf-8")})])
    return json_lines(data, intake=intake)


def _imitated(config: Sft, given: Given, intake: Intake) -> Iterator[Parts]:
    if not holds_episodes(config.data):
        return read_rows(rows(config.data, intake), given.policy, config.reading(), intake=intake)
    return _flattened(config, given, None, intake, above=config.threshold)


def _scored(config: Recipe, given: Given, intake: Intake) -> Iterator[Parts]:
    return _flattened(config, given, partial(outcome_readout, token=given.end), intake)


def _flattened(
    config: Recipe, given: Given, then: Callable[[Trajectory, Parts], Parts] | None, intake: Intake, *,
    above: float | None = None,
) -> Iterator[Parts]:  # fmt: skip
    """Episodes above a score; imported ones have none and are taken as they are."""
    if not holds_episodes(config.data):
        raise ConfigError(
            [Problem("data", f"{config.data} holds no episodes", "name a run, or an exported jsonl file")]
        )
    found = episodes(config.data, given.worlds)
    chosen = (t for t in found if above is None or t.score.unit is None or t.score.unit > above)
    return read_trajectories(
        chosen, given.policy, config.reading(), instructions=given.instructions, render=given.text, then=then,
        intake=intake,
    )  # fmt: skip
