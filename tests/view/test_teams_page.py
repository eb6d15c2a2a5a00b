"""The page of a team: it says what it was told, and other people's text stays text."""

from __future__ import annotations

from typing import get_args, get_type_hints

from evolvent.view.teams import ROLE_COLORS, team_page
from evolvent.worlds.teams.base import Mark, Scene

ROW = {
    "name": "mat",
    "world": "rescue",
    "episodes": 64,
    "lost": 2,
    "return": [0.75, 0.7, 0.8],
    "success": [0.5, 0.4, 0.6],
    "optimum": [1.0, False],
}


def data(**changes):
    history = [{"decisions": 100.0 * k, "episode_return": k / 400, "success": k / 400} for k in range(1, 401)]
    return {"title": "mat on rescue", "facts": {"rows": "16"}, "rows": [ROW], "history": history, **changes}


def test_what_a_page_says():
    page = team_page(data(), [("sample 3", [Scene((0, 0, 2, 2), (Mark("circle", 1, 1, 0.5, "agent"),))])])
    for text in (
        "mat on rescue",
        "0.750",
        "0.700 to 0.800",
        "≤ 1.000",
        "50.0",
        "40.0 to 60.0",
        "Return of an episode",
        "sample 3",
        "and 2 lost",
        "●</b> an agent",
    ):
        assert text in page, text
    assert "prey" not in page and "Length of an episode" not in page and "<script" not in page
    assert page.count('class="team-strip"') == 1


def test_every_role_has_a_color_and_a_meaning():
    """The other army of a battle is no prey."""
    roles = get_args(get_type_hints(Mark)["role"])
    marks = tuple(Mark("circle", 1, 1, 0.5, role) for role in roles)
    page = team_page(data(), [("sample 3", [Scene((0, 0, 2, 2), marks)])])
    assert set(ROLE_COLORS) == set(roles) and page.count("●</b>") == len(roles)
    assert "●</b> an enemy" in page and "●</b> the prey" in page


def test_exact_optima_and_silent_worlds():
    page = team_page(
        data(rows=[{**ROW, "optimum": [11.0, True], "success": None}, {**ROW, "optimum": None}], history=[])
    )
    assert "≤" not in page.split("</table>")[0] and "11.000" in page and "not known" in page and "–" in page
    assert 'id="learning"' not in page and 'id="episodes"' not in page


def test_names_are_text():
    evil = '<img src=x onerror=alert(1)>\u202e"'
    page = team_page(
        data(title=evil, facts={evil: evil}, rows=[{**ROW, "name": evil, "world": evil}]),
        [(evil, [Scene((0, 0, 1, 1), ())])],
    )
    assert "<img" not in page and "\u202e" not in page and "&lt;img" in page


def test_long_histories_are_thinned():
    page = team_page(data(history=[{"decisions": float(k), "episode_return": float(k % 2)} for k in range(100_000)]))
    assert len(page) < 100_000
