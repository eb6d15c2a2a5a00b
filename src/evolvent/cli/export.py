"""`evolvent export POLICY --to DIR`: a policy for a device, in floats and in 8-bit weights, both measured.

DIR gets `float/` and `int8/`, each a folder that transformers loads, `export.json` with the figures of both,
and a card. It is written whole or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.bench.latency import measure_latencies
from evolvent.cli.publish.command import parse_license
from evolvent.cli.publish.folders import atomic_folder, file_digests, write_text
from evolvent.cli.setup.record import collect_versions
from evolvent.cli.setup.registry import POLICIES, load_worlds, require_train_extra, resolve_model_folder, resolve_policy
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser, parse_count
from evolvent.cli.train.data_sources import CallData, DemonstrationData, read_samples
from evolvent.curate.origins import read_source
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json
from evolvent.methods.hammer import HammerConfig
from evolvent.models.adapters import merge_adapter
from evolvent.models.policy import Policy, load_policy
from evolvent.models.quantized import is_quantized, load_quantized, write_int8_folder
from evolvent.view.escape import show_hidden

__all__ = ["run"]

_FORMATS = ("float", "int8")
_FORMAT_HELP = {"float": "as trained", "int8": "weights of linear layers as whole numbers of 8 bits, one scale a row"}
_MEASUREMENT_NOTE = """Latency: one text at a time, greedy, with a cache, {threads} thread(s), on the export machine;
the median of five runs. The accuracy of int8 is that of its weights multiplied out; its own arithmetic rounds by about
1e-5 in a logit beyond that. Embeddings, and a head that is tied to them, stay floats."""
_LOADING_EXAMPLE = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    'model = AutoModelForCausalLM.from_pretrained("int8", dtype="auto", device_map="cpu")  # needs torchao, accelerate',
    'tokenizer = AutoTokenizer.from_pretrained("int8")',
)


def run(argv: Sequence[str], console: Console) -> int:
    """Exports a policy; returns the exit code."""
    args = _parse_arguments(argv)
    require_train_extra("evolvent export")
    import torch

    torch.set_num_threads(max(args.threads, 1))
    worlds_by_name = load_worlds(args.worlds) if args.worlds else {}
    loaded_policy = resolve_policy(args.policy, list(worlds_by_name.values()))
    merged_policy = merge_adapter(loaded_policy)  # no device knows adapters
    with atomic_folder(args.output_dir) as folder:
        merged_policy.save(folder / "float")
        write_int8_folder(folder / "float", folder / "int8")
        figures = _measure_formats(folder, args, worlds_by_name)
        row = {
            "policy": Path(args.policy).name,
            "license": args.license,
            "versions": collect_versions(),
            "threads": torch.get_num_threads(),
            "kinds": figures,
        }
        write_text(folder / "export.json", plain_json(row) + "\n")
        write_text(folder / "README.md", _build_card(row, folder))
    columns, rows = _build_table(figures)
    console.print(render_table(console, columns, rows, numbers=columns[1:]))
    console.print(
        show_hidden(f"written to {args.output_dir}: {', '.join(_FORMATS)}, export.json, README.md"), soft_wrap=True
    )
    return 0


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent export", "Write a policy for a device: floats and int8, with size, latency, accuracy.")
    parser.add("policy", help="a model (folder, GGUF file, name), or a run")
    parser.add(
        "--to", dest="output_dir", type=Path, required=True, metavar="DIR", help="a folder that is not there yet"
    )
    parser.add("--worlds", action="append", default=[], metavar="NAME", help="a world to measure in, more than once")
    parser.add("--limit", type=parse_count, default=100, help="most tasks of a panel (100)")
    parser.add("--test", type=Path, metavar="ROWS", help="rows to measure on: function calls, or others")
    parser.add("--max_tokens", type=parse_count, default=64, help="longest answer (64)")
    parser.add("--tokens", type=parse_count, default=32, help="tokens that latency is measured over (32)")
    parser.add("--prompt", type=parse_count, default=64, help="tokens before them (64)")
    parser.add("--threads", type=parse_count, default=1, help="threads of torch (1)")
    parser.add(
        "--license",
        "--licence",
        dest="license",
        default="unknown",
        help="of the policy, by its SPDX name, for the card",
    )
    args = parser.parse_argv(argv)
    problems: list[Problem] = []
    if args.output_dir.exists():
        problems.append(Problem("--to", f"{args.output_dir} already exists", "choose another folder"))
    if args.test is not None and not args.test.exists():
        problems.append(Problem("--test", f"{args.test} does not exist", "pass a row file"))
    for name in ("limit", "max_tokens", "tokens", "prompt"):
        if getattr(args, name) < 1:
            problems.append(Problem(f"--{name}", f"got {getattr(args, name)}, expected 1 or more"))
    if args.policy in POLICIES:
        problems.append(Problem("policy", f"{args.policy!r} is an untrained model", "pass a model folder or a run"))
    elif is_quantized(resolve_model_folder(args.policy)):
        message = f"{args.policy} already has 8-bit weights"
        problems.append(Problem("policy", message, "pass the folder that it was made from"))
    if args.license != "unknown":
        parse_license(args.license, problems, option="--license")
    if problems:
        raise ConfigError(problems)
    return args


# ---------------------------------------------------------------------------------------------------- the figures


def _measure_formats(
    folder: Path, args: argparse.Namespace, worlds_by_name: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Measures the size, latency and accuracy of both folders."""
    policies = {name: load_policy(folder / name) for name in _FORMATS}
    models = {"float": policies["float"].model, "int8": load_quantized(folder / "int8")}
    latency_by_format = measure_latencies(models, prompt=args.prompt, tokens=args.tokens)
    samples = read_samples(args.test, []) if args.test is not None else []
    rows = list(read_source(args.test, [])) if args.test is not None and not samples else []
    material = (
        CallData([], samples, config=HammerConfig(style="snake"), max_tokens=args.max_tokens)
        if samples
        else (DemonstrationData([], rows, truncate=True))
    )
    return {
        name: {
            "bytes": sum(path.stat().st_size for path in (folder / name).glob("*.safetensors")),
            "cpu_ms": latency_by_format[name].cpu_ms,
            "wall_ms": latency_by_format[name].wall_ms,
            "accuracy": {**_measure_success(policies[name], worlds_by_name, args), **material.measure(policies[name])},
        }
        for name in _FORMATS
    }


def _measure_success(
    evaluated_policy: Policy, worlds_by_name: Mapping[str, Any], args: argparse.Namespace
) -> dict[str, list[float] | None]:
    """Measures greedy success in the test panels of the worlds.

    Returns:
        Mean and 95 % interval by panel; None where an episode was not scored.
    """
    if not worlds_by_name:
        return {}
    from evolvent.agents.language import LanguageAgent
    from evolvent.engine.asks import GREEDY
    from evolvent.engine.fitting import engine_for
    from evolvent.rollout.episode import collect
    from evolvent.rollout.evaluate import panel_starts, summarize_outcomes

    starts = panel_starts(worlds_by_name, split="test", limit=args.limit)
    agent = LanguageAgent(evaluated_policy, GREEDY, max_tokens=args.max_tokens)
    trajectories = list(collect(worlds_by_name, starts, agent, engine=engine_for(evaluated_policy, slots=64)))
    success_by_panel: dict[str, list[float] | None] = {}
    for row in summarize_outcomes(trajectories):
        bounds = [row.mean, row.low, row.high]
        success_by_panel[f"{row.world} {row.tier}"] = [round(bound, 4) for bound in bounds if bound is not None] or None
    return success_by_panel


def _build_table(figures: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    names = list(figures["float"]["accuracy"])
    rows = [
        ("weights, MB", *(f"{figures[kind]['bytes'] / 1e6:.3f}" for kind in _FORMATS)),
        ("CPU ms a token", *(f"{figures[kind]['cpu_ms']:.3f}" for kind in _FORMATS)),
        ("ms a token", *(f"{figures[kind]['wall_ms']:.3f}" for kind in _FORMATS)),
    ]
    rows += [(name, *(_format_figure(figures[kind]["accuracy"].get(name)) for kind in _FORMATS)) for name in names]
    return ("", *_FORMATS), rows


def _format_figure(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
    return "withheld" if value is None else f"{value:.4g}"


def _build_card(row: Mapping[str, Any], folder: Path) -> str:
    columns, rows = _build_table(row["kinds"])
    lines = [
        "---",
        f'license: "{row["license"]}"',
        "---",
        "",
        f"# {row['policy']}, for a device",
        "",
        *(f"- `{kind}/`: {about}" for kind, about in _FORMAT_HELP.items()),
        "",
        "| | " + " | ".join(columns[1:]) + " |",
        "|---|---|---|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
        "",
        _MEASUREMENT_NOTE.format(threads=row["threads"]),
        "",
        *("    " + line for line in _LOADING_EXAMPLE),
        "",
        "| file | SHA-256 |",
        "|---|---|",
    ]
    for kind in _FORMATS:
        names = sorted(path.name for path in (folder / kind).iterdir() if path.is_file())
        lines += [f"| {kind}/{name} | `{digest}` |" for name, digest in file_digests(folder / kind, names).items()]
    packages = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return "\n".join([*lines, "", f"Made with {packages}.", ""])
