"""Credit: decomposed GAE as one scan, beside loops over steps and tokens in Python.

    python -m benchmarks.scan [--json] [--quick] [--save]

The same estimate of the same buffer (32 steps x 64 episodes x 32 tokens) by four sides, in float64: the library's
`decomposed_gae` over a `Flat`; a double Python loop over a numpy array, number by number; the same over plain lists,
which is the fastest that interpreted Python gets; and a loop over steps and tokens whose body is vectorised over
episodes, which needs all episodes and actions to be of one length. One thread, CPU seconds, runs interleaved, the best
of so many; ratios say how many times longer a side takes than the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.rl.advantages import decomposed_gae
from evolvent.rl.rollout_batch import TERMINATED, RolloutBatch

GAMMA, LAM, LAM_PART = 0.95, 0.95, 0.95
SEED = 0
Array = NDArray[np.float64]


def buffer(*, steps: int, episodes: int, tokens: int, seed: int) -> tuple[RolloutBatch, Array]:
    """A buffer of terminated episodes, paid at the end of every action, and the values of its prefixes."""
    actions = steps * episodes
    parts, rng = actions * tokens, np.random.default_rng(seed)
    ended, reward = np.zeros(actions, np.int8), np.zeros(parts)
    ended[steps - 1 :: steps] = TERMINATED
    reward[tokens - 1 :: tokens] = rng.normal(size=actions)
    action = np.repeat(np.arange(actions), tokens)
    flat = RolloutBatch(
        np.zeros(parts, np.float32),
        np.zeros(parts, np.int32),
        action,
        action,
        np.repeat(np.arange(episodes), steps),
        np.arange(episodes),
        reward,
        ended,
        np.zeros(actions),
        np.zeros(parts, np.int64),
        np.arange(parts),
    )
    return flat, rng.normal(size=parts)


def by_scan(flat: RolloutBatch, value: Array) -> Array:
    return decomposed_gae(value, flat, gamma=GAMMA, gae_lambda=LAM, token_lambda=LAM_PART).advantage


def by_loop(value: Array, reward: Array) -> Array:
    """Step by step and token by token over arrays `[E, S, W]`."""
    episodes, steps, tokens = value.shape
    advantage = np.zeros_like(value)
    for episode in range(episodes):
        acc = follows = 0.0
        for step in reversed(range(steps)):
            for token in reversed(range(tokens)):
                here = value[episode, step, token]
                if token == tokens - 1:
                    acc = reward[episode, step] + GAMMA * follows - here + GAMMA * LAM * acc
                else:
                    acc = follows - here + LAM_PART * acc
                advantage[episode, step, token] = acc
                follows = here
    return advantage


def by_lists(value: Array, reward: Array) -> Array:
    """The same over lists of Python floats."""
    found = []
    for values, rewards in zip(value.tolist(), reward.tolist(), strict=True):
        acc = follows = 0.0
        episode = []
        for prefixes, paid in zip(reversed(values), reversed(rewards), strict=True):
            discount, carry, extra = GAMMA, GAMMA * LAM, paid
            for here in reversed(prefixes):
                acc = extra + discount * follows - here + carry * acc
                episode.append(acc)
                follows, discount, carry, extra = here, 1.0, LAM_PART, 0.0
        episode.reverse()
        found.append(episode)
    return np.asarray(found).reshape(value.shape)


def by_episodes(value: Array, reward: Array) -> Array:
    """Over steps and tokens, all episodes at once."""
    episodes, steps, tokens = value.shape
    advantage, acc, follows = np.zeros_like(value), np.zeros(episodes), np.zeros(episodes)
    for step in reversed(range(steps)):
        for token in reversed(range(tokens)):
            here = value[:, step, token]
            if token == tokens - 1:
                acc = reward[:, step] + GAMMA * follows - here + GAMMA * LAM * acc
            else:
                acc = follows - here + LAM_PART * acc
            advantage[:, step, token] = acc
            follows = here
    return advantage


def compare(*, steps: int, episodes: int, tokens: int, rounds: int) -> dict[str, object]:
    """Best CPU seconds of each side, ratios to the library, and the greatest difference between any two."""
    flat, value = buffer(steps=steps, episodes=episodes, tokens=tokens, seed=SEED)
    values = value.reshape(episodes, steps, tokens)
    paid = flat.reward.reshape(values.shape)[:, :, -1].copy()
    sides: dict[str, Callable[[], Array]] = {
        "scan": lambda: by_scan(flat, value),
        "double loop over arrays": lambda: by_loop(values, paid),
        "double loop over lists": lambda: by_lists(values, paid),
        "vectorised over episodes": lambda: by_episodes(values, paid),
    }
    seconds = dict.fromkeys(sides, float("inf"))
    found: dict[str, Array] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            for _ in range(10 if name == "scan" else 1):
                began = time.process_time()
                result = side()
                seconds[name] = min(seconds[name], time.process_time() - began)
            found[name] = result.ravel()
    apart = max(float(np.abs(other - found["scan"]).max()) for other in found.values())
    return {
        "buffer": f"{steps} steps x {episodes} episodes x {tokens} tokens",
        "milliseconds": {name: round(1e3 * time_, 3) for name, time_ in seconds.items()},
        "times_the_scan": {name: round(time_ / seconds["scan"], 1) for name, time_ in seconds.items()},
        "greatest_difference": apart,
        "seed": SEED,
        **about("numpy", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("scan", __doc__, quick="a small buffer; supports no claim", save=RESULTS / "scan.json")
    chosen = parser.parse_args(arguments)
    size = {"steps": 4, "episodes": 8, "tokens": 8} if chosen.quick else {"steps": 32, "episodes": 64, "tokens": 32}
    result = compare(**size, rounds=2 if chosen.quick else 5) | {"quick": chosen.quick}
    show(result)
    finish(result, chosen)


if __name__ == "__main__":
    main()
