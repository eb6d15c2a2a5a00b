"""Your own method: a function of objects. This one is rejection sampling: try, keep what succeeded, learn, measure."""

import evolvent as ev


def rejection_sampling(policy, tasks, run, rounds=2, samples=4):
    for number in run.rounds(rounds):
        tried = run.collect(policy, [ev.Start(task, n) for task in tasks for n in range(samples)])
        kept = [trajectory for trajectory in tried if trajectory.success]
        policy = run.fit(policy, kept, ev.weighted_nll, tokens=10_000) if kept else policy
        run.evaluate(policy, number)
    return policy


worlds = [ev.Lookup()]
tasks = worlds[0].tasks("train", "seen")
with ev.local_run("runs/own-method", worlds, seed=0) as run:
    cloned = run.fit(ev.policy_for(worlds), ev.demonstrations(worlds, tasks[:200]), ev.weighted_nll, tokens=20_000)
    rejection_sampling(cloned, tasks[200:300], run)
    ev.report(run.folder, run.folder / "report.html")
