"""Does an agent really evolve? The controlled study of AgentEvol.

    python -m benchmarks.evolve [--json]                the study: plays what has no result yet, then prints it
    python -m benchmarks.evolve --seeds 1000 1001       only these seeds; several processes may share the work
    python -m benchmarks.evolve --study variants        AgentEvol as published and as formulated, in one world
    python -m benchmarks.evolve --quick [--json]        the same machinery in two minutes; supports no claim
    python -m benchmarks.evolve --quick --worlds all    the same over other worlds, one seed, three arms

A study is frozen in `benchmarks/results/NAME/study.json`: worlds, digests of all panels, configuration, budget, the
number that decides and its threshold. It was chosen on dev panels with other seeds. A change is a new study in another
folder. Results are kept seed by seed beside it, task by task; after a run all is packed into `cells.jsonl.gz` there
(`python -m benchmarks.study --unpack FOLDER` writes the files again).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.evolve.arms import Plan, arms, worlds
from benchmarks.reporting import RESULTS, about, command_line, finish, versions
from benchmarks.study import study_run, unpack
from evolvent.bench.plan import PrimaryComparison, Study
from evolvent.bench.results import ArmResult
from evolvent.bench.study import StudyEvent, freeze_study, read_results, run_study
from evolvent.bench.verdict import StudySummary, read_summary, to_json
from evolvent.former_names import former_fields
from evolvent.learn.learner import TrainConfig
from evolvent.methods.agentevol import FORMULATED, PUBLISHED, AgentEvolConfig
from evolvent.stats import Interval
from evolvent.view.study import study_table
from evolvent.worlds.base import SPLITS
from evolvent.worlds.panel import digest

SEEDS = {"evolve": tuple(range(1000, 1008)), "variants": tuple(range(2000, 2006))}
LEARNER = TrainConfig(lr=5e-3, betas=(0.9, 0.95), batch_tokens=512)
PLAN = Plan(
    worlds=("crafting:0", "lookup"),
    demonstrated=(200, 50),
    explored=(600, 600),
    namings=10,
    clone_tokens=150_000,
    clones=10,
    train=LEARNER,
    method=AgentEvolConfig(
        iterations=4, samples_per_task=6, revisit=False, select="best", round_tokens=100_000, lr_scale=0.7
    ),
)
VARIANTS = Plan(
    worlds=("lookup",),
    demonstrated=(60,),
    explored=(600,),
    namings=1,
    clone_tokens=40_000,
    clones=6,
    train=LEARNER,
    method=AgentEvolConfig(
        iterations=3, samples_per_task=6, revisit=False, select="best", round_tokens=60_000, lr_scale=0.7
    ),
)
ARMS = {
    "evolve": ("base", "evolve", "train", "total", "regardless", "upper"),
    "variants": ("base", "evolve", "total", "published", "formulated"),
}
BUDGET = 8_000_000  # computed tokens of an arm, updates included
QUICK = Plan(
    worlds=("lookup",),
    demonstrated=(70,),
    explored=(60,),
    namings=1,
    clone_tokens=12_000,
    clones=2,
    train=LEARNER,
    method=AgentEvolConfig(iterations=1, samples_per_task=2, select="best", round_tokens=8_000, lr_scale=0.7),
    limit=40,
)


def quick_plan(names: Sequence[str]) -> Plan:
    """A plan over any worlds with closed vocabularies: a few tasks of each, long contexts, no claim."""
    count = len(worlds(tuple(names)))
    return Plan(
        worlds=tuple(names),
        demonstrated=(20,) * count,
        explored=(4,) * count,
        namings=1,
        clone_tokens=40_000,
        clones=1,
        train=LEARNER,
        context=1024,
        limit=2,
        tiers=("seen",),
        method=AgentEvolConfig(iterations=1, samples_per_task=2, select="best", round_tokens=6_000, lr_scale=0.7),
    )


def study(name: str, plan: Plan, seeds: Sequence[int], names: Sequence[str]) -> Study:
    """The study with all that its result depends on."""
    panels = {
        f"{name}/{tier}/{split}": digest(world.tasks(split, tier))
        for name, world in worlds(plan.worlds).items()
        for tier in world.tiers
        for split in SPLITS
    }
    facts: dict[str, Any] = {
        "plan": plan.described(),
        "panels": panels,
        "versions": versions("evolvent", "torch", "transformers"),
    }
    if name != "evolve":  # which has neither of these arms, and was frozen before they were facts
        former = former_fields(AgentEvolConfig)
        facts["presets"] = {
            "published": {former.get(name, name): value for name, value in PUBLISHED.items()},
            "formulated": {former.get(name, name): value for name, value in FORMULATED.items()},
        }
    primary = PrimaryComparison("evolve", "total", tiers=plan.tiers)
    return Study(name, arms(plan, names), tuple(seeds), BUDGET, primary, 0.05, facts)


def tell(event: StudyEvent) -> None:
    """One line for whatever happens."""
    if event.state != "known":
        print(f"{event.arm} {event.seed} {event.state} {event.why}".rstrip(), flush=True)


def gains_of_more(chosen: Study, folder: Path) -> list[float]:
    """By seed, what 25 % more cloning won over the base on the primary tiers of the test panels."""
    kept = read_results(chosen, folder)
    bases = [result for (arm, _), result in kept.items() if arm == "base" and isinstance(result, ArmResult)]
    return [float(str(base.notes["gain_of_25_percent_more"])) for base in bases]


def further_cloning(gains: Sequence[float]) -> str:
    """One line about whether the base was cloned to its end."""
    if not gains:
        return ""
    each = ", ".join(f"{100 * gain:+.1f}" for gain in gains)
    return f"25 % more cloning changes the base by {100 * sum(gains) / len(gains):+.1f} points (by seed {each})"


def ends(interval: Interval) -> list[float | None]:
    """Both ends of an interval; None where there is too little for one."""
    return [None if isnan(end) else end for end in (interval.low, interval.high)]


def report(found: StudySummary, gains: Sequence[float], *, quick: bool) -> dict[str, Any]:
    """The figures as one JSON object."""
    by_arm: dict[str, dict[str, list[float | None]]] = {}
    for rate in found.rates:
        own = by_arm.setdefault(rate.arm, {})
        own[f"{rate.world}/{rate.tier}"] = [rate.interval.mean, *ends(rate.interval)]
    against_base = [
        ends(one.interval)[0]
        for one in found.differences
        if one.arm == found.primary["arm"] and one.against == found.primary["base"] and one.world and not one.tier
    ]
    primary = found.difference.interval if found.difference else None
    return {
        "arms": by_arm,
        "primary": primary and primary.mean,
        "primary_ci": primary and ends(primary),
        "p": found.p,
        "verdict": found.verdict,
        "room_share": found.room,
        "worst_world_low": min((low for low in against_base if low is not None), default=None),
        "gain_of_25_percent_more_cloning": sum(gains) / len(gains) if gains else None,
        "seeds": list(found.seeds),
        "cpu_hours": sum(arm.cpu_s for arm in found.arms) / 3600,
        "tokens": {arm.name: dict(arm.tokens) for arm in found.arms},
        "unfinished": [f"{one.arm}/{one.seed}: {one.why}" for one in found.unfinished],
        "digest": found.digest,
        "quick": quick,
        **about("python", "torch", threads=1),
    }


def _chosen(options: argparse.Namespace) -> Study:
    if options.worlds:
        return study("quick", quick_plan(options.worlds), (0,), ("base", "evolve", "total"))
    if options.quick:
        return study("quick", QUICK, (0, 1), (*ARMS["evolve"], *ARMS["variants"]))
    name = options.study
    return study(name, PLAN if name == "evolve" else VARIANTS, SEEDS[name], ARMS[name])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("evolve", __doc__, quick="a small copy of the study in a temporary folder")
    parser.add_argument("--worlds", nargs="+", help="with --quick: other worlds; all: every embedded one")
    parser.add_argument("--seeds", type=int, nargs="+", help="play only these seeds")
    parser.add_argument("--arms", nargs="+", help="play only these arms and what they need")
    parser.add_argument("--study", choices=("evolve", "variants"), default="evolve")
    parser.add_argument("--freeze", action="store_true", help="write study.json and stop")
    options = parser.parse_args(arguments)
    if options.worlds and not options.quick:
        parser.error("a frozen study has its own worlds; with --quick others can be tried")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "study" if options.quick else RESULTS / options.study
        chosen = _chosen(options)
        unpack(folder)
        print(f"study {freeze_study(chosen, folder)}", flush=True)
        if options.freeze:
            return
        with study_run(folder):
            unpack(folder)  # again: another process may have packed meanwhile
            run_study(chosen, folder, only=options.arms, seeds=options.seeds, observe=tell)
            found, gains = read_summary(folder), gains_of_more(chosen, folder)
    Console(width=110).print(study_table(to_json(found), width=110))
    print(further_cloning(gains))
    finish(report(found, gains, quick=options.quick), options)


if __name__ == "__main__":
    main()
