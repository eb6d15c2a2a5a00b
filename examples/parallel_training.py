"""Training over 2 x 2 x 2 ranks: pipeline, sharded data and tensor parallelism, and the same losses as in one process.

    torchrun --nproc-per-node 8 parallel_training.py 2 2 2        # pp, shard, tp; on CPU too
    python parallel_training.py                                   # one process

The checkpoint in `runs/parallel` is of no layout: stop this, start it with other numbers, and it goes on.
"""

import sys
from pathlib import Path

import evolvent as ev
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.parallel.ranks import Parallelism, join_ranks
from evolvent.learn.token_sequences import flatten
from evolvent.models.exchange import export_hf

pp, shard, tp = map(int, sys.argv[1:4]) if len(sys.argv) > 3 else (1, 1, 1)
layout, run = Parallelism(pp=pp, shard=shard, tp=tp), Path("runs/parallel")

world = ev.Crafting(level=0)
policy = ev.make_policy([world], context=256)  # any Hugging Face decoder: ev.load_policy(FOLDER)
shown = ev.collect_demonstrations([world], world.tasks("train", "seen")[:100])
parts = flatten(shown, policy.dialect, instructions=lambda task: world.instructions, context=policy.context).sequences
config = ev.TrainConfig(max_steps=30, warmup_steps=5)

with join_ranks(layout.mesh) as ranks:
    learner = ev.Learner(policy, ev.weighted_nll, config, seed=0, parallelism=layout, ranks=ranks)
    checkpoints = Checkpointer(run / "checkpoints", every=10, ranks=ranks)
    report = learner.fit(parts, checkpoint=checkpoints)
    if ranks.is_leader:
        print(f"{layout.mesh}: {report.updates} updates, loss {report.losses[0]:.6f} -> {report.losses[-1]:.6f}")
        if not (run / "model").exists():
            export_hf(checkpoints.find_newest(), policy, run / "model")
