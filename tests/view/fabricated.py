"""A made-up but realistic run directory: two worlds, four tiers, three rounds, a control, curves and examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.files import plain_json

TIERS = ("seen", "evo", "combo", "longer")
WORLDS = ("crafting", "lookup")
START = {"crafting": (0.48, 0.21, 0.17, 0.06), "lookup": (0.62, 0.38, 0.33, 0.12)}
GAIN = {"evolve": (0.06, 0.09, 0.055, 0.03), "control": (0.05, 0.045, 0.05, 0.02)}


def write_run(folder: Path, *, rounds: int = 3, tasks: int = 200, state: str = "finished", seed: int = 0) -> Path:
    """Write the files of a run that has finished `rounds` rounds; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    results, stages, metrics, clock = [], [], [], 0.0
    schedule = [("base", 0, "fit"), ("base", 0, "evaluate")]
    for number in range(1, rounds + 1):
        schedule += [("evolve", number, verb) for verb in ("collect", "fit", "evaluate")]
    schedule += [("control", number, verb) for number in range(1, rounds + 1) for verb in ("fit", "evaluate")]
    luck = {(w, t): rng.random(tasks) for w in WORLDS for t in TIERS}
    for index, (arm, number, verb) in enumerate(schedule):
        name = f"{arm}-{number}-{verb}-{index:06x}"
        spent = {"fit": 52.0 if arm == "base" else 25.0, "collect": 14.0, "evaluate": 6.0}[verb] * rng.uniform(0.9, 1.1)
        metrics += _metrics(name, arm, number, verb, clock, spent, rng)
        clock += spent
        stages.append(_stage(index, name, arm, number, verb, spent))
        if verb == "evaluate":
            results += [_result(name, arm, number, w, t, luck[w, t], rng) for w in WORLDS for t in TIERS]
    _lines(folder / "results.jsonl", results)
    _lines(folder / "stages.jsonl", stages)
    _lines(folder / "metrics.jsonl", metrics)
    _json(folder / "run.json", _info(state, seed))
    _json(
        folder / "floors.json",
        {
            w: {
                t: {
                    "random": 0.02 + 0.02 * (w == "lookup"),
                    "blind_replay": 0.03 if t != "seen" else 0.06,
                    "expert": 1.0,
                }
                for t in TIERS
            }
            for w in WORLDS
        },
    )
    _json(folder / "examples.json", _examples(rounds))
    return folder


def _json(path: Path, value: object) -> None:
    path.write_text(plain_json(value), encoding="utf-8")  # as runs write: infinities are text


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _info(state: str, seed: int) -> dict[str, Any]:
    train = {"lr": 0.004, "betas": [0.9, 0.98], "weight_decay": 0.1, "warmup_updates": 50, "batch_tokens": 768}
    return {
        "method": "agentevol",
        "name": "evolve-crafting-lookup",
        "seed": seed,
        "created": "2026-02-11T09:14:03+00:00",
        "versions": {"evolvent": "0.1.0", "python": "3.11.2", "numpy": "2.4.6", "torch": "2.13.0"},
        "config": {
            "model": {"d": 64, "layers": 3, "heads": 4, "context": 256},
            "train": train,
            "agentevol": {"iterations": 3, "samples": 3, "temperature": 1.0, "keep": "shortest", "merge": "all"},
            "evaluate": {"split": "test", "tasks": 200, "temperature": 0.0},
            "worlds": list(WORLDS),
        },
        "command": ["evolvent", "evolve", "--seed", str(seed)],
        "state": state,
        "arms": ["evolve", "control"],
    }


def _stage(index: int, name: str, arm: str, number: int, verb: str, spent: float) -> dict[str, Any]:
    counts = {
        "fit": {"trained": 500_000 if arm == "base" else 250_000, "computed": 900_000, "padded": 41_000},
        "collect": {"generated": 61_400, "computed": 143_000, "episodes": 2_400, "env_steps": 15_300},
        "evaluate": {"generated": 40_900, "computed": 91_000, "episodes": 1_600, "env_steps": 10_050},
    }[verb]
    return {
        "index": index,
        "name": name,
        "verb": verb,
        "arm": arm,
        "round": number,
        "seconds": spent,
        "cpu_s": spent * 0.97,
        "counts": counts,
        "result": {},
    }


def _metrics(
    name: str, arm: str, number: int, verb: str, clock: float, spent: float, rng: np.random.Generator
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    count = 150 if verb == "fit" else 8
    for step in range(count):
        at = clock + spent * (step + 1) / count
        row = {"time_s": at, "cpu_s": at * 0.97, "stage": name, "arm": arm, "round": number, "kind": verb, "step": step}
        if verb == "fit":
            low, high = (0.35, 3.1) if arm == "base" else (0.3 - 0.03 * number, 0.5)
            loss = low + (high - low) * np.exp(-step / 30) + rng.normal(0, 0.03)
            lr = (0.004 if arm == "base" else 0.0028) * min(1.0, step / 10) * (1 - 0.9 * step / count)
            row |= {
                "loss": float(loss),
                "lr": lr,
                "grad_norm": float(0.5 + rng.gamma(2, 0.2)),
                "tokens_per_s": float(rng.normal(21_000, 900)),
            }
        else:
            row |= {"env_steps_per_s": float(rng.normal(1_150, 70)), "tokens_per_s": float(rng.normal(4_400, 250))}
        rows.append(row)
    return rows


def _result(
    stage: str, arm: str, number: int, world: str, tier: str, luck: np.ndarray, rng: np.random.Generator
) -> dict[str, Any]:
    place = TIERS.index(tier)
    rate = START[world][place] + (0.0 if arm == "base" else GAIN[arm][place] * number)
    wins = (0.75 * luck + 0.25 * rng.random(len(luck))) < 0.08 + 0.84 * rate
    outcomes = [
        [f"{world[0]}{tier[0]}{k:04d}", f"{('make', 'craft', 'forge', 'chain')[place]}-{k % 34:02d}", int(win)]
        for k, win in enumerate(wins)
    ]
    n, mean = len(luck), float(wins.mean())
    half = 1.96 * (mean * (1 - mean) / n) ** 0.5
    return {
        "stage": stage,
        "arm": arm,
        "round": number,
        "world": world,
        "tier": tier,
        "split": "test",
        "n": n,
        "successes": int(wins.sum()),
        "mean": mean,
        "low": max(0.0, mean - half),
        "high": min(1.0, mean + half),
        "errors": 0,
        "generated": 5_100,
        "computed": 11_400,
        "outcomes": outcomes,
    }


def _examples(rounds: int) -> list[dict[str, Any]]:
    recipes = "goal tova . recipes : nilo + ruk -> pesh ; pesh + dar -> tova ; gam + ruk -> bem . you hold nilo ruk dar"
    before = [
        (recipes, "make tova", 0.0, -0.9),
        ("you lack pesh", "get gam", 0.0, -1.6),
        ("there is no gam", "make bem", 0.0, -1.9),
    ]
    after = [(recipes, "make pesh", 0.0, -0.12), ("you hold pesh dar", "make tova", 1.0, -0.05)]
    asked = "who is the boss of the mother of ana ?"
    return [
        _episode("cs0001", "crafting", "evo", "base", 0, False, before, "you have no more steps"),
        _episode("cs0001", "crafting", "evo", "evolve", rounds, True, after, "you made tova . well done"),
        _episode(
            "ls0002",
            "lookup",
            "combo",
            "base",
            0,
            False,
            [(asked, "ask mother ana", 0.0, -0.2), ("mia", "say mia", 0.0, -0.7)],
            "wrong",
        ),
        _episode(
            "ls0002",
            "lookup",
            "combo",
            "evolve",
            rounds,
            True,
            [(asked, "ask mother ana", 0.0, -0.1), ("mia", "ask boss mia", 0.0, -0.3), ("leo", "say leo", 1.0, -0.04)],
            "right",
        ),
        _episode("cs0003", "crafting", "longer", "base", 0, True, after, "you made tova . well done"),
        _episode("cs0003", "crafting", "longer", "evolve", rounds, False, before, "you have no more steps"),
    ]


def _episode(
    task: str,
    world: str,
    tier: str,
    arm: str,
    number: int,
    success: bool,
    steps: list[tuple[str, str, float, float]],
    final: str,
) -> dict[str, Any]:
    tokens: list[dict[str, Any]] = []
    for observation, action, _, logprob in steps:
        tokens += [
            {"text": word, "sampled": False, "logprob": None} for word in ["<obs>", *observation.split(), "<act>"]
        ]
        tokens += [
            {"text": word, "sampled": True, "logprob": logprob * scale}
            for word, scale in zip([*action.split(), "<eos>"], (0.4, 2.1, 0.6, 0.05, 0.05), strict=False)
        ]
    return {
        "task": task,
        "world": world,
        "tier": tier,
        "kind": f"{tier}-07",
        "arm": arm,
        "round": number,
        "success": success,
        "ended_by": "world" if success else "horizon",
        "instructions": "Answer with one action a turn: get X, make X, ask R X, say X.",
        "steps": [
            {"observation": o, "action": a, "reward": r, "invalid": "gam" in a, "logprob": p} for o, a, r, p in steps
        ],
        "final_observation": final,
        "tokens": tokens,
    }
