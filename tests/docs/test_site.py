"""The site: every page is in its navigation, links lead somewhere, what is generated is up to date."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from doc_blocks import ROOT

from benchmarks.page import PAGE, RESULTS, at, line, page, reached, shown
from benchmarks.page_tables import BENCHES, Figure

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_spec = importlib.util.spec_from_file_location("site_reference", ROOT / "docs" / "reference.py")
assert _spec is not None and _spec.loader is not None
reference = importlib.util.module_from_spec(_spec)
sys.modules["site_reference"] = reference
_spec.loader.exec_module(reference)


@pytest.fixture(scope="module")
def made():
    return reference.reference()


def entries(nav):
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from entries(value)


def test_every_page_is_in_the_navigation_and_the_other_way_round(made):
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    named = list(entries(config["nav"]))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(there | {f"reference/{name}" for name in made})
    assert config["theme"]["font"] is False, "no fonts of other hosts"
    assert all((ROOT / "docs" / name).exists() for name in config["extra_javascript"]), "scripts are our own files"


def test_links_lead_somewhere(made):
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://", "reference/")):
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"
            elif target.startswith("reference/"):
                assert target.removeprefix("reference/") in made


def test_every_page_of_a_paper_has_its_five_parts():
    for path in (ROOT / "docs" / "papers").glob("*.md"):
        if path.name != "index.md":
            heads = re.findall(r"^## (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert heads == ["Summary", "In evolvent", "Figures", "Differences", "Not reached"], path.name
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 80


def test_the_benchmark_page_is_up_to_date():
    """After a new result: `python -m benchmarks.page`."""
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS)


def test_figures_are_compared_with_their_aims():
    data = {"x": 2.0, "a": {"b.c": [0.5, 0.4, 0.6]}, "goals": {"x": 2.5}}
    assert line(Figure("speed", "x", "goals.x"), data) == "| speed | 2 | at least 2.5 | **no** |"
    assert line(Figure("errors", "x", 2, "less"), data) == "| errors | 2 | at most 2 | yes |"
    assert line(Figure("rate", "a.b.c"), data) == "| rate | 0.5 [0.4, 0.6] | | |"
    assert at(data, "a.b.c") == [0.5, 0.4, 0.6] and shown(17482) == "17,482" and shown(0.0004668) == "0.000467"
    assert reached([0.5, 0.4, 0.6], 0.45, "more") and not reached(1, 0, "less")
    with pytest.raises(KeyError):
        at(data, "a.d")


def test_every_benchmark_named_is_there():
    for bench in BENCHES:
        name = bench.command.split()[0]
        places = (ROOT / "benchmarks" / f"{name}.py", ROOT / "benchmarks" / name / "__main__.py")
        assert any(place.is_file() for place in places) and (RESULTS / bench.file).is_file()


@pytest.mark.long
def test_the_reference_shows_every_public_function(made):
    found = reference.modules()
    assert len(found) > 500 and sum(len(module.names) for module in found) > 3000
    assert {f"{room}.md" for room in reference.rooms(found)} | {"index.md"} == set(made)
    learn = made["learn.md"]
    assert "## `learn.returns`" in learn and "### reverse\\_scan" in learn
    assert "## `rl.advantages`" in made["rl.md"] and "### decomposed\\_gae" in made["rl.md"]
    assert learn.count("```") % 2 == 0


def test_a_docstring_becomes_markdown():
    said = "What it *is*.\n\n    x = a_b\n\nArgs:\n    rows: of [T] and\n        more.\nRaises:\n    ConfigError: none."
    assert reference.prose(said) == (
        "What it \\*is\\*.\n\n    x = a_b\n\n\n**Args**\n\n- `rows`: of \\[T\\] and\n  more.\n\n**Raises**\n\n"
        "- `ConfigError`: none."
    )


@pytest.mark.skipif(shutil.which("zensical") is None, reason="the site is built by make docs (evolvent[docs])")
def test_the_site_is_built_strictly(tmp_path):
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    subprocess.run([sys.executable, "docs/reference.py"], cwd=tmp_path, check=True, timeout=300)
    built = subprocess.run(["zensical", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stdout + built.stderr
    for html in (tmp_path / "build" / "site").rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+href=\"(https?:[^\"]+)",
            html.read_text(encoding="utf-8"),
        )
        assert not loaded, f"{html.name} loads {loaded}"
