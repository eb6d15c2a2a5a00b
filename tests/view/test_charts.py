"""Charts against coordinates worked by hand, and properties of what they are made of."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.view.charts import (
    Bar,
    Frame,
    Line,
    Reference,
    bin_points,
    format_short,
    interval_strip,
    line_chart,
    needs_log_scale,
    round_ticks,
    stacked_bar,
    strip_scale,
    timeline,
)

FRAME = Frame("success", "round", x_range=(0, 2), y_range=(0, 1), percent=True, width=148, height=140)
# The drawing area of FRAME is x 38..138 and y 10..110.


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [one for one in drawn(svg).iter() if name in one.get("class", "").split()]


def test_line_band_and_marks_lie_where_the_numbers_say() -> None:
    line = Line("evolve", "evolve", [(0, 0.0), (1, 0.5), (2, 1.0)], [(0, 0.0, 0.2), (2, 0.8, 1.0)])
    svg = line_chart(FRAME, [line])
    assert [one.get("d") for one in of_class(svg, "line")] == ["M38.0 110.0L88.0 60.0L138.0 10.0"]
    assert [one.get("d") for one in of_class(svg, "band")] == ["M38.0 90.0L138.0 10.0L138.0 30.0L38.0 110.0Z"]
    circles = [one for one in drawn(svg).iter() if one.tag == "circle"]
    assert [(one.get("cx"), one.get("cy")) for one in circles] == [
        ("38.0", "110.0"),
        ("88.0", "60.0"),
        ("138.0", "10.0"),
    ]
    titles = [one.text for one in drawn(svg).iter() if one.tag == "title"]
    assert titles[0] == "evolve, round 0: 0 % (0 % to 20 %)"
    assert titles[1] == "evolve, round 1: 50 %"


def test_leading_points_have_no_mark_and_one_interval_is_a_whisker() -> None:
    line = Line("control", "control", [(0, 0.2), (2, 0.4)], [(2, 0.3, 0.5)], unmarked=1)
    svg = line_chart(FRAME, [line])
    assert len(of_class(svg, "mark")) == 1
    assert [one.get("d") for one in of_class(svg, "whisker")] == ["M138.0 80.0V60.0"]
    assert [one.get("width") for one in drawn(svg).iter() if one.tag == "rect"] == ["6.4"]  # the control is a square


def test_values_outside_the_range_stay_on_the_drawing() -> None:
    svg = line_chart(FRAME, [Line("a", "evolve", [(0, -5.0), (2, 7.0)])])
    assert of_class(svg, "line")[0].get("d") == "M38.0 110.0L138.0 10.0"


def test_names_of_references_share_a_label_and_give_way_to_data() -> None:
    low = [Reference("random", 0.02), Reference("blind replay", 0.04), Reference("expert", 1.0)]
    svg = line_chart(FRAME, [Line("a", "evolve", [(0, 0.5), (2, 0.5)])], low)
    assert [one.text for one in of_class(svg, "note")] == ["random, blind replay", "expert"]
    svg = line_chart(FRAME, [Line("a", "evolve", [(0, 0.05), (2, 0.08)])], low)
    assert [one.text for one in of_class(svg, "note")] == ["expert"]
    assert len(of_class(svg, "reference")) == 3


def test_a_chart_without_data_is_still_a_chart() -> None:
    svg = line_chart(Frame("loss", "update"), [Line("a", "evolve", [])])
    assert not of_class(svg, "line")
    assert of_class(svg, "tick")


def test_strip_puts_zero_in_the_middle_and_tells_clear_from_open() -> None:
    clear = interval_strip(0.1, 0.05, 0.2, scale_end=0.2, label="x")
    assert of_class(clear, "strip-dot")[0].get("cx") == "147.0"  # 100 + 0.1 / 0.2 * 94
    assert (of_class(clear, "strip")[0].get("d") or "").startswith("M123.5 7.0v8M123.5 11.0H194.0")
    assert of_class(clear, "clear")
    across = interval_strip(0.0, -0.1, 0.1, scale_end=0.2, label="x")
    assert of_class(across, "strip-dot")[0].get("cx") == "100.0"
    assert not of_class(across, "clear")
    assert not of_class(interval_strip(0.1, float("nan"), float("nan"), scale_end=0.2, label="x"), "strip")
    assert [one.text for one in of_class(strip_scale(0.21), "tick")] == ["−20", "0", "+20"]


def test_stacked_bar_shares_its_width() -> None:
    bars = [Bar("fit", 30.0, "verb-fit"), Bar("collect", 10.0, "verb-collect")]
    svg = stacked_bar(bars, label="time", unit="s")
    fit, collect = of_class(svg, "verb-fit")[0], of_class(svg, "verb-collect")[0]
    assert (fit.get("x"), fit.get("width")) == ("0.00", "749.00")
    assert (collect.get("x"), collect.get("width")) == ("750.00", "249.00")
    assert fit[0].text == "fit: 30 s (75 %)"
    assert len(list(drawn(stacked_bar([], label="time", unit="s")))) == 1


def test_timeline_keeps_the_order_across_lanes() -> None:
    bars = [Bar("a", 1.0, "verb-fit", "base"), Bar("b", 2.0, "verb-fit", "evolve"), Bar("c", 1.0, "verb-fit", "base")]
    lanes = timeline(bars, unit="s")
    assert [lane for lane, _ in lanes] == ["base", "evolve"]
    assert [one.get("x") for one in of_class(lanes[0][1], "verb-fit")] == ["0.00", "750.00"]
    assert [one.get("x") for one in of_class(lanes[1][1], "verb-fit")] == ["250.00"]


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-6, 1e6))
def test_ticks_are_evenly_spaced_and_inside(low: float, span: float) -> None:
    places = round_ticks(low, low + span)
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= place <= low + span + slack for place in places) or len(places) == 1
    gaps = [b - a for a, b in pairwise(places)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-3, abs=slack) for gap in gaps)
    assert len(places) <= 6


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), max_size=200), st.integers(1, 20))
def test_binning_keeps_the_mean_inside_the_band_and_the_extremes(points: list[tuple[float, float]], bins: int) -> None:
    means, band = bin_points(points, bins)
    assert len(means) <= bins or not points
    for (_, mean), (_, low, high) in zip(means, band, strict=False):
        assert low - 1e-9 <= mean <= high + 1e-9
    if band:
        assert max(high for _, _, high in band) == max(y for _, y in points)
        assert min(low for _, low, _ in band) == min(y for _, y in points)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.004, "0.004"),
        (0.0000275, "3e-05"),
        (12.345, "12.3"),
        (4400, "4400"),
        (21000, "21k"),
        (2.5e6, "2.5M"),
    ],
)
def test_short_numbers(value: float, text: str) -> None:
    assert format_short(value) == text


def test_labels_cannot_leave_the_drawing() -> None:
    evil = "\"><script>alert(1)</script>\u202e\x00'"
    line = Line(evil, "evolve", [(0, 0.1), (1, 0.2)])
    drawings = [
        line_chart(Frame(evil, evil, evil), [line], [Reference(evil, 0.5)]),
        stacked_bar([Bar(evil, 1.0, evil, evil)], label=evil, unit=evil),
        timeline([Bar(evil, 1.0, "verb-fit", evil)], unit=evil)[0][1],
        interval_strip(0.1, 0.0, 0.2, scale_end=0.3, label=evil),
    ]
    for svg in drawings:
        assert {one.tag for one in drawn(svg).iter()} <= {"svg", "g", "path", "rect", "circle", "text", "title"}
        assert "[U+202E]" in svg
        assert "\u202e" not in svg
        assert "\x00" not in svg


@pytest.mark.parametrize("span", [5e-324, 1e-310, 0.0])
def test_a_span_too_small_for_steps_has_one_tick(span):
    assert round_ticks(0.0, span) == [0.0]


def test_the_labels_of_a_scale_stay_inside_of_it():
    for scale_end in (0.05, 0.1, 0.5, 0.53, 0.9):
        for place, x in re.findall(r'<text class="(tick[ a-z]*)" x="([\d.]+)"', str(strip_scale(scale_end))):
            left = {"tick": 0, "tick middle": 15, "tick end": 30}[place]  # a label is at most 30 wide
            assert float(x) - left >= 0 and float(x) - left + 30 <= 200


def test_a_loss_that_falls_by_a_hundred_is_drawn_on_a_logarithmic_axis():
    """Equal factors are equally high: 10, 1 and .1 stand in equal steps, and every power has its label."""
    losses = [10.0, 1.0, 0.1]
    assert needs_log_scale([10.0, *[0.1] * 5]) and not needs_log_scale(losses)
    frame = Frame("Loss", "update", log_y=True)
    svg = str(line_chart(frame, [Line("loss", "evolve", list(enumerate(losses)))]))
    heights = [float(height) for height in re.findall(r'cy="([\d.]+)"', svg)]
    steps = [second - first for first, second in pairwise(heights)]
    assert len(heights) == 3 and steps[0] == pytest.approx(steps[1], abs=0.11) and steps[0] > 20
    for label in (">10<", ">1<", ">0.1<"):
        assert label in svg
