#!/bin/sh
# textarena 0.7.4: the reward of Set-v0 is a number of sets, where the other games pay at most 1.
#
# A player has twenty turns to find sets. The reward is how many were found, 0 to 20, and not a share of what could be
# found. Games of the package for one player pay 1 for a won game and a share below 1 otherwise, so a mean over games, or
# a threshold of 1 for success, takes one set in twenty turns for a won game.
#
# Seen with Python 3.11, textarena 0.7.4:
#   0 sets in 20 turns: reward 0
#   1 sets in 20 turns: reward 1
#   20 sets in 20 turns: reward 20
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "textarena==0.7.4"
"$folder/venv/bin/python" - <<'PYTHON'
import random
from itertools import combinations

import textarena


def choose(board, want_set):
    """Returns the numbers of three cards that are a set, or are none."""
    for numbers in combinations(range(len(board)), 3):
        kinds = [len({board[number][trait] for number in numbers}) for trait in range(4)]
        if (2 not in kinds) == want_set:
            return "[" + ", ".join(str(number + 1) for number in numbers) + "]"
    raise LookupError("no such cards on this board")


def play(sets):
    """Plays 20 turns, the first of them with sets; returns the reward."""
    random.seed(0)
    env = textarena.make("Set-v0-raw")
    env.reset(num_players=1, seed=0)
    for turn in range(20):
        done, _ = env.step(choose(env.state.game_state["board"], turn < sets))
    assert done
    return env.close()[0][0]


for sets in (0, 1, 20):
    reward = play(sets)
    print(f"{sets} sets in 20 turns: reward {reward}")
    assert reward == sets, "it pays otherwise now"
PYTHON
