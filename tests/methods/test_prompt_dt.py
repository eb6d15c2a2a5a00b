"""Prompt-DT: what its windows hold, by hand, and tasks that it never saw, known from one demonstration."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.methods import prompt_dt as module
from evolvent.methods.prompt_dt import PromptDTConfig, TaskEpisodes, load_prompted, prompt_dt, save_prompted
from evolvent.offline.windows import ObservationScaler, WindowSource
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.histories import play_policy_episodes
from evolvent.store.episodes import concatenate_episodes
from evolvent.worlds.families import get_family
from tests.sequence_support import Chain, chain_episodes

TRAIN = {"max_steps": 3, "lr": 1e-2, "warmup": 10, "grad_norm": 1.0, "batch": 32}
TINY = {"scale": 1.0, "width": 16, "layers": 1, "dropout": 0.0, "horizon": 12}


def test_windows_begin_with_the_last_steps_of_a_demonstration():
    """A prompt of three steps from episodes of two is padded; its actions are seen, and only the context is learned."""
    data = chain_episodes()  # paths 00, 01, 10, 11
    source = WindowSource(data, context=1, standard=ObservationScaler.identity(2))
    prompt = module._prompt_windows(data, np.array([2, 3]), 3, scaler=source.standard)
    windows = module._join_windows(prompt, source.windows_from([0, 1]))
    assert windows.action.tolist() == [[-1, 1, 0, 0], [-1, 1, 1, 0]]
    assert windows.to_go.tolist() == [[0, 1, 0, 0], [0, 2, 1, 0]]
    assert windows.seen.tolist() == [[False, True, True, True]] * 2
    assert windows.decided.tolist() == [[False, False, False, True]] * 2
    assert windows.time.tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    last = module._prompt_windows(data, np.array([2]), 1, scaler=source.standard)
    assert (last.action.tolist(), last.time.tolist()) == ([[0]], [[1]])


def test_a_policy_is_saved_with_the_length_of_its_prompt(tmp_path):
    tasks = [TaskEpisodes(chain_episodes(), chain_episodes().select([number])) for number in (0, 3)]
    policy = prompt_dt(PromptDTConfig(prompt_steps=2, context=2, **TINY, train=TRAIN), tasks)
    save_prompted(policy, tmp_path)
    loaded = load_prompted(tmp_path)
    assert loaded.prompt_steps == 2
    played = [
        play_arrays(
            each.build_actor(1.0, chain_episodes().select([3]), greedy=False),
            Chain,
            episodes=20,
            horizon=2,
            num_actions=2,
            seed=0,
        ).digest
        for each in (policy, loaded)
    ]
    assert played[0] == played[1]
    with pytest.raises(ConfigError, match="the policy needs a demonstration of the task"):
        policy.build_actor(1.0)


@pytest.mark.long
def test_goals_that_it_never_saw_are_known_from_one_demonstration():
    """Rooms with other goals than in training: with a prompt it earns most of the expert's return, without nothing."""
    family = get_family("darkroom")
    training, held_out = family.split_tasks(held_out=8, seed=0)

    def play(task, episodes, *, seed, random_ratio=0.0):
        env = family.build_env(task)
        return play_policy_episodes(
            env,
            env.best_action,
            num_actions=family.actions,
            episodes=episodes,
            horizon=family.horizon,
            seed=seed,
            random_ratio=random_ratio,
        )

    tasks = [
        TaskEpisodes(
            concatenate_episodes([play(task, 10, seed=task), play(task, 10, seed=task + 1000, random_ratio=0.5)]),
            play(task, 1, seed=1),
        )
        for task in training
    ]
    train = {"max_steps": 700, "lr": 2e-3, "warmup": 50, "grad_norm": 1.0, "batch": 64}
    earned = {}
    for steps in (4, 0):
        config = PromptDTConfig(
            prompt_steps=steps,
            context=2,
            scale=10.0,
            width=64,
            heads=4,
            layers=2,
            dropout=0.0,
            horizon=family.horizon,
            train=train,
        )
        policy = prompt_dt(config, tasks)
        earned[steps] = np.mean(
            [
                play_arrays(
                    policy.build_actor(9.0, play(task, 1, seed=2)),
                    lambda task=task: family.build_env(task),
                    episodes=1,
                    horizon=family.horizon,
                    num_actions=family.actions,
                    seed=0,
                ).returns[0]
                for task in held_out
            ]
        )
    expert = np.mean([play(task, 1, seed=1).returns[0] for task in held_out])
    assert earned[4] > 0.5 * expert and earned[0] < 0.2 * expert
