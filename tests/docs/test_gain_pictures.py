"""The pictures of the pages of TS-LLM, Decision Transformer and ETPO are those of the kept figures."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from doc_blocks import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_file_location("gain_pictures", ROOT / "tools" / "gain_pictures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_up_to_date_and_stand_on_their_pages(tool):
    """After a new result: `python tools/gain_pictures.py`."""
    pages = {"search_gain.svg": "tsllm.md", "dt_returns.svg": "decision_transformer.md", "etpo_language.svg": "etpo.md"}
    for name, text in tool.draw_pictures().items():
        assert (tool.PICTURES / name).read_text(encoding="utf-8") == text
        assert f"]({name})" in (tool.PICTURES / pages[name]).read_text(encoding="utf-8")
        assert "<script" not in text and "nan" not in text and len(text) < 60_000


def test_a_gain_stands_at_its_height(tool):
    """From -10 to +40 points over 210 pixels: +40 stands at the top, 0 at 168, AUC .75 in the middle of 300 pixels."""
    by_judge = {"1.0": [0.4, 0.4, 0.4], "learned": [0.0, -0.1, 0.1]}
    figures = {
        "search_minus_bon": {"5": {"beam": by_judge}},
        "judge_auc": {"5": {"1.0": {"within_levels": 1.0}, "learned": {"within_levels": 0.75}}},
    }
    text = tool.draw_gain(figures)
    assert 'cx="297.5" cy="0.0"' in text and 'class="hollow" stroke="#2166ac" cx="147.5" cy="168.0"' in text
    assert "beam, judge learned, AUC 0.75: +0.0 points [-10.0, +10.0]" in text
