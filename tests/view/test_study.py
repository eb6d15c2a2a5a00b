"""The table and the page of a study: every figure on it, well-formed, and safe whatever names and messages hold."""

from __future__ import annotations

import copy
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from rich.console import Console

from evolvent.view.charts import Reference
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.study import study_page, study_table

HOSTILE = '<script>alert(1)</script>" onload="x\u202e&\x1b[31m{{ 7*7 }}'
VOID = {"meta"}


def interval(mean, half=0.05, n=100):
    return {
        "mean": mean,
        "low": None if half is None else mean - half,
        "high": None if half is None else mean + half,
        "n": n,
    }


def arm(name, mean, **more):
    seeds = {str(seed): mean + 0.01 * (seed - 3) for seed in range(6)}
    row = {
        "name": name,
        "question": f"why {name}?",
        "interval": interval(mean),
        "by_seed": seeds,
        "finished": 6,
        "failed": 0,
        "tokens": {"generated": 600, "computed": 24_000_000, "trained": 6000},
        "cpu_s": 7200.0,
    }
    return row | more


def difference(arm, against, mean, world="", tier=""):
    return {
        "arm": arm,
        "against": against,
        "world": world,
        "tier": tier,
        "tasks": 40,
        "interval": interval(mean),
        "by_seed": {},
    }


@pytest.fixture
def data():
    """A finished study of four arms on two panels."""
    means = {"base": 0.2, "evolve": 0.6, "control": 0.4, "upper": 0.9}
    panels = [("lookup", "evo"), ("maze", "seen")]
    rates = [
        {"arm": name, "world": world, "tier": tier, "tasks": 40, "seeds": 6, "interval": interval(mean)}
        for world, tier in panels
        for name, mean in means.items()
    ]
    pairs = [("evolve", "control", 0.2), ("evolve", "base", 0.4)]
    differences = [difference(*pair) for pair in (*pairs, ("base", "control", -0.2), ("upper", "control", 0.5))]
    differences += [difference(*pair, world="lookup") for pair in pairs]
    differences += [difference(*pair, world, tier) for pair in pairs for world, tier in panels]
    return {
        "study": "pilot",
        "digest": "0123456789abcdef",
        "seeds": list(range(6)),
        "threshold": 0.05,
        "budget": 5_000_000,
        "primary": {"arm": "evolve", "control": "control", "tiers": ["evo"], "base": "base", "upper": "upper"},
        "verdict": "improves",
        "sentence": "evolve improves on control.",
        "difference": differences[0],
        "p": 0.03125,
        "room": 0.4,
        "arms": [arm(name, mean) for name, mean in means.items()],
        "rates": rates,
        "differences": differences,
        "unfinished": [],
    }


@pytest.fixture
def hostile(data):
    """The same study with names and texts that try to leave their place."""
    broken = copy.deepcopy(data)
    broken |= {"study": HOSTILE, "sentence": HOSTILE, "verdict": f"no verdict: {HOSTILE}"}
    broken["arms"] = [arm(HOSTILE, 0.6, question=HOSTILE), arm("control", 0.4, interval=None, by_seed={}, finished=0)]
    broken["primary"] |= {"arm": HOSTILE, "base": HOSTILE}
    broken["rates"] = [row | {"arm": HOSTILE, "world": HOSTILE, "tier": HOSTILE} for row in broken["rates"][:1]]
    broken["differences"] = [difference(HOSTILE, "control", 0.2), difference(HOSTILE, "control", 0.2, HOSTILE, HOSTILE)]
    broken["unfinished"] = [{"arm": HOSTILE, "seed": 0, "why": HOSTILE}]
    return broken


class Outline(HTMLParser):
    """Checks that tags nest; gathers tags and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(text):
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def printed(data, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(study_table(data, width=width))
    return console.file.getvalue()


# ---------------------------------------------------------------- the page


def test_the_page_is_well_formed_and_needs_nothing_else(data):
    found = outline(study_page(data))
    assert not {"script", "img", "link", "iframe", "object", "form", "a"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("href", "src")]
    assert found.tags.count("h1") == 1 and "http" not in study_page(data).replace("http-equiv", "")


def test_every_figure_is_on_the_page(data):
    text = study_page(data)
    for shown in (
        "pilot",
        "0123456789abcdef",
        "5 points",
        "5,000,000 computed tokens",
        "24 of 24 arms and seeds",
        "evolve improves on control.",
        "40 %",
        "60.0 %<small>55.0 to 65.0</small>",
        "why upper?",
        "2.00",
        "+20.0<small>+15.0 to +25.0</small>",
        "−20.0<small>−25.0 to −15.0</small>",
        "4.00M",
        "lookup",
        "Every arm finished every seed.",
    ):
        assert shown in text, shown
    seeds = text[text.index('id="seeds"') :]
    assert all(f'<td class="num">{100 * (0.6 + 0.01 * (seed - 3)):.1f}</td>' in seeds for seed in range(6))


def test_pictures_are_xml_and_hold_a_dot_a_seed(data):
    text = study_page(data)
    pictures = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    (plot,) = [one for one in pictures if "dots" in one.get("class")]
    titles = [title.text for title in plot.iter("title")]
    assert len([one for one in plot.iter("circle") if "seed" in one.get("class")]) == 4 * 6
    assert "evolve: 60.0 % (55.0 to 65.0)" in titles and "evolve, seed 5: 62.0 %" in titles
    assert {one.text for one in plot.iter("text")} >= {"base 20.0 %", "upper 90.0 %", "evolve", "control"}


def test_hostile_names_stay_text(hostile):
    text = study_page(hostile)
    found = outline(text)
    assert "script" not in found.tags and not [name for name, _ in found.attributes if name.startswith("on")]
    assert "&lt;script&gt;" in text and "[U+202E]" in text and "\u202e" not in text and "\x1b" not in text
    assert "{{ 7*7 }}" in text, "text of others is never a template"
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(picture)
        assert {one.tag for one in root.iter()} <= {"svg", "g", "path", "circle", "rect", "text", "title"}
        assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]


def test_a_study_that_has_not_begun(data):
    nothing = data | {
        "rates": [],
        "differences": [],
        "difference": None,
        "p": None,
        "room": None,
        "verdict": "no verdict: nothing",
        "arms": [
            arm(row["name"], 0, interval=None, by_seed={}, finished=0, tokens={}, cpu_s=0.0) for row in data["arms"]
        ],
        "unfinished": [{"arm": "base", "seed": 3, "why": "not played yet"}],
        "budget": None,
    }
    text = study_page(nothing)
    outline(text)
    assert "No panel has been played yet." in text and "no finished seed" in text and "not played yet" in text
    assert "not played yet" in printed(nothing)


def test_a_rate_without_an_interval(data):
    data["arms"][1]["interval"] = interval(0.6, None)
    data["differences"][0]["interval"] = interval(0.2, None)
    text = study_page(data)
    outline(text)
    assert '<td class="num">60.0 %</td>' in text.replace("\n", "")
    assert "evolve  | 60.0 " in re.sub(" +\\| +", "  | ", printed(data))


def test_surrogates_do_not_break_the_file(data):
    data["study"] = "a\ud800b"
    assert study_page(data).encode("utf-8")


# ---------------------------------------------------------------- the picture


def test_places_are_proportional():
    ends = [DotRow(name, "other", y, None, None, {}) for name, y in (("a", 0.2), ("b", 0.8), ("c", 0.5))]
    root = ElementTree.fromstring(dot_plot(ends, label="x"))
    a, b, c = (float(one.get("cx")) for one in root.iter("circle"))
    assert c == pytest.approx((a + b) / 2, abs=0.11)
    assert 190 < a < c < b < 990


def test_everything_drawn_lies_inside():
    row = DotRow("a", "evolve", 0.99, 0.2, 1.0, {"0": 0.0, "1": 1.0})
    root = ElementTree.fromstring(dot_plot([row], [Reference("base", 0.01), Reference("upper", 1.0)], label="x"))
    width, height = map(float, root.get("viewBox").split()[2:])
    circles = list(root.iter("circle"))
    assert len(circles) == 3
    assert all(0 <= float(one.get("cx")) <= width and 0 <= float(one.get("cy")) <= height for one in circles)
    assert all(float(one.get("y")) > 0 for one in root.iter("text"))


def test_names_of_close_references_do_not_lie_on_each_other():
    close = [Reference("base", 0.50), Reference("upper", 0.51), Reference("third", 0.52)]
    root = ElementTree.fromstring(dot_plot([DotRow("a", "other", 0.5, None, None, {})], close, label="x"))
    heights = [float(one.get("y")) for one in root.iter("text") if "note" in one.get("class")]
    assert len(set(heights)) == 3


def test_an_empty_plot_and_long_names():
    assert ElementTree.fromstring(dot_plot([], label="nothing")) is not None
    row = DotRow("long " * 40, "other", None, None, None, {})
    names = [one.text for one in ElementTree.fromstring(dot_plot([row], label="x")).iter("text")]
    assert len(names[-2]) == 24 and names[-2].endswith("…") and names[-1] == "no finished seed"


# ---------------------------------------------------------------- the table


def test_the_table_holds_the_figures_within_80_columns(data):
    text = printed(data, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(
        r"evolve +\| +60\.0 \[55\.0, 65\.0\] +\| +\+20\.0 \[\+15\.0, \+25\.0\] +\| +6/6 +\| +4\.00M +\| +2\.00", text
    )
    assert re.search(r"lookup +\| evo +\| +40 +\| 20\.0 +\| +60\.0 +\| +40\.0 +\| \+20\.0 \[\+15\.0, \+25\.0\]", text)
    assert text.rstrip().endswith("evolve improves on control.")


def test_a_narrow_terminal_gets_blocks(data):
    lines = printed(data, 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert "lookup evo" in lines and "  success, 95 % 60.0 [55.0, 65.0]" in lines


def test_many_failures_are_counted(data):
    data["unfinished"] = [{"arm": "evolve", "seed": seed, "why": "NonFinite: NaN"} for seed in range(25)]
    text = printed(data)
    assert "evolve, seed 19: NonFinite: NaN" in text and "seed 20" not in text and "and 5 more without a result" in text


def test_hostile_names_cannot_reach_the_terminal(hostile):
    text = printed(hostile)
    assert "\x1b" not in text and "\u202e" not in text and "[U+001B]" in text
