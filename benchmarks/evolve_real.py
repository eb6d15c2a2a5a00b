"""Does a pretrained model get better by acting? The controlled study of AgentEvol on SmolLM2-135M-Instruct.

    evolvent models get smollm2                         first, once
    python -m benchmarks.evolve_real [--json]           plays what has no result yet, then prints the study
    python -m benchmarks.evolve_real --seeds 4000       only these seeds; several processes may share the work
    python -m benchmarks.evolve_real --report [--json]  prints what was played
    python -m benchmarks.evolve_real --quick [--json]   three arms on two tasks a panel; supports no claim

All arms of a seed start from one LoRA adapter, cloned from 30 expert episodes of each world. `evolve` explores and
learns twice; `train` goes on cloning for as many learned tokens, `total` for as many computed tokens, exploring
included. The result of an arm is its round that is best on dev. Beside them stands the model as it was published:
zero-shot, and with three expert episodes in its prompt.

The study is frozen (`study.json`, packed with its results into `benchmarks/results/evolve_real/cells.jsonl.gz`); its
settings were chosen on dev panels with seeds 1 and 11. Results are kept seed by seed, task by task. Numbers are those
of bfloat16 weights and one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console

from benchmarks.evolve.__main__ import report, tell
from benchmarks.evolve.arms import Plan, arms, make_initial_policy, worlds
from benchmarks.reporting import RESULTS, about, command_line, finish, versions, write
from benchmarks.study import play_once, read_rows, study_run, summary_path, unpack
from evolvent.bench.plan import PrimaryComparison, Study
from evolvent.bench.results import ArmResult
from evolvent.bench.study import freeze_study, read_results, run_study
from evolvent.bench.verdict import read_summary, to_json
from evolvent.errors import ScoringError
from evolvent.learn.learner import TrainConfig
from evolvent.methods.agentevol import AgentEvolConfig
from evolvent.models.adapters import AdapterConfig
from evolvent.rollout.prompting import prompt_world
from evolvent.scale.local_backend import EvaluationPanel, local_run
from evolvent.stats import wilson_interval
from evolvent.view.study import study_table
from evolvent.worlds.base import SPLITS
from evolvent.worlds.panel import digest

SEEDS = (4000, 4001, 4002, 4003, 4004, 4005)
ARMS = ("base", "evolve", "train", "total")
PROMPTS: Mapping[str, int] = {"zero_shot": 0, "few_shot": 3}  # expert episodes in the prompt of the published model
BUDGET = 2_000_000  # computed tokens of an arm, updates included
PLAN = Plan(
    worlds=("crafting:0", "lookup"),
    demonstrated=(30, 30),
    explored=(120, 120),
    namings=1,
    clone_tokens=12_000,
    clones=1,
    method=AgentEvolConfig(iterations=2, samples_per_task=3, select="best", round_tokens=8_000, lr_scale=0.3),
    train=TrainConfig(
        lr=1e-3,
        weight_decay=0.01,
        batch_tokens=1024,
        max_tokens_per_forward=1024,
        warmup_steps=5,
        dtype="bfloat16",
        layout="shared",
    ),
    tiers=("evo", "combo"),
    measured=("seen", "evo", "combo"),
    limit=40,
    context=1024,
    model="smollm2",
    adapter=AdapterConfig(kind="lora", rank=16, alpha=32, targets=("all-linear",)),
    dtype="bfloat16",
)
QUICK = replace(
    PLAN,
    worlds=("lookup",),
    demonstrated=(4,),
    explored=(4,),
    clone_tokens=200,
    measured=("evo", "combo"),
    limit=2,
    method=AgentEvolConfig(iterations=1, samples_per_task=1, select="best", round_tokens=100, lr_scale=0.3),
)


def make_study(plan: Plan, seeds: Sequence[int], names: Sequence[str] = ARMS) -> Study:
    """Returns the study with all that its result depends on."""
    panels = {
        f"{name}/{tier}/{split}": digest(world.tasks(split, tier))
        for name, world in worlds(plan.worlds).items()
        for tier in world.tiers
        for split in SPLITS
    }
    facts: dict[str, Any] = {
        "plan": plan.described(),
        "panels": panels,
        "prompts": dict(PROMPTS),
        "versions": versions("evolvent", "torch", "transformers", "peft"),
    }
    primary = PrimaryComparison("evolve", "total", tiers=plan.tiers)
    return Study("evolve_real", arms(plan, names), tuple(seeds), BUDGET, primary, 0.05, facts)


def play_prompted(plan: Plan, name: str, folder: Path, study_digest: str) -> dict[str, Any]:
    """Evaluates the published model, greedily, with the examples that `PROMPTS` names; returns the row of its cell."""
    torch.set_num_threads(1)
    prompted = [
        prompt_world(world, examples=PROMPTS[name], hint=True, seed=0) for world in worlds(plan.worlds).values()
    ]
    policy = make_initial_policy(replace(plan, adapter=AdapterConfig()), 0)
    panel = EvaluationPanel("test", plan.measured or None, plan.limit)
    started = process_time()
    with local_run(folder, prompted, seed=0, panel=panel, slots=64, context=plan.context) as run:
        rows = run.evaluate(policy, 0)
    outcomes = [success for row in rows if row.tier in plan.tiers for _, _, success in row.outcomes]
    if None in outcomes:
        raise ScoringError("a panel with episodes that could not be scored has no rate", value=outcomes.count(None))
    interval = wilson_interval(outcomes.count(True), len(outcomes))
    return {
        "digest": study_digest,
        "success": {f"{row.world}/{row.tier}": row.mean for row in rows},
        "primary": interval.mean,
        "primary_ci": [interval.low, interval.high],
        "invalid_share": sum(row.invalid for row in rows) / max(1, sum(row.replies for row in rows)),
        "cpu_s": process_time() - started,
    }


def compute_rates(panels: Mapping[str, Sequence[float | None]], tiers: Sequence[str]) -> float | None:
    """Returns the mean success over the panels of these tiers; None where none was played."""
    own = [interval[0] for panel, interval in panels.items() if panel.rpartition("/")[2] in tiers]
    return sum(mean for mean in own if mean is not None) / len(own) if own else None


def summarize(chosen: Study, folder: Path, plan: Plan, *, quick: bool) -> dict[str, Any]:
    """Returns the figures of what was played."""
    found = read_summary(folder)
    figures = report(found, [], quick=quick)
    del figures["gain_of_25_percent_more_cloning"]
    results = read_results(chosen, folder)
    played = sorted({seed for (arm, seed), result in results.items() if isinstance(result, ArmResult)})
    finished = [
        seed for seed in played if all(isinstance(results.get((arm, seed)), ArmResult) for arm in chosen.arm_names)
    ]
    prompted = {name: read_rows(folder).get(f"cell-{name}", {}) for name in PROMPTS}
    rates = {arm: compute_rates(panels, plan.tiers) for arm, panels in figures["arms"].items()}
    return {
        **figures,
        "seeds": finished,
        "frozen_seeds": list(chosen.seeds),
        "worlds": list(plan.worlds),
        **rates,
        **{name: row.get("primary") for name, row in prompted.items()},
        **{f"{name}_ci": row.get("primary_ci") for name, row in prompted.items()},
        **{f"{name}_invalid": row.get("invalid_share") for name, row in prompted.items()},
        **about("python", "torch", "transformers", "peft", threads=1),
    }


def print_prompted(folder: Path) -> None:
    """Prints the success of the published model, a line for each prompt."""
    for name, examples in PROMPTS.items():
        row = read_rows(folder).get(f"cell-{name}")
        if row is not None:
            low, high = row["primary_ci"]
            print(
                f"{name}: {examples} examples, success {row['primary']:.1%} (95 % {low:.1%} to {high:.1%}), "
                f"{row['invalid_share']:.0%} of the replies invalid"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("evolve_real", __doc__, quick="a small copy of the study in a temporary folder")
    parser.add_argument("--seeds", type=int, nargs="+", help="play only these seeds")
    parser.add_argument("--freeze", action="store_true", help="write study.json and stop")
    parser.add_argument("--report", action="store_true", help="print what was played")
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else PLAN
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "evolve_real" if options.quick else RESULTS / "evolve_real"
        names = ("base", "evolve", "total") if options.quick else ARMS
        chosen = make_study(plan, SEEDS[:1] if options.quick else SEEDS, names)
        unpack(folder)
        study_digest = freeze_study(chosen, folder)
        print(f"study {study_digest}", flush=True)
        if options.freeze:
            return
        with study_run(folder):
            unpack(folder)  # again: another process may have packed meanwhile
            if not options.report:
                for name in PROMPTS:
                    play_once(
                        folder,
                        name,
                        study_digest,
                        partial(play_prompted, plan, name, folder / "runs" / name, study_digest),
                    )
                run_study(chosen, folder, seeds=options.seeds, observe=tell)
            found = summarize(chosen, folder, plan, quick=options.quick)
            Console(width=110).print(study_table(to_json(read_summary(folder)), width=110))
            print_prompted(folder)
    if not options.quick:
        write(summary_path(folder, "evolve_real"), found)
    finish(found, options)


if __name__ == "__main__":
    main()
