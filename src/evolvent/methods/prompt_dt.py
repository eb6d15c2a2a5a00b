"""Prompt-DT: Decision Transformer that reads a piece of a demonstration first, and so knows its task.

"Prompting Decision Transformer for Few-Shot Policy Generalization" (arXiv 2206.13499). The data are episodes of many
related tasks, and a few demonstrations of each. Before the last K steps stand the last K* steps of a demonstration of
the same task, with its returns, observations and actions. A new task needs one demonstration and no training.

The network is Decision Transformer's; only the windows are longer. The actions of the prompt are read and not learned.
`prompt_steps=0` is the control: one Decision Transformer for all tasks, which cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import DecisionTransformerConfig, build_shape, check_episodes
from evolvent.store.episodes import Episodes, concatenate_episodes

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History, ObservationScaler, Windows

__all__ = ["PromptDTConfig", "PromptedPolicy", "TaskEpisodes", "load_prompted", "prompt_dt", "save_prompted"]


class PromptDTConfig(DecisionTransformerConfig):
    """Settings of Prompt-DT: those of Decision Transformer, and the length of the prompt."""

    prompt_steps: int = Field(default=5, ge=0, description="steps of a demonstration before the context; 0: none")


@dataclass(frozen=True, slots=True, eq=False)
class TaskEpisodes:
    """The episodes of one task: those that are imitated, and the demonstrations that prompts are taken from."""

    episodes: Episodes
    demonstrations: Episodes


@dataclass(frozen=True)
class PromptedPolicy:
    """A trained policy. `prompt_steps`: steps of a demonstration that it reads first. `history`: update and loss."""

    model: DecisionModel
    scaler: ObservationScaler
    prompt_steps: int
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self, target: float, demonstration: Episodes | None = None, *, greedy: bool = True) -> ArrayActor:
        """Builds an actor for the task of a demonstration.

        Args:
            target: the return that is asked for.
            demonstration: episodes of the task; the first one is the prompt. None: only without a prompt.
            greedy: the likeliest action; else a sampled one.
        Raises:
            ConfigError: the policy reads a prompt, and there is no demonstration.
        """
        import torch

        from evolvent.offline.acting import choose_actions
        from evolvent.offline.windows import recent_window

        if self.prompt_steps and demonstration is None:
            raise ConfigError("the policy needs a demonstration of the task", value=None, expected="1 episode or more")
        prompt = None
        if self.prompt_steps and demonstration is not None:
            prompt = _prompt_windows(demonstration, np.zeros(1, np.int64), self.prompt_steps, scaler=self.scaler)
        context = self.model.shape.context - self.prompt_steps

        @torch.no_grad()
        def act(history: History) -> NDArray[Any]:
            windows = recent_window(history, context, standard=self.scaler, target=target)
            if prompt is not None:
                windows = _join_windows(_repeat_windows(prompt, len(history.seed)), windows)
            self.model.eval()
            outputs = self.model(
                windows.observation, windows.action, to_go=windows.to_go, time=windows.time, attention_mask=windows.seen
            )[:, -1]
            return choose_actions(self.model.shape, outputs, history, greedy=greedy)

        return act


def prompt_dt(
    config: PromptDTConfig,
    tasks: Sequence[TaskEpisodes],
    *,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> PromptedPolicy:
    """Trains on the episodes of many tasks; each window is as often of one task as of another.

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the network learns; it is on the CPU afterwards.
    Raises:
        ConfigError: no tasks, tasks of different worlds, an episode longer than the horizon, actions outside -1..1,
            or the checkpoint is of other settings.
        NonFinite: training diverged.
    """
    from evolvent.offline.conditioned import fit_conditioned
    from evolvent.offline.windows import WindowSource

    episodes = concatenate_episodes([task.episodes for task in tasks])
    demonstrations = concatenate_episodes([task.demonstrations for task in tasks])
    check_episodes(config, episodes)
    check_episodes(config, demonstrations)
    source = WindowSource(episodes, context=config.context)
    decision_counts = np.array([len(task.episodes.reward) for task in tasks])
    episode_counts = np.array([len(task.demonstrations.lengths) for task in tasks])
    first_decision, first_episode = (np.cumsum(counts) - counts for counts in (decision_counts, episode_counts))

    def sample(rng: np.random.Generator, batch: int) -> Windows:
        task = rng.integers(len(tasks), size=batch)
        decisions = first_decision[task] + rng.integers(decision_counts[task])
        windows = source.windows_from(decisions)
        if not config.prompt_steps:
            return windows
        prompts = first_episode[task] + rng.integers(episode_counts[task])
        return _join_windows(
            _prompt_windows(demonstrations, prompts, config.prompt_steps, scaler=source.standard), windows
        )

    model, history = fit_conditioned(
        build_shape(config, episodes, prompt_steps=config.prompt_steps),
        sample,
        config.train,
        config=config,
        seed=config.seed,
        digest=f"{episodes.digest} {demonstrations.digest}",
        checkpoint=checkpoint,
        device=device,
    )
    return PromptedPolicy(model, source.standard, config.prompt_steps, history)


def _prompt_windows(
    demonstrations: Episodes, episodes: NDArray[np.int64], steps: int, *, scaler: ObservationScaler
) -> Windows:
    """Returns the last steps of these episodes `[B]` as windows that are seen and not learned."""
    from evolvent.offline.windows import WindowSource

    last = np.maximum(0, demonstrations.lengths[episodes] - steps)
    windows = WindowSource(demonstrations, context=steps, standard=scaler).windows_from(
        demonstrations.starts[episodes] + last
    )
    windows.decided[:] = False
    return windows


def _join_windows(first: Windows, second: Windows) -> Windows:
    """Joins windows of the same number along their steps."""
    import torch

    from evolvent.offline.windows import Windows

    names = [field.name for field in fields(Windows) if field.name != "terminated"]
    joined = {name: torch.cat([getattr(first, name), getattr(second, name)], 1) for name in names}
    return Windows(**joined, terminated=second.terminated)


def _repeat_windows(windows: Windows, count: int) -> Windows:
    from evolvent.offline.windows import Windows

    return Windows(
        **{
            field.name: getattr(windows, field.name).expand(count, *getattr(windows, field.name).shape[1:])
            for field in fields(Windows)
        }
    )


def save_prompted(policy: PromptedPolicy, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {**policy.scaler.as_json, "prompt_steps": policy.prompt_steps}
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_prompted(folder: Path) -> PromptedPolicy:
    """Reads a policy that `save_prompted` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_files import load_sequence, raise_incomplete
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.windows import ObservationScaler

    model, extra = load_sequence(DecisionModel, SequenceShape, folder)
    with raise_incomplete(folder):
        scaler = ObservationScaler.from_json(extra, model.shape.observation)
        return PromptedPolicy(model, scaler, min(model.shape.context - 1, max(0, int(extra["prompt_steps"]))))
