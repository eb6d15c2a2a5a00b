"""Rollouts of teams for tests: by hand from arrays, and played."""

from __future__ import annotations

import numpy as np

from evolvent.marl.rollout import ArrayRollout
from evolvent.worlds.teams.base import Discrete, TeamSpec, TeamView

SPEC = TeamSpec(agents=2, observation=3, actions=Discrete(2), horizon=10)


def view(spec: TeamSpec, rows: int, *, alive=None, time: int = 0, number=None, seed: int = 0) -> TeamView:
    rng = np.random.default_rng(seed)
    return TeamView(
        observation=rng.normal(size=(rows, spec.agents, spec.observation)).astype(np.float32),
        alive=np.ones((rows, spec.agents), bool) if alive is None else np.asarray(alive, bool),
        number=np.arange(rows) if number is None else np.asarray(number),
        time=np.full(rows, time),
    )


def rollout_of(
    reward,
    *,
    spec: TeamSpec = SPEC,
    terminated=(),
    truncated=(),
    lost=(),
    alive=None,
    value=None,
    last_alive=None,
    seed: int = 0,
) -> ArrayRollout:
    """A rollout with these rewards `[T, E]`; episodes end at the given places (t, e)."""
    reward = np.asarray(reward, np.float64)
    steps, rows = reward.shape
    marks = {name: np.zeros((steps, rows), bool) for name in ("terminated", "truncated", "lost")}
    for name, places in (("terminated", terminated), ("truncated", truncated), ("lost", lost)):
        for place in places:
            marks[name][place] = True
    over, number, time = marks["terminated"] | marks["truncated"], np.zeros((steps + 1, rows), int), None
    number[0], time = np.arange(rows), np.zeros((steps + 1, rows), int)
    for t in range(steps):
        number[t + 1] = number[t] + rows * over[t]
        time[t + 1] = np.where(over[t], 0, time[t] + 1)
    rng = np.random.default_rng(seed)
    team = (steps, rows, spec.agents)
    cut = np.argwhere(marks["truncated"] & ~marks["lost"])
    discrete = isinstance(spec.actions, Discrete)
    return ArrayRollout(
        spec=spec,
        observation=rng.normal(size=(*team, spec.observation)).astype(np.float32),
        alive=np.ones(team, bool) if alive is None else np.asarray(alive, bool),
        available=None,
        state=None,
        actions=rng.integers(0, 2, team) if discrete else rng.normal(size=(*team, spec.actions.dim)).astype(np.float32),
        logp=np.log(rng.uniform(0.3, 0.9, team)).astype(np.float32),
        value=rng.normal(size=team).astype(np.float32) if value is None else np.asarray(value, np.float32),
        reward=reward,
        **marks,
        number=number[:-1],
        time=time[:-1],
        success=None,
        last=view(spec, rows, number=number[-1], seed=1, alive=last_alive),
        final=view(spec, len(cut), seed=2) if len(cut) else None,
        final_at=cut,
    )


def play(batch, policy, steps: int, *, seed: int, now: TeamView) -> tuple[ArrayRollout, TeamView]:
    """Play on from `now`, as a collector does."""
    kept, finals, places = [], [], []
    for t in range(steps):
        decision = policy.act(now, seed=seed)
        step = batch.step(decision.actions)
        kept.append((now, decision, step))
        if step.final is not None:
            for at, row in enumerate(step.ended):
                if step.truncated[row]:
                    finals.append(step.final.rows(np.array([at])))
                    places.append((t, row))
        now = step.view

    def over(each):
        return np.stack([each(*row) for row in kept])

    final = None
    if finals:
        names = ("observation", "alive", "available", "state", "number", "time")
        final = TeamView(
            **{
                name: None if getattr(finals[0], name) is None else np.concatenate([getattr(x, name) for x in finals])
                for name in names
            }
        )
    first = kept[0][0]
    found = ArrayRollout(
        spec=batch.spec,
        observation=over(lambda v, d, s: v.observation),
        alive=over(lambda v, d, s: v.alive),
        available=None if first.available is None else over(lambda v, d, s: v.available),
        state=None if first.state is None else over(lambda v, d, s: v.state),
        actions=over(lambda v, d, s: d.actions),
        logp=over(lambda v, d, s: d.logp),
        value=over(lambda v, d, s: d.value),
        reward=over(lambda v, d, s: s.reward),
        terminated=over(lambda v, d, s: s.terminated),
        truncated=over(lambda v, d, s: s.truncated),
        lost=np.zeros((steps, batch.size), bool),
        number=over(lambda v, d, s: v.number),
        time=over(lambda v, d, s: v.time),
        success=None,
        last=now,
        final=final,
        final_at=np.array(places, int).reshape(-1, 2),
    )
    return found, now
