"""The run of `test_local.py`, as a script: both arms of the main job on one world. A line "stage" for each stage."""

import sys
from pathlib import Path

import torch

import evolvent as ev
from evolvent.scale.local_backend import EvaluationPanel

torch.set_num_threads(1)
world = ev.Lookup()
seen = world.tasks("train", "seen")
config = ev.AgentEvolConfig(iterations=1, samples_per_task=2, clone_tokens=36_000, round_tokens=2500)
with ev.local_run(Path(sys.argv[1]), [world], seed=5, panel=EvaluationPanel(limit=8), slots=16) as run:
    run.observe(lambda: sys.stdout.write("stage\n"))
    demos = ev.collect_demonstrations([world], seen[:90])
    ev.agentevol(ev.make_policy([world]), seen[90:120], demos, config=config, run=run).save(run.folder / "model")
    idle = config.model_copy(update={"keep": "none", "samples_per_task": 0})
    ev.agentevol(ev.make_policy([world]), seen[90:120], demos, config=idle, run=run.arm("control"))
