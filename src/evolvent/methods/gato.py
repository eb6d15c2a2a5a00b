"""Gato: one network, one set of weights, tasks of texts, choices and numbers.

"A Generalist Agent" (arXiv 2205.06175). Every step of every task becomes tokens of one vocabulary (`models/gato.py`); a
GPT imitates the actions and texts of all tasks at once. A window shows the last steps of one episode; there is no
prompt from another episode, so tasks must be told apart by what they show. Text is read as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from evolvent.config import Config
from evolvent.errors import BatchMismatch, ConfigError, unknown
from evolvent.models.gato import BINS, NUMBERS, SEPARATOR, Field, GatoStep, decoded, step_tokens
from evolvent.offline.training import SequenceTraining
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.models.gato_model import GatoModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping
    from evolvent.offline.windows import History

__all__ = ["Gato", "GatoTask", "Generalist", "array_task", "gato", "load_generalist", "save_generalist", "text_task"]

_END = 10  # a line break ends a text
_DONE = {kind: kind for kind in ("choice", "number", "text")}  # what actions can be


class Gato(Config):
    """What can be chosen about Gato."""

    context: int = Setting(default=3, ge=1, description="steps of an episode that are read")
    width: int = Setting(default=64, ge=1, description="of the network")
    heads: int = Setting(default=4, ge=1, description="of its attention")
    layers: int = Setting(default=2, ge=1, description="blocks")
    dropout: float = Setting(default=0.0, ge=0, lt=1, description="while training")
    train: SequenceTraining = Setting(
        default=SequenceTraining(lr=1e-3, warmup=100, grad_norm=1.0), description="how it is trained"
    )
    seed: int = Setting(default=0, ge=0, description="of everything random")


@dataclass(frozen=True, slots=True, eq=False)
class GatoTask:
    """Episodes of a task as tokens, step by step. `action`: what its actions are; `size`: choices, or numbers each;
    `observation`: numbers that are seen (0: a text)."""

    episodes: tuple[tuple[GatoStep, ...], ...]
    action: Literal["choice", "number", "text"]
    size: int = 0
    observation: int = 0


def array_task(episodes: Episodes) -> GatoTask:
    """Observations of numbers; actions that are choices, or numbers in -1..1. SampleInvalid: a value has no token."""
    kind: Literal["choice", "number"] = "choice" if episodes.actions else "number"
    rows = [
        step_tokens((Field("number", seen),), Field(kind, np.atleast_1d(done)))
        for seen, done in zip(episodes.observation, episodes.action, strict=True)
    ]
    cuts = zip(episodes.starts, episodes.lengths, strict=True)
    return GatoTask(
        tuple(tuple(rows[first : first + n]) for first, n in cuts),
        kind,
        episodes.actions or episodes.dim,
        episodes.observation.shape[1],
    )


def text_task(episodes: Sequence[Sequence[tuple[str, str]]]) -> GatoTask:
    """Episodes of (observation, action), both texts."""
    told = ([step_tokens((_text(seen),), _text(done)) for seen, done in episode] for episode in episodes)
    return GatoTask(tuple(map(tuple, told)), "text")


@dataclass(frozen=True)
class Generalist:
    """One policy for all its tasks: what their actions are, how many, and how many numbers are seen. `history`: update
    and loss."""

    model: GatoModel
    tasks: Mapping[str, tuple[str, int, int]]
    context: int
    history: tuple[dict[str, float], ...] = ()

    def actor(self, name: str) -> ArrayActor:
        """Who acts in a task of arrays; ConfigError for a task that it does not know, or one of texts; BatchMismatch,
        while acting, for observations of another world."""
        kind, size, seen = self._known(name)
        if kind == "text":
            raise ConfigError("a task of texts", value=name, hint="use `reply`")
        allowed = np.arange(size) if kind == "choice" else np.arange(NUMBERS, NUMBERS + BINS)

        def act(history: History) -> NDArray[Any]:
            if history.observation.shape[-1] != seen:
                raise BatchMismatch(
                    f"observations of another size than {name} has", value=history.observation.shape[-1], expected=seen
                )
            made = self._continued(
                [self._prefix(history, row, kind) for row in range(len(history.seed))],
                allowed,
                most=1 if kind == "choice" else size,
            )
            return made[:, 0] if kind == "choice" else decoded(made, action=True).astype(np.float32)

        return act

    def reply(self, name: str, past: Sequence[tuple[str, str]], observation: str, *, most: int = 64) -> str:
        """What it does in a task of texts, after `past` steps of (observation, action)."""
        if self._known(name)[0] != "text":
            raise ConfigError("no task of texts", value=name, hint="use `actor`")
        steps = [step_tokens((_text(seen),), _text(done)).tokens for seen, done in past]
        steps = [*steps[max(0, len(steps) + 1 - self.context) :], np.append(_text(observation).values, SEPARATOR)]
        made = self._continued([steps], np.arange(256), most=most, stop=_END)[0]
        return bytes(made.tolist()).decode(errors="replace").partition("\n")[0]

    def _known(self, name: str) -> tuple[str, int, int]:
        if name not in self.tasks:
            raise ConfigError([unknown("task", name, self.tasks)])
        return self.tasks[name]

    def _prefix(self, history: History, row: int, kind: Any) -> list[NDArray[np.int64]]:
        now, nothing = history.step, Field("choice", np.zeros(1))
        steps = [
            step_tokens(
                (Field("number", history.observation[row, t]),), Field(kind, np.atleast_1d(history.action[row, t]))
            ).tokens
            for t in range(max(0, now + 1 - self.context), now)
        ]
        return [*steps, step_tokens((Field("number", history.observation[row, now]),), nothing).tokens[:-1]]

    def _continued(
        self,
        prefixes: Sequence[Sequence[NDArray[np.int64]]],
        allowed: NDArray[np.int64],
        *,
        most: int,
        stop: int | None = None,
    ) -> NDArray[np.int64]:
        tokens = self.model.nearest(np.stack([np.concatenate(steps) for steps in prefixes]), low=NUMBERS)
        place = np.stack([np.concatenate([np.arange(len(step)) for step in steps]) for steps in prefixes])
        return self.model.written(tokens, place, allowed=allowed, most=most, stop=stop)


def gato(config: Gato, tasks: Mapping[str, GatoTask], *, keep: Keeping | None = None) -> Generalist:
    """Train one policy on all tasks, each as often as any other, or take up the training that is kept in `keep`.

    Raises:
        ConfigError: no task, or one without a step; a training of other settings is kept there.
        NonFinite: learning broke down.
    """
    from evolvent.models.gato_model import GatoModel, GatoShape
    from evolvent.offline.losses import action_nll
    from evolvent.offline.state import begun
    from evolvent.offline.steps import step_batch, step_window, steps_digest
    from evolvent.offline.training import fit_windows, seeded

    if not tasks or not all(any(task.episodes) for task in tasks.values()):
        raise ConfigError("nothing to imitate", value=sorted(tasks), expected="tasks, each with an episode of steps")
    steps = [step for task in tasks.values() for episode in task.episodes for step in episode]
    letters = np.arange(256 if any(task.action == "text" for task in tasks.values()) else 0)  # whatever is said
    vocabulary = np.unique(np.concatenate([letters, *(step.tokens for step in steps)]))
    shape = GatoShape(
        vocabulary=tuple(vocabulary.tolist()),
        longest=max(len(step.tokens) for step in steps),
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model, names = seeded(lambda: GatoModel(shape), config.seed), sorted(tasks)

    def loss(rng: np.random.Generator) -> Any:
        drawn = [
            step_window(tasks[names[at]].episodes, config.context, rng)
            for at in rng.integers(len(names), size=config.train.batch)
        ]
        rows, place, seen, learned = step_batch(drawn, model)
        logits = model(rows[:, :-1], place[:, :-1], seen=seen[:, :-1])
        return action_nll(logits, rows[:, 1:], learned[:, 1:] & seen[:, :-1])

    data = " ".join(f"{name} {steps_digest(tasks[name].episodes)}" for name in names)
    history = fit_windows(model, loss, config.train, seed=config.seed, keep=begun(keep, config, data))
    known = {name: (task.action, task.size, task.observation) for name, task in tasks.items()}
    return Generalist(model, known, config.context, history)


def save_generalist(policy: Generalist, folder: Path) -> None:
    """Write the policy; NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {"tasks": dict(policy.tasks), "context": policy.context}
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_generalist(folder: Path) -> Generalist:
    """Read what `save_generalist` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.gato_model import GatoModel, GatoShape
    from evolvent.models.sequence_files import described, load_sequence

    model, extra = load_sequence(GatoModel, GatoShape, folder)
    with described(folder):
        tasks = {name: (_DONE[kind], int(size), int(seen)) for name, (kind, size, seen) in extra["tasks"].items()}
        return Generalist(model, tasks, max(1, int(extra["context"])))


def _text(text: str) -> Field:
    return Field("text", np.frombuffer(f"{text}\n".encode(), np.uint8).astype(np.int64))
