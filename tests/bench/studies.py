"""Small studies whose arms do nothing but answer: for the tests of running and judging them."""

from __future__ import annotations

from evolvent.bench.study import Arm, ArmResult, PrimaryComparison, Study

PANELS = {"lookup/evo": 4, "lookup/combo": 2, "maze/evo": 3}


def outcomes(marks, panels=PANELS):
    """Outcomes from one string of 0 and 1 over all panels in order; two tasks a kind."""
    found, begin = {}, 0
    for panel, size in panels.items():
        word = marks[begin : begin + size]
        found[panel] = [(f"{panel}-{n}", f"kind {n // 2}", mark == "1") for n, mark in enumerate(word)]
        begin += size
    assert begin == len(marks)
    return found


def played(marks="101010101", **more):
    return ArmResult(outcomes(marks), tokens={"computed": 100, "generated": 10}, cpu_s=2.0, **more)


def answers(seat):
    """What an arm of `study` does by default."""
    return played("1" * 6 + "000" if seat.arm == "evolve" else "100000000")


def study(play=answers, *, seeds=range(6), budget=1000, **changes):
    arms = (
        Arm("base", "where all start", play),
        Arm("evolve", "the claim", play, ("base",)),
        Arm("control", "was exploring worth its cost?", play, ("base",)),
    )
    facts = {"worlds": {"lookup": "1", "maze": "2"}, "lr": 0.004}
    settings = {"name": "small", "arms": arms, "primary": PrimaryComparison("evolve", "control"), "facts": facts}
    return Study(**(settings | {"seeds": tuple(seeds), "budget": budget} | changes))
