"""`evolvent publish RUN --to DIR`: a policy of a run as a folder that transformers loads, with a model card.

The policy is the run's result, its folder `model`; without a result, the policy that its main arm fitted last.
DIR is written whole or not at all: beside it, under another name, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evolvent.cli.publish.folders import (
    EarlierPublication,
    atomic_folder,
    copy_policy_files,
    file_digests,
    read_earlier,
    weights_digest,
    write_text,
)
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.terminal.parsing import Parser, parse_count
from evolvent.config import redact
from evolvent.errors import ConfigError, Problem, UnsafePath, find_nearest, unknown_name_problem
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, plain_json, safe_join
from evolvent.view.card import build_card, list_missing, strip_folders
from evolvent.view.data import ReportData, StageRow, read_run
from evolvent.view.escape import show_hidden
from evolvent.view.outcome import main_arm
from evolvent.view.published import License, PanelLine, PolicyFacts, PublishedPolicy, build_lines, find_lineage

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["LICENSES", "PublishablePolicy", "find_policy", "parse_license", "run"]

# SPDX id -> the Hub's id. Others are refused, so that a slip of the pen is no license; LicenseRef-NAME is one's own.
LICENSES: Mapping[str, str] = {
    **{
        name: name.lower()
        for name in (
            "AFL-3.0",
            "Apache-2.0",
            "Artistic-2.0",
            "BSD-2-Clause",
            "BSD-3-Clause",
            "BSL-1.0",
            "CC-BY-4.0",
            "CC-BY-NC-4.0",
            "CC-BY-NC-ND-4.0",
            "CC-BY-NC-SA-4.0",
            "CC-BY-ND-4.0",
            "CC-BY-SA-4.0",
            "CC0-1.0",
            "EPL-2.0",
            "EUPL-1.2",
            "ISC",
            "MIT",
            "MPL-2.0",
            "Unlicense",
            "Zlib",
        )
    },
    **{
        f"{name}-{ending}": name.lower()
        for name in ("AGPL-3.0", "GPL-2.0", "GPL-3.0", "LGPL-2.1", "LGPL-3.0")
        for ending in ("only", "or-later")
    },
}
_CUSTOM_LICENSE = re.compile(r"LicenseRef-([A-Za-z0-9][A-Za-z0-9.-]{0,60})")
_RECORD_FILES = ("run.json", "config.toml", "stages.jsonl", "results.jsonl", "floors.json")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class PublishablePolicy:
    """A policy of a run: its folder, that folder's path in the run, and the stage that fitted it (None: unknown)."""

    folder: Path
    source: str
    fit: StageRow | None
    is_result: bool


def run(argv: Sequence[str], console: Console) -> int:
    """Writes a policy of a run as a model folder; returns the exit code."""
    parser = Parser("evolvent publish", "Write a policy of a run as a model folder with a model card.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add(
        "--to",
        dest="output_dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder to write; it must not hold anything",
    )
    parser.add("--arm", metavar="NAME", help="the arm of the policy (default: what the run ended with)")
    parser.add("--round", type=parse_count, metavar="N", help="the round of the policy (default: the last)")
    parser.add("--license", metavar="SPDX", help="its license, such as Apache-2.0 or LicenseRef-NAME (default: none)")
    parser.add("--force", action="store_true", help="replace what was published there before from the same run")
    args = parser.parse_argv(argv)
    require_train_extra("evolvent publish")
    problems: list[Problem] = []
    license = parse_license(args.license, problems)
    output_dir: Path = args.output_dir
    if not (args.run / "run.json").is_file() and not (args.run / "stages.jsonl").is_file():
        read_earlier(output_dir, problems)
        problems.append(
            Problem("run", f"{args.run} is not a run: run.json and stages.jsonl are missing", "see: evolvent runs list")
        )
        raise ConfigError(problems)
    data, keys = read_run(args.run), _read_stage_keys(args.run)
    earlier = read_earlier(output_dir, problems)
    _check_replacement(output_dir, earlier, _run_identity(data, keys), force=args.force, problems=problems)
    publishable = find_policy(args.run, data, arm=args.arm, round=args.round, problems=problems)
    if publishable is None or problems:
        raise ConfigError(problems)
    with _load_merged(publishable, output_dir) as (policy, folder, adapter):
        published = _describe_policy(args.run, data, publishable, license=license, policy=policy, adapter=adapter)
        _write_folder(
            output_dir, published, folder, note=_build_note(published, keys, file_digests(args.run, _RECORD_FILES))
        )
    _print_summary(console, output_dir, published)
    return 0


def parse_license(name: str | None, problems: list[Problem], *, option: str = "--license") -> License | None:
    """Parses an SPDX id in any case, or `LicenseRef-NAME`; adds a problem where the name is neither.

    Args:
        name: the license's name; None: no license.
        problems: receives the problem.
        option: the option that named the license.
    """
    if name is None:
        return None
    ids_by_lower_case = {spdx.lower(): spdx for spdx in LICENSES}
    if name.lower() in ids_by_lower_case:
        spdx = ids_by_lower_case[name.lower()]
        return License(spdx, LICENSES[spdx])
    custom = _CUSTOM_LICENSE.fullmatch(name)
    if custom:
        return License(name, "other", custom[1].lower())
    suggestion = find_nearest(name.lower(), ids_by_lower_case)
    hint = (
        f"did you mean {ids_by_lower_case[suggestion]!r}?"
        if suggestion
        else "use an SPDX id such as Apache-2.0, MIT or CC-BY-4.0"
    )
    problems.append(Problem(option, f"unknown license {name!r}", f"{hint}; write LicenseRef-NAME for a custom license"))
    return None


# ---------------------------------------------------------------- which policy


def find_policy(
    run: Path, data: ReportData, *, arm: str | None, round: int | None, problems: list[Problem]
) -> PublishablePolicy | None:
    """Finds the requested policy; where the run does not hold it, returns None and adds the reason to the problems."""
    fits = [row for row in data.stages if row.verb == "fit"]
    main_arm_name, result_folder = _main_arm(data, fits), run / "model"
    has_result = any((result_folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    if round is None and arm in (None, main_arm_name) and has_result:
        return PublishablePolicy(
            result_folder, "model", _find_fit(run, fits, weights_digest(result_folder)), is_result=True
        )
    arms = sorted({row.arm for row in fits})
    arm_fits = [row for row in fits if row.arm in ("base", arm or main_arm_name)] or (fits if arm is None else [])
    matching_fits = [row for row in arm_fits if round in (None, row.round)]
    if not fits:
        problems.append(
            Problem("run", f"{run} does not hold a policy: no training stage has finished", "train one first")
        )
    elif arm is not None and arm not in {*arms, main_arm_name}:
        problems.append(unknown_name_problem("arm", arm, arms, location="--arm"))
    elif not matching_fits:
        known_rounds = ", ".join(
            str(number) for number in sorted({row.round for row in arm_fits if row.round is not None})
        )
        message = f"arm {arm or main_arm_name!r} has no policy of round {round}"
        problems.append(Problem("--round", message, f"known: {known_rounds or 'none'}"))
    if not matching_fits or problems:
        return None
    fit = matching_fits[-1]
    folder, source = _policy_folder(run, fit), f"stages/{fit.name}/policy"
    if folder is None:
        problems.append(Problem("run", f"{run} no longer holds {source}", "choose another --round or --arm"))
        return None
    return PublishablePolicy(
        folder, source, fit, is_result=has_result and weights_digest(folder) == weights_digest(result_folder)
    )


def _main_arm(data: ReportData, fits: Sequence[StageRow]) -> str:
    """Returns the run's main arm; where its record names none, the last arm that learned and is not the control."""
    if data.info.arms:
        return main_arm(data)
    learned_arms = [row.arm for row in fits if row.arm not in ("base", "control")]
    return learned_arms[-1] if learned_arms else main_arm(data)


def _policy_folder(run: Path, fit: StageRow) -> Path | None:
    try:
        folder = safe_join(run / "stages", fit.name) / "policy"
    except UnsafePath:
        return None
    return folder if folder.is_dir() else None


def _find_fit(run: Path, fits: Sequence[StageRow], expected_digest: str) -> StageRow | None:
    """Finds the last stage that fitted exactly these weights."""
    for fit in reversed(fits):
        folder = _policy_folder(run, fit)
        if folder is not None and weights_digest(folder) == expected_digest:
            return fit
    return None


# ---------------------------------------------------------------- what is written


@contextmanager
def _load_merged(publishable: PublishablePolicy, output_dir: Path) -> Iterator[tuple[Policy, Path, str]]:
    """Yields the loaded policy, a folder with all its weights, and the kind of the adapter merged into them, or "".

    An adapter depends on a base elsewhere on this machine, so it is merged into a temporary folder beside
    `output_dir`.

    Raises:
        ConfigError: virtual tokens, which cannot be merged.
    """
    from evolvent.models.adapters import kind_of, merge_adapter, virtual_tokens
    from evolvent.models.policy import load_policy

    policy = load_policy(publishable.folder, context=None)
    adapter_kind = kind_of(policy.model)
    if adapter_kind is None:
        yield policy, publishable.folder, ""
        return
    if any(virtual_tokens(policy.model)):
        message = (
            f"{publishable.source} has an adapter of kind {adapter_kind}: cannot merge its "
            f"{sum(virtual_tokens(policy.model))} "
        )
        raise ConfigError(
            [Problem("run", f"{message}virtual tokens into weights", "publish a run tuned by lora, dora or ia3")]
        )
    with disk_errors(output_dir):
        output_dir.resolve().parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            dir=output_dir.resolve().parent, prefix=f".{output_dir.name}.", suffix=TEMPORARY_SUFFIX
        ) as folder:
            merged_policy = merge_adapter(policy)
            merged_policy.save(Path(folder))
            yield merged_policy, Path(folder), adapter_kind


def _describe_policy(
    run: Path,
    data: ReportData,
    publishable: PublishablePolicy,
    *,
    license: License | None,
    policy: Policy,
    adapter: str,
) -> PublishedPolicy:
    """Collects the facts of the policy for its card."""
    config = policy.model.config
    shape_attributes = {
        "layers": "num_hidden_layers",
        "hidden units": "hidden_size",
        "attention heads": "num_attention_heads",
    }
    shape_values = {name: getattr(config, key, None) for name, key in shape_attributes.items()}
    weights = PolicyFacts(
        type(policy.model).__name__,
        policy.parameters(),
        len(policy.tokenizer),
        policy.context,
        str(policy.model.dtype).removeprefix("torch."),
        policy.dialect.name,
        {name: value for name, value in shape_values.items() if isinstance(value, int)},
        policy.version,
        adapter,
    )
    name = data.info.name or run.resolve().name
    return PublishedPolicy(name, data, weights, publishable.source, publishable.fit, publishable.is_result, license)


def _write_folder(output_dir: Path, published: PublishedPolicy, source: Path, *, note: dict[str, Any]) -> None:
    with atomic_folder(output_dir) as folder:
        files = copy_policy_files(source, folder)
        files["README.md"] = write_text(folder / "README.md", build_card(published))
        if published.license is not None:
            files["LICENSE"] = write_text(folder / "LICENSE", _license_text(published.license))
        complete_note = note | {
            "published": note["published"] | {"files": {name: files[name] for name in sorted(files)}}
        }
        write_text(folder / "evolvent.json", json.dumps(complete_note, indent=1) + "\n")


def _license_text(license: License) -> str:
    spdx_text = f"Its text: https://spdx.org/licenses/{license.spdx}.html\n"
    custom_text = "It is not on the SPDX list: ask those who published this model for its text.\n"
    return f"SPDX-License-Identifier: {license.spdx}\n\n{custom_text if license.name else spdx_text}"


def _build_note(published: PublishedPolicy, keys: Mapping[str, str], records: Mapping[str, str]) -> dict[str, Any]:
    """Builds `evolvent.json`: the fields that `load_policy` reads, and under `published` the facts behind the card."""
    run_info, fit = published.data.info, published.fit
    panel_lines = build_lines(published)
    lineage_names = {row.name for row in find_lineage(published)}
    return {
        "format": 1,
        "dialect": published.weights.dialect,
        "version": published.weights.version,
        "published": {
            "format": 1,
            "run": {
                "identity": _run_identity(published.data, keys),
                "name": published.name,
                "method": run_info.method,
                "seed": run_info.seed,
                "created": run_info.created,
                "state": run_info.state,
                "arms": list(run_info.arms),
                "command": [strip_folders(word) for word in run_info.command],
                "versions": _publishable_settings(run_info.versions),
                "settings": _publishable_settings(run_info.config),
            },
            "policy": {
                "source": strip_folders(published.source),
                "result": published.result,
                "arm": published.arm,
                "round": fit.round if fit else None,
                "stage": fit.name if fit else None,
                "key": keys.get(fit.name) if fit else None,
                "parameters": published.weights.parameters,
            },
            "license": published.license.spdx if published.license else None,
            "stages": [
                {
                    "name": row.name,
                    "key": keys.get(row.name),
                    "verb": row.verb,
                    "arm": row.arm,
                    "round": row.round,
                    "counts": _integers_where_exact(row.counts),
                    "result": _integers_where_exact(row.result),
                    "led_here": row.name in lineage_names,
                }
                for row in published.data.stages
            ],
            "results": [_line_to_json(line) for line in panel_lines],
            "missing": list_missing(published, panel_lines),
            "records": dict(records),
        },
    }


def _integers_where_exact(values: Mapping[str, float]) -> dict[str, float]:
    return {name: int(value) if value.is_integer() and value < 2**53 else value for name, value in values.items()}


def _line_to_json(line: PanelLine) -> dict[str, Any]:
    row, difference = line.result, line.difference
    difference_json = (
        None
        if difference is None
        else {
            "mean": difference.mean,
            "low": None if isnan(difference.low) else difference.low,
            "high": None if isnan(difference.high) else difference.high,
        }
    )
    return {
        "stage": row.stage,
        "world": row.world,
        "tier": row.tier,
        "split": row.split,
        "arm": row.arm,
        "round": row.round,
        "tasks": row.n,
        "mean": row.mean,
        "low": row.low,
        "high": row.high,
        "errors": row.errors,
        "panel": _panel_digest(line),
        "base": line.base.mean if line.base else None,
        "control": line.control.mean if line.control else None,
        "difference": difference_json,
        "floors": dict(line.floors),
    }


def _panel_digest(line: PanelLine) -> str:
    """Returns a digest of the ids of the played tasks: two results with one digest played the same tasks."""
    return hashlib.sha256(json.dumps(sorted(task for task, _, _ in line.result.outcomes)).encode()).hexdigest()[:24]


def _publishable_settings(value: Any, depth: int = 0) -> Any:
    """Returns settings as they are published: without secrets or local folders, and with limited nesting."""
    if isinstance(value, Mapping):
        if depth == _MAX_DEPTH:
            return "(nested deeper)"
        return redact({key: _publishable_settings(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list):
        return "(nested deeper)" if depth == _MAX_DEPTH else [_publishable_settings(item, depth + 1) for item in value]
    return strip_folders(value) if isinstance(value, str) else value


def _read_stage_keys(run: Path) -> dict[str, str]:
    """Reads the key of every stage by its name: the digest of everything it depends on, including its data."""
    path, keys_by_stage = run / "stages.jsonl", {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # `read_run` counts it
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("key"), str):
            keys_by_stage[row["name"]] = row["key"]
    return keys_by_stage


def _run_identity(data: ReportData, keys: Mapping[str, str]) -> str:
    """Returns the identity of a run, wherever its folder is: its start and its first stage."""
    run_info = data.info
    text = plain_json([run_info.method, run_info.created, run_info.seed, next(iter(keys.values()), "")])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


# ---------------------------------------------------------------- the folder


def _check_replacement(
    output_dir: Path, earlier: EarlierPublication | None, identity: str, *, force: bool, problems: list[Problem]
) -> None:
    """Checks that only an earlier publication of the same run is replaced, and only with `--force`."""
    if earlier is None:
        return
    if earlier.identity != identity:
        problems.append(Problem("--to", f"{output_dir} holds the publication of another run", "choose another folder"))
    elif earlier.unknown_files:
        file_names = ", ".join(earlier.unknown_files[:5])
        problems.append(
            Problem("--to", f"{output_dir} holds files that evolvent did not publish: {file_names}", "move them away")
        )
    elif not force:
        problems.append(
            Problem("--to", f"{output_dir} already holds the publication of this run", "pass --force to replace it")
        )


def _print_summary(console: Console, output_dir: Path, published: PublishedPolicy) -> None:
    fit, panel_lines = published.fit, build_lines(published)
    unknown_fit = "of a stage that the ledger does not tell" if published.data.stages else ""
    facts = [f"arm {fit.arm}, round {fit.round}" if fit else unknown_fit]
    facts += ["what the run ended with"] if published.result else []
    facts += [f"its {published.weights.merged} merged"] if published.weights.merged else []
    messages = [
        f"published {published.source} ({', '.join(filter(None, facts))}), {len(panel_lines)} panels, to {output_dir}"
    ]
    if published.license is None:
        messages.append("warning: no license stated, so the card says `license: other` (give --license SPDX)")
    messages += [f"note: {note}" for note in published.data.notes]
    for line in messages:
        console.print(show_hidden(line), soft_wrap=True)
