"""Gato: one network, one set of weights, tasks of texts, choices and numbers.

"A Generalist Agent" (arXiv 2205.06175). Every step of every task becomes tokens of one vocabulary
(`models/gato.py`); a GPT imitates the actions and texts of all tasks at once. A window shows the last steps of
one episode; there is no prompt from another episode, so tasks must be distinguished by their observations. Text
is read as bytes.

With `returns`, it is Multi-Game Decision Transformer (arXiv 2205.15241) on the same tokens: before an action the bin of
its return-to-go is predicted. Data of all qualities teach, and while acting a high return is preferred:
`log P(R | o) + expert_weight R`, R from 0 to 1. The paper samples from that distribution; here its likeliest return is
taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from evolvent.config import Config
from evolvent.errors import BatchMismatch, ConfigError, unknown_name_problem
from evolvent.models.gato import (
    BINS,
    NUMBERS,
    RETURN_TOKENS,
    RETURNS,
    SEPARATOR,
    Field,
    GatoStep,
    decode_numbers,
    encode_conditioned_step,
    encode_step,
)
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.models.gato_model import GatoModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History

__all__ = [
    "GatoConfig",
    "GatoTask",
    "Generalist",
    "build_array_task",
    "build_text_task",
    "gato",
    "load_generalist",
    "save_generalist",
]

_END = 10  # a line break ends a text
Tokens = NDArray[np.int64]
_ACTION_KINDS = {kind: kind for kind in ("choice", "number", "text")}  # what actions can be


class GatoConfig(Config):
    """Settings of Gato."""

    context: int = Setting(default=3, ge=1, description="steps of an episode that are read")
    width: int = Setting(default=64, ge=1, description="of the network")
    heads: int = Setting(default=4, ge=1, description="of its attention")
    layers: int = Setting(default=2, ge=1, description="blocks")
    dropout: float = Setting(default=0.0, ge=0, lt=1, description="while training")
    train: SequenceTrainingConfig = Setting(
        default=SequenceTrainingConfig(lr=1e-3, warmup=100, grad_norm=1.0), description="how it is trained"
    )
    seed: int = Setting(default=0, ge=0, description="of everything random")
    returns: bool = Setting(default=False, description="predict the return before an action (Multi-Game DT)")
    return_bins: int = Setting(default=32, ge=2, le=RETURN_TOKENS, description="bins of a task's returns-to-go")
    expert_weight: float = Setting(default=10.0, ge=0, description="how much a high return is preferred while acting")


@dataclass(frozen=True, slots=True, eq=False)
class GatoTask:
    """Episodes of a task as tokens, step by step.

    `action`: the kind of its actions; `size`: number of choices, or of numbers per action; `observation`: numbers
    of an observation (0: a text); `return_bins`: bins of returns before its actions (0: none).
    """

    episodes: tuple[tuple[GatoStep, ...], ...]
    action: Literal["choice", "number", "text"]
    size: int = 0
    observation: int = 0
    return_bins: int = 0


def build_array_task(episodes: Episodes, *, return_bins: int = 0) -> GatoTask:
    """Builds a task of numeric observations; actions are choices, or numbers in -1..1.

    Args:
        return_bins: even bins of returns-to-go, from the least to the most of these episodes; 0: no returns.
    Raises:
        SampleInvalid: no token for a value.
    """
    kind: Literal["choice", "number"] = "choice" if episodes.actions else "number"
    fields = [
        ((Field("number", observation),), Field(kind, np.atleast_1d(action)))
        for observation, action in zip(episodes.observation, episodes.action, strict=True)
    ]
    if return_bins:
        rows = [
            encode_conditioned_step(observation, action, return_bin=return_bin)
            for (observation, action), return_bin in zip(fields, _bin_returns(episodes, return_bins), strict=True)
        ]
    else:
        rows = [encode_step(observation, action) for observation, action in fields]
    cuts = zip(episodes.starts, episodes.lengths, strict=True)
    return GatoTask(
        tuple(tuple(rows[start : start + n]) for start, n in cuts),
        kind,
        episodes.actions or episodes.action_dim,
        episodes.observation.shape[1],
        return_bins,
    )


def _bin_returns(episodes: Episodes, bins: int) -> list[int]:
    """Returns the even bin of each decision's return-to-go."""
    from evolvent.offline.windows import returns_to_go

    to_go = returns_to_go(episodes)
    low, high = float(to_go.min()), float(to_go.max())
    share = (to_go - low) / (high - low) if high > low else np.zeros(len(to_go))
    binned: list[int] = np.minimum((share * bins).astype(np.int64), bins - 1).tolist()
    return binned


def build_text_task(episodes: Sequence[Sequence[tuple[str, str]]]) -> GatoTask:
    """Builds a task from episodes of (observation, action), both texts."""
    episode_steps = (
        [encode_step((_text_field(observation),), _text_field(action)) for observation, action in episode]
        for episode in episodes
    )
    return GatoTask(tuple(map(tuple, episode_steps)), "text")


@dataclass(frozen=True)
class Generalist:
    """One policy for all its tasks: by task the kind of actions, their number, and the numbers of an observation.

    `history`: update and loss; `return_bins`: by task, bins of returns before actions; `expert_weight`: how much a high
    return is preferred.
    """

    model: GatoModel
    tasks: Mapping[str, tuple[str, int, int]]
    context: int
    history: tuple[dict[str, float], ...] = ()
    return_bins: Mapping[str, int] = field(default_factory=dict)
    expert_weight: float = 0.0

    def build_actor(self, name: str) -> ArrayActor:
        """Builds an actor for a task of arrays.

        Raises:
            ConfigError: the task is unknown, or of texts.
            BatchMismatch: (while acting) observations of another world.
        """
        kind, size, observation_size = self._find_task(name)
        if kind == "text":
            raise ConfigError("the task has text observations", value=name, hint="use `reply`")
        allowed = np.arange(size) if kind == "choice" else np.arange(NUMBERS, NUMBERS + BINS)

        def act(history: History) -> NDArray[Any]:
            if history.observation.shape[-1] != observation_size:
                raise BatchMismatch(
                    f"wrong observation size for task {name}",
                    value=history.observation.shape[-1],
                    expected=observation_size,
                )
            prefixes = [self._build_prefix(history, row, kind) for row in range(len(history.seed))]
            if num_returns := self.return_bins.get(name, 0):
                prefixes = self._insert_returns(prefixes, num_returns)
            token_ids = self._continue(prefixes, allowed, max_tokens=1 if kind == "choice" else size)
            return token_ids[:, 0] if kind == "choice" else decode_numbers(token_ids, action=True).astype(np.float32)

        return act

    def reply(self, name: str, past: Sequence[tuple[str, str]], observation: str, *, max_bytes: int = 64) -> str:
        """Returns its action in a task of texts, after `past` steps of (observation, action)."""
        if self._find_task(name)[0] != "text":
            raise ConfigError("the task does not have text observations", value=name, hint="use `actor`")
        steps = [
            encode_step((_text_field(past_observation),), _text_field(past_action)).tokens
            for past_observation, past_action in past
        ]
        steps = [*steps[max(0, len(steps) + 1 - self.context) :], np.append(_text_field(observation).values, SEPARATOR)]
        reply_bytes = self._continue([steps], np.arange(256), max_tokens=max_bytes, stop=_END)[0]
        return bytes(reply_bytes.tolist()).decode(errors="replace").partition("\n")[0]

    def _find_task(self, name: str) -> tuple[str, int, int]:
        if name not in self.tasks:
            raise ConfigError([unknown_name_problem("task", name, self.tasks)])
        return self.tasks[name]

    def _insert_returns(self, prefixes: list[list[Tokens]], num_returns: int) -> list[list[Tokens]]:
        """Inserts a return before the action of each step, the likeliest among the high ones, oldest step first."""
        bonus = (self.expert_weight * np.linspace(0.0, 1.0, num_returns)).astype(np.float32)
        allowed, prefixes = RETURNS + np.arange(num_returns), [list(steps) for steps in prefixes]
        for step in range(len(prefixes[0])):
            cuts = [int(np.flatnonzero(steps[step] == SEPARATOR)[-1]) + 1 for steps in prefixes]
            before = [[*steps[:step], steps[step][:cut]] for steps, cut in zip(prefixes, cuts, strict=True)]
            return_tokens = self._continue(before, allowed, max_tokens=1, bonus=bonus)[:, 0]
            for steps, cut, token in zip(prefixes, cuts, return_tokens, strict=True):
                steps[step] = np.insert(steps[step], cut, token)
        return prefixes

    def _build_prefix(self, history: History, row: int, kind: Any) -> list[NDArray[np.int64]]:
        step, no_action = history.step, Field("choice", np.zeros(1))
        steps = [
            encode_step(
                (Field("number", history.observation[row, t]),), Field(kind, np.atleast_1d(history.action[row, t]))
            ).tokens
            for t in range(max(0, step + 1 - self.context), step)
        ]
        return [*steps, encode_step((Field("number", history.observation[row, step]),), no_action).tokens[:-1]]

    def _continue(
        self,
        prefixes: Sequence[Sequence[NDArray[np.int64]]],
        allowed: NDArray[np.int64],
        *,
        max_tokens: int,
        stop: int | None = None,
        bonus: NDArray[np.float32] | None = None,
    ) -> NDArray[np.int64]:
        tokens = self.model.nearest(np.stack([np.concatenate(steps) for steps in prefixes]), low=NUMBERS)
        position = np.stack([np.concatenate([np.arange(len(step)) for step in steps]) for steps in prefixes])
        return self.model.generate(tokens, position, allowed=allowed, max_tokens=max_tokens, stop=stop, bonus=bonus)


def gato(
    config: GatoConfig, tasks: Mapping[str, GatoTask], *, checkpoint: SequenceCheckpoint | None = None
) -> Generalist:
    """Trains one policy on all tasks, each sampled equally often, or resumes the training of `checkpoint`.

    Raises:
        ConfigError: there is no task, a task has no step, or the checkpoint is of a training with other settings.
        NonFinite: training diverged.
    """
    from evolvent.models.gato_model import GatoModel, GatoShape
    from evolvent.offline.losses import action_nll
    from evolvent.offline.state import configure_checkpoint
    from evolvent.offline.steps import build_step_batch, sample_window, steps_digest
    from evolvent.offline.training import build_seeded, fit_windows

    if not tasks or not all(any(task.episodes) for task in tasks.values()):
        raise ConfigError("no episode to imitate", value=sorted(tasks), expected="tasks with at least one episode each")
    steps = [step for task in tasks.values() for episode in task.episodes for step in episode]
    byte_tokens = np.arange(256 if any(task.action == "text" for task in tasks.values()) else 0)  # whatever is said
    vocabulary = np.unique(np.concatenate([byte_tokens, *(step.tokens for step in steps)]))
    shape = GatoShape(
        vocabulary=tuple(vocabulary.tolist()),
        longest=max(len(step.tokens) for step in steps),
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model, names = build_seeded(lambda: GatoModel(shape), config.seed), sorted(tasks)

    def loss(rng: np.random.Generator) -> Any:
        windows = [
            sample_window(tasks[names[task_index]].episodes, config.context, rng)
            for task_index in rng.integers(len(names), size=config.train.batch)
        ]
        rows, position, is_visible, is_learned = build_step_batch(windows, model)
        logits = model(rows[:, :-1], position[:, :-1], attention_mask=is_visible[:, :-1])
        return action_nll(logits, rows[:, 1:], is_learned[:, 1:] & is_visible[:, :-1])

    data = " ".join(f"{name} {steps_digest(tasks[name].episodes)}" for name in names)
    history = fit_windows(
        model, loss, config.train, seed=config.seed, checkpoint=configure_checkpoint(checkpoint, config, data)
    )
    task_shapes = {name: (task.action, task.size, task.observation) for name, task in tasks.items()}
    return Generalist(
        model,
        task_shapes,
        config.context,
        history,
        return_bins={name: task.return_bins for name, task in tasks.items() if task.return_bins},
        expert_weight=config.expert_weight,
    )


def save_generalist(policy: Generalist, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {
        "tasks": dict(policy.tasks),
        "context": policy.context,
        "return_bins": dict(policy.return_bins),
        "expert_weight": policy.expert_weight,
    }
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_generalist(folder: Path) -> Generalist:
    """Reads a policy that `save_generalist` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.gato_model import GatoModel, GatoShape
    from evolvent.models.sequence_files import load_sequence, raise_incomplete

    model, extra = load_sequence(GatoModel, GatoShape, folder)
    with raise_incomplete(folder):
        tasks = {
            name: (_ACTION_KINDS[kind], int(size), int(observation_size))
            for name, (kind, size, observation_size) in extra["tasks"].items()
        }
        return_bins = {str(name): int(bins) for name, bins in extra.get("return_bins", {}).items()}
        return Generalist(
            model,
            tasks,
            max(1, int(extra["context"])),
            return_bins=return_bins,
            expert_weight=float(extra.get("expert_weight", 0.0)),
        )


def _text_field(text: str) -> Field:
    return Field("text", np.frombuffer(f"{text}\n".encode(), np.uint8).astype(np.int64))
