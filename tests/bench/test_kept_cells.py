"""Cells that are kept are still of the protocol that stands in the source: a study that was stopped goes on.

A digest that changes with a default somewhere else orphans all cells of a study without a word: it reports nothing, and
begins anew where it is started. Versions of packages and tasks of simulators are those that a row tells of.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks import reporting
from benchmarks.comments import training
from benchmarks.credit import __main__ as credit
from benchmarks.credit.language import LANGUAGE
from benchmarks.credit.lengths import LENGTHS_PLAN
from benchmarks.masking import __main__ as masking
from benchmarks.mat import cell as mat
from benchmarks.mat.sizes import FORAGING, SIZES
from benchmarks.openr import __main__ as openr
from benchmarks.openr.clock import CLOCK
from benchmarks.p3 import __main__ as p3
from benchmarks.plume import __main__ as plume
from benchmarks.prm import __main__ as prm
from benchmarks.r3 import __main__ as r3
from benchmarks.search_quality import __main__ as search_quality
from benchmarks.sequence import __main__ as sequence
from benchmarks.stopping import __main__ as stopping
from benchmarks.study import read_rows
from benchmarks.trad_agents import __main__ as trad_agents
from benchmarks.trad_agents.budgets import BUDGETS
from benchmarks.tuning import __main__ as tuning
from evolvent.trajectory import canonical_json


def digests(folder: str, pattern: str = "cell-*") -> set[str]:
    """The digests of all cells that a study keeps."""
    found = {row["digest"] for row in read_rows(reporting.RESULTS / folder, pattern).values()}
    assert found, f"nothing is kept in {folder}"
    return found


@pytest.mark.parametrize(
    ("folder", "protocol"),
    [
        ("comments", training.PROTOCOL),
        ("credit", credit.PROTOCOL),
        ("credit_lengths", LENGTHS_PLAN),
        ("masking", masking.PROTOCOL),
        ("openr", openr.PROTOCOL),
        ("openr_clock", CLOCK),
        ("p3", p3.PROTOCOL),
        ("prm", prm.PROTOCOL),
        ("r3", r3.PROTOCOL),
        ("sequence", sequence.Protocol()),
        ("trad", trad_agents.PROTOCOL),
        ("trad_budgets", BUDGETS),
    ],
)
def test_of_one_protocol(folder, protocol):
    assert digests(folder) == {protocol.digest}


@pytest.mark.parametrize(
    ("folder", "plan"), [("mat_sizes", SIZES), ("mat_foraging", FORAGING), ("credit_language", LANGUAGE)]
)
def test_of_plans_whose_rates_may_change(folder, plan):
    assert digests(folder) == {plan.cell_digest}


def test_of_the_votes():
    own = stopping.PROTOCOL
    now = {own.digest(task, temperature) for task in stopping.TASKS for temperature in own.temperatures}
    assert digests("stopping", "votes-*") == now


def test_of_the_searches():
    now = {search_quality.PROTOCOL.digest(task) for task in search_quality.TASKS}
    assert digests("search") <= now


def test_of_the_plumes():
    seeds = {name: range(plume.SEEDS if name.partition("/")[0] in plume.LEARNED else 1) for name in plume.names()}
    now = {plume.digest(plume.protocol(name, seed, quick=False)) for name, own in seeds.items() for seed in own}
    assert digests("plume") == now


def test_of_the_tunings():
    protocol = read_rows(reporting.RESULTS / "tuning", "protocol")["protocol"]
    now = {**tuning.PROTOCOL.described(), "versions": protocol["versions"], "digest": protocol["digest"]}
    assert canonical_json(now) == canonical_json(protocol)
    assert digests("tuning") == {protocol["digest"]}


def test_of_the_teams(monkeypatch):
    """Tasks of simulators are taken from the row: they are drawn by packages that may be missing."""
    rows = read_rows(reporting.RESULTS / "mat")
    for key, row in rows.items():
        kept, play = row["config"], mat.TASKS[row["task"]]
        tasks = [SimpleNamespace(id=task) for task in row["tasks"]]
        monkeypatch.setitem(mat.TASKS, row["task"], replace(play, world=lambda place, tasks=tasks: (None, tasks)))
        moved = "pretrained" in row
        method = "scratch" if row["arm"] == "scratch" else kept["kind"]
        now = mat.settings_of(
            row["task"], method, lr=kept["update"]["lr"], seed=kept["seed"], decisions=kept["decisions"]
        )
        said = mat.protocol(
            row["task"], now, place=row["place"], start=row["start"], arm=row["arm"] if moved else ""
        ) | ({"pretrained": row["pretrained"]} if moved else {})
        assert mat.digest(said) == row["digest"], key
