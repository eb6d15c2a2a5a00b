"""GRPO with LoRA on a crafting world.

    python grpo_textcraft.py [MODEL [RECIPES]] [--endpoint URL NAME WEIGHTS [DIALECT]]

MODEL is a local Hugging Face folder, RECIPES a folder of Minecraft's recipe files (TextCraft itself; without it the
world's own recipes). Without a model a small one is made for a simpler world, and imitates demonstrations first. The
policy plays in this process, or on an endpoint that takes weights from the folder WEIGHTS after each iteration:

    evolvent serve --policy MODEL --reload WEIGHTS      # DIALECT openai; others are vllm and sglang
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

import evolvent as ev
from evolvent.engine.servers import endpoint_type
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.models.adapters import AdapterConfig, adapt, merge_adapter
from evolvent.rl.trainer import RLConfig
from evolvent.scale.endpoint_backend import EndpointBackend
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("given", nargs="*", metavar="MODEL RECIPES")
parser.add_argument("--endpoint", nargs="+", default=[], metavar="URL NAME WEIGHTS DIALECT")
given, there = vars(parser.parse_args()).values()
if len(given) > 2 or (there and len(there) not in (3, 4)):
    parser.error("at most MODEL and RECIPES, and of --endpoint URL, NAME, WEIGHTS and perhaps a DIALECT")
speaking = endpoint_type(there[3] if len(there) > 3 else "openai")
world = (ev.Crafting.from_folder(given[1]) if given[1:] else ev.Crafting()) if given else ev.Lookup()
tasks = world.tasks("train", "seen")
learner = ev.TrainConfig(lr=1e-5 if given else 1e-3, warmup_steps=0, batch_tokens=4096)
settings = {"panel": EvaluationPanel(limit=40), "slots": 32, "max_tokens": 64 if given else 16}
config = GRPOConfig(
    kind="grpo",
    correct="truncated",  # weights against a sampler that differs a little from the learner
    practice=RLConfig(iterations=50 if given else 10, tasks_per_iteration=8, group_size=8, temperature=1.0),
)

if given:
    policy = ev.load_policy(given[0])
else:
    with ev.local_run("runs/grpo-textcraft-first", [world], train=ev.TrainConfig(lr=5e-3, batch_tokens=512)) as first:
        shown = ev.collect_demonstrations([world], tasks[:100])
        policy = first.fit(ev.make_policy([world]), shown, ev.weighted_nll, tokens=40_000)
tuned = adapt(policy, AdapterConfig(kind="lora", rank=16, targets=("all-linear",)), seed=0)
with ExitStack() as open_:
    verbs = LocalBackend({world.name: world}, learner, **settings)
    if there:
        endpoint = open_.enter_context(speaking(there[0], there[1], tokens=True, processed=True))
        verbs = EndpointBackend({world.name: world}, learner, endpoint=endpoint, handover=Path(there[2]), **settings)
    run = open_.enter_context(ev.Run(Path("runs/grpo-textcraft"), verbs, settings=verbs.settings()))
    best = grpo(tuned, tasks[100:400], config=config, run=run)
    for row in run.evaluate(best, config.practice.iterations):
        print(f"{row.tier:7} {row.mean:.0%} ({row.low:.0%} to {row.high:.0%})")
    best.save(run.folder / "adapter")  # as peft reads it
    merge_adapter(best).save(run.folder / "model")  # as transformers reads it
    ev.report(run.folder, run.folder / "report.html")
