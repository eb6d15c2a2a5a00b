"""The ledger of a run: torn ends are left out, and what is no ledger is refused with its place."""

from __future__ import annotations

import pytest

from evolvent.errors import CorruptRecord
from evolvent.store.log import Ledger, read_stage_cost


def test_a_torn_last_line_is_no_stage_and_the_next_row_takes_its_place(tmp_path):
    file = tmp_path / "stages.jsonl"
    file.write_bytes(b'{"key": "a", "name": "one"}\n{"key": "b", "na')
    ledger = Ledger(tmp_path)
    assert len(ledger) == 1 and ledger.get("b") is None
    ledger.append({"key": "c", "name": "three"})
    assert [Ledger(tmp_path).get(key) is not None for key in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    "raw",
    [b"[1]\n", b"3\n", b"null\n", b"\n", b"\xff\n", b'{"name": "x"}\n', b'{"key": [1]}\n', b"[" * 100_000 + b"\n"],
)
def test_what_is_no_ledger_is_refused(tmp_path, raw):
    (tmp_path / "stages.jsonl").write_bytes(b'{"key": "a"}\n' + raw + b'{"key": "b"}\n')
    with pytest.raises(CorruptRecord, match=r"stages\.jsonl"):
        Ledger(tmp_path)


@pytest.mark.parametrize("raw", ["[]", "3", '{"seconds": "x"}', '{"seconds"'])
def test_what_a_try_has_cost_is_checked(tmp_path, raw):
    (tmp_path / "spent.json").write_text(raw)
    with pytest.raises(CorruptRecord, match="Remove it; only the cost of the attempt is lost"):
        read_stage_cost(tmp_path)
