"""Your own method: a function of objects. This one is rejection sampling: try, keep what succeeded, learn, measure."""

import evolvent as ev


def rejection_sampling(policy, tasks, run, rounds=2, samples=4):
    for number in run.rounds(rounds):
        tried = run.collect(policy, [ev.Start(task, n) for task in tasks for n in range(samples)])
        kept = [trajectory for trajectory in tried if trajectory.success]
        policy = run.fit(policy, kept, ev.weighted_nll, tokens=10_000) if kept else policy
        show(number, run.evaluate(policy, number))
    return policy


def show(number, rows):
    print(f"round {number}: " + ", ".join(f"{row.tier} {row.mean:.0%}" for row in rows))


worlds, learner = [ev.Lookup()], ev.TrainConfig(lr=5e-3, batch_tokens=512)
tasks = worlds[0].tasks("train", "seen")
demonstrations = ev.collect_demonstrations(worlds, tasks[:70])
with ev.local_run("runs/own-method", worlds, seed=0, train=learner) as run:
    cloned = run.fit(ev.make_policy(worlds), demonstrations, ev.weighted_nll, tokens=40_000)
    show(0, run.evaluate(cloned, 0))
    rejection_sampling(cloned, tasks[70:170], run)
    ev.report(run.folder, run.folder / "report.html")
