"""A Decision Transformer learns from recorded play and is asked for returns; a clone of the same episodes is beside it.

    python offline_decisions.py [UPDATES]

The data are 200 episodes of CartPole by players from random to good. A clone has one way to play; a policy that is
asked for a return plays as the episodes did that earned it.
"""

import sys

from evolvent.methods.decision_transformer import PRESETS, DecisionTransformerConfig, decision_transformer
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.mixtures import play_mixture
from evolvent.worlds.control import get_control, make_control

settings = dict(PRESETS["small"])
if len(sys.argv) > 1:
    settings["train"] = {**settings["train"], "max_steps": int(sys.argv[1])}
world = get_control("cartpole")
episodes = play_mixture(world, kind="replay", episodes=200, seed=0).episodes


def measure(policy, target):
    actor = policy.build_actor(target=target)
    return play_arrays(actor, lambda: make_control(world), episodes=20, horizon=500, num_actions=2, seed=1).returns


cloned = decision_transformer(DecisionTransformerConfig(returns=False, **settings), episodes)
print(f"cloning:          mean return {measure(cloned, 0.0).mean():5.1f}")
conditioned = decision_transformer(DecisionTransformerConfig(**settings), episodes)
for asked in (100.0, 300.0, 500.0):
    print(f"asked for {asked:.0f}:    mean return {measure(conditioned, asked).mean():5.1f}")
