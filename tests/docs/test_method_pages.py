"""The pages of the methods: one for each method, as its code says it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from doc_blocks import ROOT


@pytest.fixture(scope="module")
def generator():
    spec = spec_from_file_location("method_pages", ROOT / "tools" / "method_pages.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["method_pages"] = module
    spec.loader.exec_module(module)
    return module


def test_method_pages_are_up_to_date(generator):
    """After a change of a method's docstring or settings: `make docs-methods`."""
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "methods").glob("*.md")}
    assert generator.method_pages() == stored


def test_every_method_has_a_page(generator):
    modules = {path.stem for path in (ROOT / "src" / "evolvent" / "methods").glob("*.py")} - {"__init__", "base"}
    assert {entry.module for group in generator.METHODS.values() for entry in group.values()} == modules


def test_formulas_and_papers_are_rendered(generator):
    paragraphs = ["Wen et al. (arXiv 2405.15821).", "    Q <- V\n      r", "    after", "so that"]
    assert generator._render(paragraphs) == [
        "Wen et al. (arXiv [2405.15821](https://arxiv.org/abs/2405.15821)).",
        "",
        "```text",
        "Q <- V",
        "  r",
        "",
        "after",
        "```",
        "",
        "so that",
    ]
