"""`evolvent export POLICY --to DIR`: a policy for a device, as floats and with weights of 8 bits, both measured.

DIR gets `float/` and `int8/`, each a folder that transformers loads, `export.json` with the figures of both, and a
card. It is written whole or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.bench.latency import latencies
from evolvent.cli.console import table
from evolvent.cli.parsing import Parser, whole
from evolvent.cli.publish import license_of
from evolvent.cli.publishing import digests, put, whole_folder
from evolvent.cli.record import versions
from evolvent.cli.registry import POLICIES, model_folder, needs_train, policy, worlds
from evolvent.cli.train_data_sources import Calls, Demonstrations, samples_of
from evolvent.curate.origins import read_all
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json
from evolvent.methods.hammer import Hammer
from evolvent.models.adapters import merged
from evolvent.models.policy import Policy, load_policy
from evolvent.models.quantized import int8_folder, is_quantized, load_quantized
from evolvent.view.escape import plain

__all__ = ["run"]

_KINDS = ("float", "int8")
_ABOUT = {"float": "as trained", "int8": "weights of linear layers as whole numbers of 8 bits, one scale a row"}
_HOW = """Latency: one text at a time, greedy, with a cache, {threads} thread(s), on the machine of the export, the
median of five. Accuracy of int8 is that of its weights multiplied out; what its own arithmetic rounds otherwise is of
the order of 1e-5 in a logit. Embeddings, and a head that is tied to them, stay floats."""
_LOADED = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    'model = AutoModelForCausalLM.from_pretrained("int8", dtype="auto", device_map="cpu")  # needs torchao, accelerate',
    'tokenizer = AutoTokenizer.from_pretrained("int8")',
)


def run(words: Sequence[str], console: Console) -> int:
    """Export a policy; returns the exit code."""
    found = _read(words)
    needs_train("evolvent export")
    import torch

    torch.set_num_threads(max(found.threads, 1))
    made = worlds(found.worlds) if found.worlds else {}
    chosen = policy(found.policy, list(made.values()))
    whole_model = merged(chosen)  # no device knows adapters
    with whole_folder(found.to) as folder:
        whole_model.save(folder / "float")
        int8_folder(folder / "float", folder / "int8")
        figures = _figures(folder, found, made)
        row = {
            "policy": Path(found.policy).name,
            "licence": found.licence,
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "kinds": figures,
        }
        put(folder / "export.json", plain_json(row) + "\n")
        put(folder / "README.md", _card(row, folder))
    columns, rows = _table(figures)
    console.print(table(console, columns, rows, numbers=columns[1:]))
    console.print(plain(f"written to {found.to}: {', '.join(_KINDS)}, export.json, README.md"), soft_wrap=True)
    return 0


def _read(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent export", "Write a policy for a device: floats and int8, with size, latency, accuracy.")
    parser.add("policy", help="a model folder, or a run (its last policy)")
    parser.add("--to", type=Path, required=True, metavar="DIR", help="a folder that is not there yet")
    parser.add("--worlds", action="append", default=[], metavar="NAME", help="a world to measure in, more than once")
    parser.add("--limit", type=whole, default=100, help="most tasks of a panel (100)")
    parser.add("--test", type=Path, metavar="ROWS", help="rows to measure on: function calls, or others")
    parser.add("--max_tokens", type=whole, default=64, help="longest answer (64)")
    parser.add("--tokens", type=whole, default=32, help="tokens that latency is measured over (32)")
    parser.add("--prompt", type=whole, default=64, help="tokens before them (64)")
    parser.add("--threads", type=whole, default=1, help="threads of torch (1)")
    parser.add("--licence", default="unknown", help="of the policy, by its SPDX name, for the card")
    found = parser.read(words)
    problems: list[Problem] = []
    if found.to.exists():
        problems.append(Problem("--to", f"{found.to} is there already", "name another folder"))
    if found.test is not None and not found.test.exists():
        problems.append(Problem("--test", f"there is nothing at {found.test}", "name rows"))
    for name in ("limit", "max_tokens", "tokens", "prompt"):
        if getattr(found, name) < 1:
            problems.append(Problem(f"--{name}", f"got {getattr(found, name)}", "1 or more"))
    if found.policy in POLICIES:
        problems.append(Problem("policy", f"the size {found.policy!r} is untrained", "name a model folder or a run"))
    elif is_quantized(model_folder(found.policy)):
        what = f"{found.policy} has weights of 8 bits already"
        problems.append(Problem("policy", what, "name the folder that it was made of"))
    if found.licence != "unknown":
        license_of(found.licence, problems, where="--licence")
    if problems:
        raise ConfigError(problems)
    return found


# ---------------------------------------------------------------------------------------------------- the figures


def _figures(folder: Path, found: argparse.Namespace, made: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Size, latency and accuracy of both folders."""
    policies = {name: load_policy(folder / name) for name in _KINDS}
    models = {"float": policies["float"].model, "int8": load_quantized(folder / "int8")}
    spent = latencies(models, prompt=found.prompt, tokens=found.tokens)
    samples = samples_of(found.test, []) if found.test is not None else []
    rows = list(read_all(found.test, [])) if found.test is not None and not samples else []
    material = (
        Calls([], samples, config=Hammer(style="snake"), max_tokens=found.max_tokens)
        if samples
        else (Demonstrations([], rows, truncate=True))
    )
    return {
        name: {
            "bytes": sum(path.stat().st_size for path in (folder / name).glob("*.safetensors")),
            "cpu_ms": spent[name].cpu_ms,
            "wall_ms": spent[name].wall_ms,
            "accuracy": {**_played(policies[name], made, found), **material.measured(policies[name])},
        }
        for name in _KINDS
    }


def _played(chosen: Policy, made: Mapping[str, Any], asked: argparse.Namespace) -> dict[str, list[float] | None]:
    """Success in the test panels of the worlds, greedy, with 95 % intervals; None: an episode was not scored."""
    if not made:
        return {}
    from evolvent.agents.language import LanguageAgent
    from evolvent.engine.asks import GREEDY
    from evolvent.engine.fitting import engine_for
    from evolvent.rollout.collect import collect
    from evolvent.rollout.evaluate import outcome_rows, panel_starts

    starts = panel_starts(made, split="test", limit=asked.limit)
    agent = LanguageAgent(chosen, GREEDY, max_tokens=asked.max_tokens)
    played = list(collect(made, starts, agent, engine=engine_for(chosen, slots=64)))
    found: dict[str, list[float] | None] = {}
    for row in outcome_rows(played):
        ends = [row.mean, row.low, row.high]
        found[f"{row.world} {row.tier}"] = [round(one, 4) for one in ends if one is not None] or None
    return found


def _table(figures: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    names = list(figures["float"]["accuracy"])
    rows = [
        ("weights, MB", *(f"{figures[kind]['bytes'] / 1e6:.3f}" for kind in _KINDS)),
        ("CPU ms a token", *(f"{figures[kind]['cpu_ms']:.3f}" for kind in _KINDS)),
        ("ms a token", *(f"{figures[kind]['wall_ms']:.3f}" for kind in _KINDS)),
    ]
    rows += [(name, *(_shown(figures[kind]["accuracy"].get(name)) for kind in _KINDS)) for name in names]
    return ("", *_KINDS), rows


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
    return "withheld" if value is None else f"{value:.4g}"


def _card(row: Mapping[str, Any], folder: Path) -> str:
    columns, rows = _table(row["kinds"])
    lines = [
        "---",
        f'license: "{row["licence"]}"',
        "---",
        "",
        f"# {row['policy']}, for a device",
        "",
        *(f"- `{kind}/`: {about}" for kind, about in _ABOUT.items()),
        "",
        "| | " + " | ".join(columns[1:]) + " |",
        "|---|---|---|",
        *("| " + " | ".join(one) + " |" for one in rows),
        "",
        _HOW.format(threads=row["threads"]),
        "",
        *("    " + line for line in _LOADED),
        "",
        "| file | SHA-256 |",
        "|---|---|",
    ]
    for kind in _KINDS:
        names = sorted(path.name for path in (folder / kind).iterdir() if path.is_file())
        lines += [f"| {kind}/{name} | `{digest}` |" for name, digest in digests(folder / kind, names).items()]
    packages = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return "\n".join([*lines, "", f"Made with {packages}.", ""])
