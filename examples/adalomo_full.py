"""Full fine-tuning with AdaLomo: every weight is updated inside the backward, and no gradient is kept.

`python adalomo_full.py MODEL_FOLDER TEXT.jsonl` goes on pre-training a local model on lines {"text": ...}. Without
arguments a small model reads recipes of the crafting world.
"""

import sys
from pathlib import Path

import evolvent as ev
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.rows import ReadingConfig, read_rows
from evolvent.learn.sources import read_json_lines

if len(sys.argv) > 2:
    policy, rows, lr = ev.load_policy(sys.argv[1]), read_json_lines(Path(sys.argv[2])), 1e-3
else:
    world = ev.Crafting(level=0)
    policy, lr = ev.make_policy([world]), 5e-3
    shown = ev.collect_demonstrations([world], world.tasks("train", "seen")[:60])
    rows = ((one.id, {"text": one.steps[0].observation}) for one in shown)

parts = list(read_rows(rows, policy, ReadingConfig(kind="text", join=True)))
config = ev.TrainConfig(lr=lr, epochs=3, batch_tokens=1024, warmup_steps=5)
learner = ev.Learner(policy, ev.weighted_nll, config, seed=0, optimizer=OptimizerConfig(name="adalomo"))
report = learner.fit(parts)
state = sum(value.numel() for entry in learner.optimizer.state.values() for value in entry.values())
print(f"{len(parts)} blocks, loss {report.losses[0]:.2f} -> {report.losses[-1]:.2f}")
print(f"optimizer state: {state / policy.parameters():.1%} of the weights (AdamW: 200%)")
policy.save(Path("runs/adalomo"))
