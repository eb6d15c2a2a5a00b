"""The model of reinforcement learning over ranks, by hand, and the table of `docs/scaling.md`, computed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale_sim import ranks

MEASURED: dict[str, Any] = json.loads(ranks.RESULT.read_text(encoding="utf-8"))["measured"]
PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_the_table_of_the_page_is_that_of_the_model():
    table = "\n".join(ranks.make_table(ranks.list_cases(MEASURED)))
    assert table in PAGE.read_text(encoding="utf-8")


def test_phases_by_hand():
    """Eight ranks in one node, 2 bytes and 16 bytes a parameter, one update of all tokens."""
    fleet = ranks.make_fleet(MEASURED, "0.5B", 8, 64)
    fleet = replace(fleet, read_s_per_episode=0.01, store_s_per_episode=0.02)
    phases = ranks.measure_iteration(fleet)["phases"]
    parameters, flops = 0.494e9, 8 * 989e12 * 0.4
    tokens = phases["learn"] * flops / (6 * parameters)
    assert tokens / (256 + 128) == pytest.approx(round(tokens / (256 + 128))), "whole steps"
    assert phases["score"] == pytest.approx(2 * 2 * parameters * tokens / flops)
    received_s = 64 * fleet.library.episode_bytes / 50e9
    assert phases["episodes"] == pytest.approx(64 * 0.03 + received_s)
    # A ring of 8: 7 turns of an eighth of a layer, over 450 GB/s with 5 microseconds each, for 24 layers.
    gather_s = 24 * 7 * (2 * parameters / 24 / 8 / 450e9 + 5e-6)
    updates = -(-tokens // 2**22)
    forwards = -(-min(tokens, 2**22) // (8 * 16_384))
    scored = 2 * -(-tokens // (8 * 16_384))
    assert phases["shards"] == pytest.approx((3 * updates * forwards + scored) * gather_s)
    assert phases["whole"] == pytest.approx(2 * 7 * (2 * parameters / 8 / 50e9 + 10e-6))


def test_memory_holds_whole_weights_and_a_part_of_what_is_trained():
    fleet = ranks.make_fleet(MEASURED, "7B", 64, 1000)
    assert fleet.held_bytes == pytest.approx(7.62e9 * (2 + 16 / 64))
    assert fleet.rows == int((0.9 * 80e9 - fleet.held_bytes) / (fleet.model.kv_bytes * fleet.workload.context))
    assert ranks.make_fleet(MEASURED, "7B", 64, 1000, shard=8).rows < fleet.rows
    alone = ranks.measure_iteration(ranks.make_fleet(MEASURED, "70B", 1024, 1000))
    assert (alone["breaks"], alone["steps_s"]) == ("memory", 0.0), "141 GB of whole weights, whatever is divided"


def test_more_gpus_leave_the_time_of_episodes_as_it_is():
    few, many = (ranks.measure_iteration(ranks.make_fleet(MEASURED, "0.5B", gpus, 1000)) for gpus in (64, 256))
    assert many["phases"]["episodes"] == few["phases"]["episodes"] and many["share"] > few["share"]
    assert many["phases"]["learn"] == pytest.approx(few["phases"]["learn"] / 4, rel=0.1), "other episodes are drawn"
