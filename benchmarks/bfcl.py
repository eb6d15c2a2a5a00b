"""Function calls judged: BFCL's right answers accepted, wrong ones refused, in any order, beside the released checker.

    python -m benchmarks.bfcl --data DIR [--json] [--quick] [--save]    DIR: BFCL_v4_*.json and possible_answer/
    python -m benchmarks.bfcl --data DIR --peer PYTHON                  verdict by verdict beside bfcl-eval 2026.3.23
    python -m benchmarks.bfcl                                           on a miniature that is made here

Right answers are written as a model writes them, read again and judged; so are some nine wrong answers to each item
(`bfcl_answers.py`), each wrong by construction. `seconds` is the time to read and judge all of them, on one core.

The peer's environment: `pip install --no-deps bfcl-eval==2026.3.23` in a fresh one; its checker needs nothing else.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bfcl_answers import Wrong, answer_text, properties_of, sourced, wrong_answers
from benchmarks.bfcl_mini import write_mini
from benchmarks.reporting import RESULTS, about, command_line, finish
from evolvent.errors import ConfigError, InvalidAction
from evolvent.grade.calls import CallGrade, decode_calls
from evolvent.messages import Call
from evolvent.trajectory import sample_rng
from evolvent.worlds.bfcl.episode import parse_answer
from evolvent.worlds.bfcl.items import BAD_ITEMS, CATEGORIES, IRRELEVANCE, CallItem, judge_calls
from evolvent.worlds.bfcl.multi_turn import drop_last_gold_turn, find_padding, judge_turns, read_multi_turn
from evolvent.worlds.bfcl.world import Items, count_problems, read_items

RESULT = RESULTS / "bfcl.json"
SHUFFLES, SEED = 20, 0
PROSE = "None of the functions fits this request."


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer that is judged: right or wrong, as calls with plain values and as text."""

    item: CallItem
    change: str
    calls: tuple[Call, ...]
    text: str


def answers(items: Sequence[CallItem]) -> list[Asked]:
    """All right and wrong answers of these items; the change of a right one is "", or "reversed" in reverse order."""
    found = []
    for item in items:
        right = item.sample.calls
        every = [Wrong("", right), *([Wrong("reversed", right[::-1])] if len(right) > 1 else [])]
        every += () if item.id in BAD_ITEMS else wrong_answers(item, SEED)
        found += [Asked(item, one.kind, one.calls, answer_text(item, one.calls)) for one in every]
    return found


def judge(asked: Asked) -> CallGrade:
    """The verdict on an answer's text."""
    try:
        calls = decode_calls(asked.text, form=asked.item.form)
    except InvalidAction as error:
        return CallGrade(False, "unreadable", "", str(error))
    return judge_calls(asked.item, calls)


def order_dependent(items: Sequence[CallItem]) -> tuple[int, list[str]]:
    """How many items have several calls, and those whose verdict changes with the order of the calls."""
    several = [item for item in items if len(item.gold) > 1]
    changed = []
    for item in several:
        calls = [sourced(item, call, quoted=True) for call in item.sample.calls]
        if len(calls) <= 4:
            orders = list(itertools.permutations(range(len(calls))))
        else:
            rng = sample_rng("bfcl order", item.id)
            orders = [tuple(map(int, rng.permutation(len(calls)))) for _ in range(SHUFFLES)]
        if len({judge_calls(item, [calls[at] for at in order]).valid for order in orders}) > 1:
            changed.append(item.id)
    return len(several), changed


def relevance(items: Sequence[CallItem]) -> tuple[int, int]:
    """(items of which calling, an empty list and prose are all three judged rightly; items)."""
    right = 0
    for item in items:
        call = Asked(item, "", (), answer_text(item, [Call(item.tools[0].name, {})]) if item.tools else "f()")
        fits = item.category not in IRRELEVANCE
        prose = made_none(item, PROSE)
        right += judge(call).valid is fits and judge(Asked(item, "", (), "[]")).valid is not fits and prose is not fits
    return right, len(items)


def made_none(item: CallItem, text: str) -> bool:
    """The verdict on an answer in prose."""
    return judge_calls(item, parse_answer(text, item.form, item.tools)).valid


def multi_turn(items: Items) -> dict[str, int]:
    """The multi-turn part: gold runs that are accepted, and runs whose last turn is cut that are accepted."""
    found = {"multi_turn_total": len(items.turns), "multi_turn_gold": 0, "multi_turn_corrupted": 0}
    padding = find_padding(items.turns) if items.turns else None
    for one in items.turns:
        item = read_multi_turn(one, padding)
        found["multi_turn_gold"] += judge_turns(item, [[calls] for calls in item.gold]).valid
        found["multi_turn_corrupted"] += judge_turns(item, drop_last_gold_turn(item)).valid
    return found


def peer_answers(python: str, asked: Sequence[Asked], data: Path) -> tuple[list[Any], float]:
    """Verdicts of bfcl-eval on the same calls, and the seconds that its checker took."""
    rows: dict[str, dict[str, Any]] = {}
    for category in sorted({one.item.category for one in asked}):
        for folder, field in ((data, "function"), (data / "possible_answer", "ground_truth")):
            for line in (folder / f"BFCL_v4_{category}.json").read_text(encoding="utf-8").split("\n"):
                row = json.loads(line) if line.strip() else {}
                rows.setdefault(row.get("id", ""), {})[field] = row.get(field)
    names = list(dict.fromkeys(one.item.id for one in asked))
    items = {one.item.id: one.item for one in asked}
    sent = {
        "items": [
            {
                "functions": rows[name]["function"],
                "gold": rows[name]["ground_truth"],
                "category": items[name].category,
                "language": items[name].language,
            }
            for name in names
        ],
        "answers": [
            [names.index(one.item.id), [{c.name: sourced(one.item, c, quoted=False).arguments} for c in one.calls]]
            for one in asked
        ],
    }
    child = str(Path(__file__).with_name("bfcl_peer.py"))
    done = subprocess.run([python, child], input=json.dumps(sent), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError("the peer's environment does not run", value=done.stderr[-400:], hint="see the first lines")
    found = json.loads(done.stdout)
    return found["verdicts"], found["seconds"]


def compare(asked: Sequence[Asked], ours: Sequence[CallGrade], theirs: Sequence[Any]) -> dict[str, Any]:
    """Where the two sides differ, each difference with its reason."""
    listed, reasons = [], Counter[str]()
    for one, own, other in zip(asked, ours, theirs, strict=True):
        if own.valid is other or (other not in (True, False) and not own.valid):
            continue
        why = reason(one, own, other)
        reasons[why] += 1
        listed.append({"id": one.item.id, "change": one.change, "ours": own.valid, "peer": other, "why": why})
    crashed = Counter(str(other) for other in theirs if other not in (True, False))
    return {
        "verdicts": len(asked),
        "differences": len(listed),
        "reasons": dict(sorted(reasons.items())),
        "peer_crashes": dict(sorted(crashed.items())),
        "listed": listed,
    }


def reason(one: Asked, own: CallGrade, other: Any) -> str:
    """Why the released checker says otherwise; "unexplained" where no known mistake of it applies."""
    if other not in (True, False):
        return f"its checker stops with {other}"
    if own.valid and one.change == "reversed":
        return "it takes the first expected call that fits, and then has none left for another call"
    if not own.valid:
        omitted = any("" in accepted for gold in one.item.gold for accepted in gold.arguments.values())
        if one.change == "empty_list" and omitted:
            return 'it reads "" (may be left out) as an empty list'
        return "it takes True for 1" if one.change == "true_for_one" else "unexplained"
    schemas = [properties_of(one.item, call.name).get(name, {}) for call in one.calls for name in call.arguments]
    if one.item.language == "java" and any(schema.get("type") == "Array" for schema in schemas):
        return "it leaves the quotes on the texts of a Java array"
    if any((schema.get("items") or {}).get("type") == "any" for schema in schemas):
        return "it makes texts of all elements of a Java list of any type"
    texts = [one for gold in one.item.gold for many in gold.arguments.values() for one in many if isinstance(one, dict)]
    if any(not isinstance(choices, list) for choice in texts for choices in choice.values()):
        return "an accepted text in a dict is in no list: it compares with the letters of the text"
    return "unexplained"


def figures(folder: Path, *, quick: bool, peer: str | None) -> dict[str, Any]:
    """All figures as one JSON object."""
    present = tuple(name for name in CATEGORIES if (folder / f"BFCL_v4_{name}.json").exists())
    items = read_items(folder, present)
    calls = items.calls[:: 10 if quick else 1]
    judged = [item for item in calls if item.gold]
    asked = answers(judged)
    begin = time.process_time()
    verdicts = [judge(one) for one in asked]
    seconds = time.process_time() - begin
    pairs = list(zip(asked, verdicts, strict=True))
    right = [(one, verdict) for one, verdict in pairs if not one.change]
    wrong = [(one, verdict) for one, verdict in pairs if one.change not in ("", "reversed")]
    refused = {one.item.id: f"{v.path}: {v.detail}" for one, v in right if not v.valid}
    several, changed = order_dependent(judged)
    decided, asked_for = relevance([item for item in calls if not item.gold])
    found: dict[str, Any] = {
        "benchmark": "bfcl",
        "quick": quick,
        "data": "BFCL v4" if len(present) == len(CATEGORIES) else "miniature",
        "gold_accepted": len(right) - len(refused),
        "gold_total": len(right),
        "gold_refused": refused,
        "bad_items": {name: why for name, why in BAD_ITEMS.items() if name in refused},
        "refused_unpublished": sorted(refused.keys() - BAD_ITEMS.keys()),
        "corrupted_accepted": sum(v.valid for _, v in wrong),
        "corrupted_total": len(wrong),
        "corrupted_listed": [[one.item.id, one.change, one.text] for one, v in wrong if v.valid],
        "corrupted_unreadable": sum(v.kind == "unreadable" for _, v in wrong),
        "corrupted_kinds": dict(sorted(Counter(one.change for one, _ in wrong).items())),
        "several_calls": several,
        "order_dependent": changed,
        "relevance_right": decided,
        "relevance_total": asked_for,
        "seconds": round(seconds, 3),
        "problems": [str(one) for one in items.problems],
        "counts": [str(one) for one in count_problems(items, present)] if len(present) == len(CATEGORIES) else [],
        **multi_turn(items if not quick else Items(items.calls, items.turns[::40], ())),
        "seed": SEED,
        **about("evolvent", threads=1),
    }
    if peer:
        theirs, peer_seconds = peer_answers(peer, asked, folder)
        own = [[sourced(one.item, call, quoted=True) for call in one.calls] for one in asked]
        begin = time.process_time()
        for one, said in zip(asked, own, strict=True):
            judge_calls(one.item, said)
        checked = time.process_time() - begin
        found["peer"] = {
            "package": "bfcl-eval 2026.3.23",
            **compare(asked, verdicts, theirs),
            "seconds": round(peer_seconds, 3),
            "own_seconds": round(checked, 3),
            "x_peer": round(checked / peer_seconds, 3),
        }
    return found


def show(found: Mapping[str, Any]) -> None:
    """The figures for people."""
    print(f"gold accepted      {found['gold_accepted']} of {found['gold_total']} ({len(found['bad_items'])} bad items)")
    print(f"corrupted accepted {found['corrupted_accepted']} of {found['corrupted_total']}")
    print(f"order-dependent    {len(found['order_dependent'])} of {found['several_calls']}")
    print(f"relevance right    {found['relevance_right']} of {found['relevance_total']}, each asked three ways")
    print(
        f"multi-turn         gold {found['multi_turn_gold']}, cut {found['multi_turn_corrupted']} "
        f"of {found['multi_turn_total']}"
    )
    print(f"seconds            {found['seconds']}")
    if "peer" in found:
        peer = found["peer"]
        print(f"beside the peer    {peer['differences']} of {peer['verdicts']} differ, {peer['x_peer']}x its time")
        for why, count in peer["reasons"].items():
            print(f"    {count:5} {why}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("bfcl", __doc__, quick="every tenth item only", save=RESULT)
    parser.add_argument("--data", type=Path, help="a folder with BFCL_v4_*.json and possible_answer/")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has bfcl-eval 2026.3.23")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.data or write_mini(Path(scratch))
        found = figures(folder, quick=options.quick, peer=options.peer)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()
