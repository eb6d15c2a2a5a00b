"""A team that decides one agent after the other: MAT against agents that decide at once with the same weights (MAPPO).

    python team_sequence.py [DECISIONS]

The team of `distinct` is paid the share of agents whose action no other took. All see the same, so agents that decide
at once can only randomize; an agent that knows the decisions before its own takes what is left.
"""

import sys

from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import MATConfig, mat
from evolvent.worlds.teams.games import GameWorld

DECISIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_240


def train(kind, agents=4):
    world = GameWorld("distinct")
    batch = world.batch([world.task(agents, shuffle=number) for number in range(16)], 128)
    update = TeamUpdateConfig(lr=3e-3, ppo_epochs=5, minibatches=4)
    config = MATConfig(kind=kind, rows=128, steps=4, decisions=DECISIONS, update=update)
    return mat(config, batch)


for kind in ("mat", "mappo"):
    history = train(kind).history
    for row in [history[0], *history[3::4]]:
        print(f"{kind:5} {int(row['decisions']):6,} decisions: mean return {row['episode_return']:.2f}")
