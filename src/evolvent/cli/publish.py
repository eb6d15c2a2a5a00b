"""`evolvent publish RUN --to DIR`: a policy of a run as a folder that transformers loads, with a model card.

The policy is what the run ended with, its folder `model`; where there is none, the one that its main arm fitted last.
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

from evolvent.cli.parsing import Parser, whole
from evolvent.cli.publishing import Before, before, copy, digests, put, weights_of, whole_folder
from evolvent.cli.registry import needs_train
from evolvent.config import redact
from evolvent.errors import ConfigError, Problem, UnsafePath, nearest, unknown
from evolvent.files import TEMPORARY, disk_errors, plain_json, safe_join
from evolvent.view.card import card, missing, placeless
from evolvent.view.data import ReportData, StageRow, read_run
from evolvent.view.escape import plain
from evolvent.view.outcome import main_arm
from evolvent.view.published import License, Line, Published, Weights, lineage, lines

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["LICENSES", "Chosen", "chosen", "license_of", "run"]

# SPDX id -> the Hub's id. Others are refused, so that a slip of the pen is no licence; LicenseRef-NAME is one's own.
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
_OWN_LICENSE = re.compile(r"LicenseRef-([A-Za-z0-9][A-Za-z0-9.-]{0,60})")
_RECORDS = ("run.json", "config.toml", "stages.jsonl", "results.jsonl", "floors.json")
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy of a run: its folder and where that is in the run, the stage that fitted it (None: unknown), and whether
    it is the run's result.
    """

    folder: Path
    source: str
    fit: StageRow | None
    result: bool


def run(words: Sequence[str], console: Console) -> int:
    """Publish a policy of a run; returns the exit code."""
    parser = Parser("evolvent publish", "Write a policy of a run as a model folder with a model card.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--to", type=Path, required=True, metavar="DIR", help="the folder to write; it must not hold anything")
    parser.add("--arm", metavar="NAME", help="the arm of the policy (default: what the run ended with)")
    parser.add("--round", type=whole, metavar="N", help="the round of the policy (default: the last)")
    parser.add("--license", metavar="SPDX", help="its licence, such as Apache-2.0 or LicenseRef-NAME (default: none)")
    parser.add("--force", action="store_true", help="replace what was published there before from the same run")
    found = parser.read(words)
    needs_train("evolvent publish")
    problems: list[Problem] = []
    license = license_of(found.license, problems)
    to: Path = found.to
    if not (found.run / "run.json").is_file() and not (found.run / "stages.jsonl").is_file():
        before(to, problems)
        problems.append(
            Problem(
                "run", f"{found.run} is no run: it holds no run.json and no stages.jsonl", "see: evolvent runs list"
            )
        )
        raise ConfigError(problems)
    data, keys = read_run(found.run), _keys(found.run)
    there = before(to, problems)
    _check_replaced(to, there, _identity(data, keys), force=found.force, problems=problems)
    one = chosen(found.run, data, arm=found.arm, round=found.round, problems=problems)
    if one is None or problems:
        raise ConfigError(problems)
    with _whole_weights(one, to) as (policy, folder, adapter):
        published = _published(found.run, data, one, license=license, policy=policy, adapter=adapter)
        _write(to, published, folder, note=_note(published, keys, digests(found.run, _RECORDS)))
    _tell(console, to, published)
    return 0


def license_of(name: str | None, problems: list[Problem], *, where: str = "--license") -> License | None:
    """The licence of an SPDX id in any case, or of `LicenseRef-NAME`; adds to the problems where it is neither.

    Args:
        where: the option that named it.
    """
    if name is None:
        return None
    known = {spdx.lower(): spdx for spdx in LICENSES}
    if name.lower() in known:
        spdx = known[name.lower()]
        return License(spdx, LICENSES[spdx])
    own = _OWN_LICENSE.fullmatch(name)
    if own:
        return License(name, "other", own[1].lower())
    near = nearest(name.lower(), known)
    hint = f"did you mean {known[near]!r}?" if near else "give an SPDX id such as Apache-2.0, MIT or CC-BY-4.0"
    problems.append(Problem(where, f"unknown licence {name!r}", f"{hint}; your own is LicenseRef-NAME"))
    return None


# ---------------------------------------------------------------- which policy


def chosen(
    run: Path, data: ReportData, *, arm: str | None, round: int | None, problems: list[Problem]
) -> Chosen | None:
    """The policy asked for; None where the run does not hold it, and why is added to the problems."""
    fits = [row for row in data.stages if row.verb == "fit"]
    main, model = _main(data, fits), run / "model"
    kept = any((model / name).is_file() for name in ("config.json", "adapter_config.json"))
    if round is None and arm in (None, main) and kept:
        return Chosen(model, "model", _twin(run, fits, weights_of(model)), result=True)
    arms = sorted({row.arm for row in fits})
    own = [row for row in fits if row.arm in ("base", arm or main)] or (fits if arm is None else [])
    asked = [row for row in own if round in (None, row.round)]
    if not fits:
        problems.append(Problem("run", f"{run} holds no policy: its ledger has no finished fit", "train one first"))
    elif arm is not None and arm not in {*arms, main}:
        problems.append(unknown("arm", arm, arms, where="--arm"))
    elif not asked:
        known = ", ".join(str(number) for number in sorted({row.round for row in own if row.round is not None}))
        what = f"the arm {arm or main!r} has no policy of round {round}"
        problems.append(Problem("--round", what, f"known: {known or 'none'}"))
    if not asked or problems:
        return None
    fit = asked[-1]
    folder, source = _policy_folder(run, fit), f"stages/{fit.name}/policy"
    if folder is None:
        problems.append(Problem("run", f"{run} does not hold {source} any more", "choose another --round or --arm"))
        return None
    return Chosen(folder, source, fit, result=kept and weights_of(folder) == weights_of(model))


def _main(data: ReportData, fits: Sequence[StageRow]) -> str:
    """The arm the run is about; where its record names none, the one that learned last and is not the control."""
    if data.info.arms:
        return main_arm(data)
    named = [row.arm for row in fits if row.arm not in ("base", "control")]
    return named[-1] if named else main_arm(data)


def _policy_folder(run: Path, fit: StageRow) -> Path | None:
    try:
        folder = safe_join(run / "stages", fit.name) / "policy"
    except UnsafePath:
        return None
    return folder if folder.is_dir() else None


def _twin(run: Path, fits: Sequence[StageRow], weights: str) -> StageRow | None:
    """The last stage that fitted these very weights."""
    for fit in reversed(fits):
        folder = _policy_folder(run, fit)
        if folder is not None and weights_of(folder) == weights:
            return fit
    return None


# ---------------------------------------------------------------- what is written


@contextmanager
def _whole_weights(one: Chosen, to: Path) -> Iterator[tuple[Policy, Path, str]]:
    """The policy, which proves that it can be loaded; a folder that holds all its weights; the adapter in them, or "".

    An adapter lies on a base in another place of this machine, so it is merged, into a folder of its own beside `to`.

    Raises:
        ConfigError: virtual tokens, which cannot be merged.
    """
    from evolvent.models.adapters import kind_of, merged, virtual_tokens
    from evolvent.models.policy import load_policy

    policy = load_policy(one.folder, context=None)
    kind = kind_of(policy.model)
    if kind is None:
        yield policy, one.folder, ""
        return
    if any(virtual_tokens(policy.model)):
        what = f"{one.source} is tuned by {kind}: no weights can stand for its {sum(virtual_tokens(policy.model))} "
        raise ConfigError([Problem("run", f"{what}virtual tokens", "publish a run tuned by lora, dora or ia3")])
    with disk_errors(to):
        to.resolve().parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=to.resolve().parent, prefix=f".{to.name}.", suffix=TEMPORARY) as folder:
            plain_policy = merged(policy)
            plain_policy.save(Path(folder))
            yield plain_policy, Path(folder), kind


def _published(
    run: Path, data: ReportData, one: Chosen, *, license: License | None, policy: Policy, adapter: str
) -> Published:
    """What the card says about the policy."""
    config = policy.model.config
    shape = {"layers": "num_hidden_layers", "hidden units": "hidden_size", "attention heads": "num_attention_heads"}
    known = {name: getattr(config, key, None) for name, key in shape.items()}
    weights = Weights(
        type(policy.model).__name__,
        policy.parameters(),
        len(policy.tokenizer),
        policy.context,
        str(policy.model.dtype).removeprefix("torch."),
        policy.dialect.name,
        {name: value for name, value in known.items() if isinstance(value, int)},
        policy.version,
        adapter,
    )
    name = data.info.name or run.resolve().name
    return Published(name, data, weights, one.source, one.fit, one.result, license)


def _write(to: Path, published: Published, source: Path, *, note: dict[str, Any]) -> None:
    with whole_folder(to) as folder:
        files = copy(source, folder)
        files["README.md"] = put(folder / "README.md", card(published))
        if published.license is not None:
            files["LICENSE"] = put(folder / "LICENSE", _license_text(published.license))
        whole = note | {"published": note["published"] | {"files": {name: files[name] for name in sorted(files)}}}
        put(folder / "evolvent.json", json.dumps(whole, indent=1) + "\n")


def _license_text(license: License) -> str:
    listed = f"Its text: https://spdx.org/licenses/{license.spdx}.html\n"
    own = "It is not on the SPDX list: ask those who published this model for its text.\n"
    return f"SPDX-License-Identifier: {license.spdx}\n\n{own if license.name else listed}"


def _note(published: Published, keys: Mapping[str, str], records: Mapping[str, str]) -> dict[str, Any]:
    """`evolvent.json`: what `load_policy` reads, and under `published` everything that the card rests on."""
    info, fit = published.data.info, published.fit
    shown = lines(published)
    own = {row.name for row in lineage(published)}
    return {
        "format": 1,
        "dialect": published.weights.dialect,
        "version": published.weights.version,
        "published": {
            "format": 1,
            "run": {
                "identity": _identity(published.data, keys),
                "name": published.name,
                "method": info.method,
                "seed": info.seed,
                "created": info.created,
                "state": info.state,
                "arms": list(info.arms),
                "command": [placeless(word) for word in info.command],
                "versions": _settings(info.versions),
                "settings": _settings(info.config),
            },
            "policy": {
                "source": placeless(published.source),
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
                    "counts": _whole(row.counts),
                    "result": _whole(row.result),
                    "led_here": row.name in own,
                }
                for row in published.data.stages
            ],
            "results": [_result(line) for line in shown],
            "missing": missing(published, shown),
            "records": dict(records),
        },
    }


def _whole(values: Mapping[str, float]) -> dict[str, float]:
    return {name: int(value) if value.is_integer() and value < 2**53 else value for name, value in values.items()}


def _result(line: Line) -> dict[str, Any]:
    row, one = line.result, line.difference
    apart = (
        None
        if one is None
        else {
            "mean": one.mean,
            "low": None if isnan(one.low) else one.low,
            "high": None if isnan(one.high) else one.high,
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
        "difference": apart,
        "floors": dict(line.floors),
    }


def _panel_digest(line: Line) -> str:
    """A digest of the ids of the tasks that were played: two results of one digest played the same tasks."""
    return hashlib.sha256(json.dumps(sorted(task for task, _, _ in line.result.outcomes)).encode()).hexdigest()[:24]


def _settings(value: Any, depth: int = 0) -> Any:
    """Settings as they are published: no secrets, no folders of the machine, not nested without end."""
    if isinstance(value, Mapping):
        if depth == _DEEPEST:
            return "(nested deeper)"
        return redact({key: _settings(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list):
        return "(nested deeper)" if depth == _DEEPEST else [_settings(item, depth + 1) for item in value]
    return placeless(value) if isinstance(value, str) else value


def _keys(run: Path) -> dict[str, str]:
    """The key of every stage by its name: the digest of all that it depends on, its data included."""
    path, found = run / "stages.jsonl", {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # `read_run` counts it
        if isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("key"), str):
            found[row["name"]] = row["key"]
    return found


def _identity(data: ReportData, keys: Mapping[str, str]) -> str:
    """What tells one run from another, wherever its folder lies: how it began, and its first stage."""
    info = data.info
    text = plain_json([info.method, info.created, info.seed, next(iter(keys.values()), "")])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:24]


# ---------------------------------------------------------------- the folder


def _check_replaced(to: Path, there: Before | None, identity: str, *, force: bool, problems: list[Problem]) -> None:
    """Only what was published from the same run may be replaced, and only where that is asked for."""
    if there is None:
        return
    if there.identity != identity:
        problems.append(Problem("--to", f"{to} was published from another run", "name another folder"))
    elif there.strange:
        shown = ", ".join(there.strange[:5])
        problems.append(Problem("--to", f"{to} holds files that were not published: {shown}", "move them away"))
    elif not force:
        problems.append(Problem("--to", f"{to} was published from this run before", "--force replaces it"))


def _tell(console: Console, to: Path, published: Published) -> None:
    fit, measured = published.fit, lines(published)
    unknown_fit = "of a stage that the ledger does not tell" if published.data.stages else ""
    about = [f"arm {fit.arm}, round {fit.round}" if fit else unknown_fit]
    about += ["what the run ended with"] if published.result else []
    about += [f"its {published.weights.merged} merged"] if published.weights.merged else []
    said = [f"published {published.source} ({', '.join(filter(None, about))}), {len(measured)} panels, to {to}"]
    if published.license is None:
        said.append("warning: no licence stated, so the card says `license: other` (give --license SPDX)")
    said += [f"note: {note}" for note in published.data.notes]
    for line in said:
        console.print(plain(line), soft_wrap=True)
