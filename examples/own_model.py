"""Your own model: any Hugging Face causal LM folder plays a world, is cloned from its expert, and is measured."""

import sys

import evolvent as ev

world = ev.Lookup()
policy = ev.load_policy(sys.argv[1]) if len(sys.argv) > 1 else ev.make_policy([world])
learner = ev.TrainConfig(lr=5e-3, batch_tokens=512)  # for the small default; a pretrained model wants about 1e-5
tasks = world.tasks("train", "seen")[:200]
with ev.local_run("runs/own-model", [world], seed=0, train=learner) as run:
    policy = run.fit(policy, ev.collect_demonstrations([world], tasks), ev.weighted_nll, tokens=50_000)
    for row in run.evaluate(policy, round=0):
        print(f"{row.world} {row.tier:7} {row.mean:.0%} ({row.low:.0%} to {row.high:.0%})")
    policy.save(run.folder / "model")
