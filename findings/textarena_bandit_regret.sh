#!/bin/sh
# textarena 0.7.4: the bandit pays the regret of the final choice, so that the worst button earns most.
#
# Bandit-v0 lets a player press five buttons twenty times and then choose the best. The final choice is compared with the
# dictionary of all chances instead of the best button's name, so it never counts as right, and the reward of a choice
# that is not right is its regret: the best chance less the chosen one. The best button earns 0, the worst earns most.
#
# Seen with Python 3.11, textarena 0.7.4:
#   blue: chance 0.550, reward 0.000, You chose an incorrect button.
#   yellow: chance 0.421, reward 0.129, You chose an incorrect button.
#   red: chance 0.307, reward 0.243, You chose an incorrect button.
#   purple: chance 0.266, reward 0.284, You chose an incorrect button.
#   green: chance 0.146, reward 0.404, You chose an incorrect button.
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "textarena==0.7.4"
"$folder/venv/bin/python" - <<'PYTHON'
import random

import textarena


def play(button):
    """Presses one button all the time and returns (chances, reward, reason)."""
    random.seed(3)
    env = textarena.make("Bandit-v0-raw")
    env.reset(num_players=1, seed=3)
    done = False
    while not done:
        done, _ = env.step(f"[{button}]")
    chances = env.state.game_state["ground_truth"]
    rewards, info = env.close()
    return chances, rewards[0], info[0]["reason"]


chances = play("red")[0]
paid = {}
for button in sorted(chances, key=chances.get, reverse=True):
    same, paid[button], reason = play(button)
    assert same == chances
    print(f"{button}: chance {chances[button]:.3f}, reward {paid[button]:.3f}, {reason}")
best = max(chances.values())
assert all(abs(paid[button] - (best - chance)) < 1e-9 for button, chance in chances.items()), "it pays otherwise now"
PYTHON
