"""The pictures and tables of POAD's and MAT's pages: as their script makes them of the kept results, every figure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = spec_from_file_location("credit_team_pictures", ROOT / "tools" / "credit_team_pictures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_page(name: str) -> str:
    return (ROOT / "docs" / "papers" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["poad", "r3", "mat"])
def test_the_kept_picture_is_that_of_the_kept_results(pictures, name):
    assert read_page(f"{name}.svg") == pictures.draw(f"{name}.svg")


@pytest.mark.parametrize("page", ["r3.md", "mat.md"])
def test_a_page_holds_the_table_of_the_kept_results(pictures, page):
    table = pictures.format_table(page)
    assert table in read_page(page), f"paste this table:\n{table}"


def test_chains_are_drawn_by_their_length(pictures):
    figures = {
        "success": {"outcome": {"8": [1.0, 0.9, 1.0], "16": [0.0, 0.0, 0.1]}, "mixed": {"16": [0.9, 0.8, 1.0]}},
        "r3_minus_outcome_by_length": {"16": [0.9, 0.7, 1.0]},
    }
    titles = list_titles(pictures.draw_chains(figures))
    assert "outcomes alone, steps of the chain 16: 0 (0 to 0.1)" in titles
    assert titles.count("mixed (R3), steps of the chain 16: 0.9 (0.7 to 1)") == 1
    assert "| 16 |  | .00 [.00, .10] |  | .90 [.80, 1.00] |  | +.90 [+.70, +1.00] |" in pictures.format_chains(figures)


def test_the_page_shows_its_picture_with_a_text():
    description = read_page("poad.md").partition("](poad.svg)")[0].rpartition("![")[2]
    assert len(description) > 40 and "\n" not in description


def test_the_page_holds_the_table_of_the_kept_results(pictures):
    table = pictures.format_table("poad.md")
    assert table in (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8"), f"paste this table:\n{table}"


def list_titles(picture: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]


def test_a_picture_holds_every_area_with_its_interval(pictures):
    figures = {
        "area": {"4": {"poad": [0.9, 0.8, 1.0], "ppo": [0.7, 0.6, 0.8]}, "16": {"poad": [0.5, 0.25, 0.75]}},
        "poad_minus_action_ci": {"4": [0.2, 0.1, 0.3]},
        "curve": {"16": {"poad": {"mean": [0.0, 1.0], "low": [0.0, 0.5], "high": [0.0, 1.0]}}},
        "episodes": 100,
    }
    titles = list_titles(pictures.draw_lengths(figures))
    assert "POAD, words of the right action 16: 0.5 (0.25 to 0.75)" in titles
    assert "PPO over actions, words of the right action 4: 0.7 (0.6 to 0.8)" in titles
    assert "PPO over actions, words of the right action 4: 0.2 (0.1 to 0.3)" in titles


def test_teams_are_drawn_by_their_number_of_agents(pictures):
    own = {"distinct 4": {"mat": [0.9, 0.8, 1.0]}, "distinct 12": {"mat": [0.6, 0.5, 0.7]}, "foraging": {}}
    curve = {"mean": [0.4, 0.6], "low": [0.4, 0.5], "high": [0.4, 0.7]}
    figures = {"area": own, "last": own, "curve": {"distinct 12": {"mat": curve}}, "decisions": 10}
    titles = list_titles(pictures.draw_sizes({**figures, "chance": {"distinct 4": 0.42, "distinct 12": 0.38}}))
    assert titles.count("MAT, agents 12: 0.6 (0.5 to 0.7)") == 2
    assert titles.count("MAT, agents 4: 0.9 (0.8 to 1)") == 2


def test_a_table_has_every_interval(pictures):
    figures = {
        "area": {"16": {"poad": [0.5, 0.25, 0.75], "ppo": [0.41, 0.4, 1.0]}},
        "poad_minus_action_ci": {"16": [0.09, -0.15, 0.35]},
        "gate_passed_by_length": {"16": True},
    }
    assert pictures.format_lengths(figures).splitlines()[2] == (
        "| 16 | .50 [.25, .75] | .41 [.40, 1.00] | +.09 [-.15, +.35] | passed |"
    )
