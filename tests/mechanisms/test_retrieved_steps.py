"""Why TRAD retrieves steps: in as many tokens they show more of what an agent needs than whole demonstrations do.

No policy is in it: the expert plays, and each prompt that a system would give is read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

from benchmarks.trad_agents.budgets import BUDGETS, list_lessons, list_tasks
from benchmarks.trad_agents.cell import acts, is_told
from tests.mechanisms.page import check_table

SIZES = (600, 900, 1400)
HEADS = {"trad": "TRAD: thought", "rap": "RAP: observation", "synapse": "Synapse: task", "react": "ReAct: fixed"}
PLAN = replace(BUDGETS, taught=BUDGETS.shown, test=4, budgets=SIZES)


@cache
def share_shown(system: str, size: int) -> float:
    """Share of the expert's actions whose command a demonstration of the prompt shows."""
    asked = [acts(list_lessons(PLAN, system, task, size)) for task in list_tasks(PLAN, "test")]
    return fmean(is_told(lesson) for each in asked for lesson in each)


def test_small_prompts_of_steps_show_more_commands():
    rows = [(f"{size:,}", *(share_shown(system, size) for system in HEADS)) for size in SIZES]
    check_table(("tokens of a prompt", *HEADS.values()), rows)
    for size in SIZES:
        others = [share_shown(system, size) for system in HEADS if system != "trad"]
        assert share_shown("trad", size) >= max(others)
    assert share_shown("trad", 600) > share_shown("synapse", 600) + 0.2
    assert share_shown("trad", 1400) < share_shown("synapse", 1400) + 0.05, "large prompts show all"
