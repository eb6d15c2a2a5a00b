"""A controlled study of your own: do successes on new tasks teach more than the old demonstrations?

    python controlled_study.py [SEEDS]

Both arms go on from one policy and learn as many tokens: `kept` from its own successes, `shown` from the demonstrations
that it began with. The study is frozen before it runs; call the script again to go on after an interruption.
"""

import sys
from functools import partial
from pathlib import Path
from time import process_time

from rich import print as show

import evolvent as ev
from evolvent.bench.study import Arm, ArmResult, PrimaryComparison, Study, collect_outcomes, run_study
from evolvent.bench.verdict import summarize_study, to_json
from evolvent.view.study import study_table

WORLD, LEARNER = ev.Lookup(), ev.TrainConfig(lr=5e-3, batch_tokens=512)
TASKS = WORLD.tasks("train", "seen")
SHOWN = ev.collect_demonstrations([WORLD], TASKS[:70])


def play(arm_run, *, learn_from):
    started = process_time()
    with ev.local_run(arm_run.folder / "run", [WORLD], seed=arm_run.seed, train=LEARNER) as run:
        if learn_from == "nothing":
            policy = run.fit(ev.make_policy([WORLD], seed=arm_run.seed), SHOWN, ev.weighted_nll, tokens=40_000)
            policy.save(arm_run.folder / "policy")
        else:
            policy, more = ev.load_policy(arm_run.previous["base"].folder / "policy"), SHOWN
            if learn_from == "kept":
                tried = run.collect(policy, [ev.Start(task, n) for task in TASKS[70:170] for n in range(4)])
                more = [trajectory for trajectory in tried if trajectory.success]
            policy = run.fit(policy, more, ev.weighted_nll, tokens=10_000)
        outcomes = collect_outcomes(run.evaluate(policy, round=0))
    return ArmResult(outcomes, cpu_s=process_time() - started)


arms = (
    Arm("base", "where both begin", partial(play, learn_from="nothing")),
    Arm("shown", "as many more tokens of the demonstrations", partial(play, learn_from="shown"), after=("base",)),
    Arm("kept", "the claim: own successes on new tasks", partial(play, learn_from="kept"), after=("base",)),
)
seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
study = Study("filter", arms, tuple(seeds), None, PrimaryComparison("kept", "shown", tiers=("seen", "evo", "combo")))
results = run_study(study, Path("runs/filter"), observe=lambda event: print(event.arm, event.seed, event.state))
show(study_table(to_json(summarize_study(study, results)), width=100))
