"""The page of a practice: first why it does not learn, then its curves, then credit; and nothing it cannot say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from practised import WELL, credited, iteration, result, token, write_practice
from test_chat_page import Tab, tab  # noqa: F401
from test_document import outline

from evolvent.cli.main import main
from evolvent.view import page, read_run
from evolvent.view.charts import sparkline
from evolvent.view.reinforcement import (
    SIGNS,
    TrainingSummary,
    Trend,
    build_verdict,
    compute_trend,
    describe_training,
    format_number,
    summarize_training,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_practice(tmp_path_factory.mktemp("runs") / "rl-1")


def shown(run: Path) -> TrainingSummary:
    found = summarize_training(read_run(run))
    assert found is not None
    return found


def points(*values: float) -> list[tuple[float, float]]:
    return [(float(step), value) for step, value in enumerate(values, 1)]


# ---------------------------------------------------------------- does it learn?


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((), None),
        ((0.5,), Trend(0.5, 0.5, "early", 1)),
        ((0.0, 1.0, 1.0), Trend(0.0, 1.0, "early", 3)),
        ((0.0, 0.0, 1.0, 1.0), Trend(0.0, 1.0, "rose", 4)),
        ((0.5, 0.5, 0.25, 0.25), Trend(0.5, 0.25, "fell", 4)),
        ((0.0, 1.0, 1.0, 1.0), Trend(0.5, 1.0, "stayed", 4)),  # the error is 0.5, and 2.3 times that is more than 0.5
        ((0.25,) * 12, Trend(0.25, 0.25, "stayed", 12)),
        ((*[0.0] * 5, 9.0, 9.0, *[0.5] * 5), Trend(0.0, 0.5, "rose", 12)),
    ],
)
def test_first_and_last_iterations_are_compared(values: tuple[float, ...], found: Trend | None) -> None:
    assert compute_trend(points(*values)) == found


FIVE = "(means of the first and last 5 of 20 iterations)"
ROSE, STAYED, FELL = Trend(0.02, 0.4, "rose", 20), Trend(0.02, 0.024, "stayed", 20), Trend(0.4, 0.1, "fell", 20)


@pytest.mark.parametrize(
    ("success", "returned", "begins"),
    [
        (ROSE, ROSE, f"It is learning: success in training rose from 2.0 % to 40 % {FIVE}. No warnings"),
        (STAYED, STAYED, "It is not learning: success in training was 2.0 % at first and is 2.4 % now, no change"),
        (FELL, None, f"It is getting worse: success in training fell from 40 % to 10 % {FIVE}."),
        (STAYED, ROSE, f"It is learning: the return in training rose from 0.02 to 0.4 {FIVE}."),
        (None, STAYED, "It is not learning: the return in training was 0.02 at first and is 0.024 now"),
        (Trend(0.2, 0.96, "rose", 9), ROSE, "Nearly everything is solved: success in training is 96 %."),
        (Trend(0.2, 0.2, "early", 1), None, "It is early to say: success in training is 20 % after 1 iteration."),
        (None, None, "Nothing says whether it learns"),
    ],
)
def test_the_verdict_says_whether_it_learns(success: Trend | None, returned: Trend | None, begins: str) -> None:
    found = build_verdict(success, returned, [])
    assert found.startswith(begins)
    assert "No warnings." in found
    assert ("The reason is none of these" in found) == (ROSE not in (success, returned) and "96 %" not in begins)


def test_every_setting_that_a_sign_advises_exists():
    """Settings by their whole name; what is no setting belongs to worlds."""
    knobs = json.loads((Path(__file__).parents[1] / "style" / "knobs.json").read_text(encoding="utf-8"))
    names = {line.partition(":")[0] for lines in knobs.values() for line in lines}
    last_parts = {name.rpartition(".")[2] for name in names}
    for sign in SIGNS:
        for word in re.findall(r"[a-z]+(?:[._][a-z_]+)+", sign.try_):
            assert word in names or word in last_parts | {"success_at", "reward_range"}, (sign.name, word)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.name)
def test_each_sign_beyond_its_threshold_comes_first_with_what_it_means(sign: Any, tmp_path: Path) -> None:
    worse = sign.limit + (0.2 if sign.side == "above" else -0.2)
    run = write_practice(tmp_path, [iteration(step, **{sign.name: worse}) for step in range(1, 9)])
    found = shown(run)
    assert found.beyond == 1
    assert [one.sign for one in found.readings] == [sign, *(one for one in SIGNS if one is not sign)]
    assert [one.beyond for one in found.readings] == [True] + [False] * (len(SIGNS) - 1)
    assert found.readings[0].now == pytest.approx(worse)
    assert found.verdict.endswith(
        f"One warning: {sign.title}, {format_number(sign.name, worse)}. It can mean that {sign.means}."
    )
    text = page(read_run(run))
    row = text[text.index('class="beyond">') :].partition("</tr>")[0]
    assert all(words in row.replace("&#39;", "'") for words in (sign.title, sign.means, sign.try_, "beyond</small>"))
    assert text.count('class="within">') == len(SIGNS) - 1


def test_with_a_critic_groups_without_variance_are_the_last_reason(tmp_path: Path) -> None:
    run = write_practice(tmp_path, [iteration(step, equal_groups=0.9, bias=3.0) for step in range(1, 9)])
    assert [one.sign.name for one in shown(run).readings[:2]] == ["bias", "equal_groups"]


def test_where_all_is_well_that_is_said(tmp_path: Path) -> None:
    run = write_practice(tmp_path, [iteration(step) for step in range(1, 9)])
    assert shown(run).beyond == 0
    text = page(read_run(run))
    assert "No warnings." in text
    assert 'class="beyond"' not in text


def test_a_sign_is_judged_by_the_last_iterations_alone(tmp_path: Path) -> None:
    kl = [9.0, 9.0, 9.0, 0.0, 0.25, 0.0, 0.125, 0.0]  # the mean of the last five is 0.075
    (tmp_path / "now").mkdir()
    found = shown(write_practice(tmp_path / "now", [iteration(step, kl=value) for step, value in points(*kl)]))
    assert [(one.now, one.beyond) for one in found.readings if one.sign.name == "kl"] == [(pytest.approx(0.075), False)]
    rows = [iteration(step, kl=9.0 if step < 4 else None) for step in range(1, 10)]
    found = shown(write_practice(tmp_path / "once", rows))
    assert [(one.now, one.shown) for one in found.readings if one.sign.name == "kl"] == [(None, "–")]


def test_what_was_not_measured_is_named(tmp_path: Path) -> None:
    rows = [{**iteration(step), "explained": None, "bias": "nan"} for step in range(1, 9)]
    found = shown(write_practice(tmp_path, rows))
    titles = [sign.title for sign in SIGNS if sign.name in ("explained", "bias")]
    assert found.missing == titles
    assert f"Not measured here: {'; '.join(titles)}." in page(read_run(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("success", 0.0, "0 %"),
        ("success", 0.004, "0.4 %"),
        ("clipped", 0.305, "30 %"),
        ("kl", 1e-14, "about 0"),
        ("kl", 0.0, "0"),
        ("explained", -0.184, "−0.184"),
        ("return", 12345.6, "12,346"),
    ],
)
def test_numbers_as_people_read_them(name: str, value: float, text: str) -> None:
    assert format_number(name, value) == text


# ---------------------------------------------------------------- curves


def test_iterations_that_were_done_again_count_once(run: Path) -> None:
    found = shown(run)
    assert (found.iterations, found.goal, found.repeated, found.ends) == (12, 12, 2, 5)
    assert (found.episodes, found.env_steps, found.generated) == (120, 360, 720)
    assert found.success == Trend(pytest.approx(0.15), pytest.approx(0.5), "rose", 12)
    assert "2 iterations were done twice, and are drawn once" in page(read_run(run))


def test_curves_are_over_iterations_steps_and_tokens_with_what_was_measured(run: Path) -> None:
    found = shown(run)
    assert [(one.title, one.caption) for one in found.learning] == [
        (name, f"by {axis}")
        for name in ("Success", "Return")
        for axis in ("iteration", "environment steps", "tokens generated")
    ]
    by_iteration, by_steps, by_tokens = (str(one.chart) for one in found.learning[:3])
    for chart, last, half in ((by_iteration, "12", "6"), (by_steps, "360", "180"), (by_tokens, "720", "360")):
        assert re.search(rf"Success, [a-z ]+ {last}: 60 %", chart)
        assert re.search(rf"measured, [a-z ]+ {last}: 60 %", chart)
        assert re.search(rf"measured, [a-z ]+ {half}: 30 %", chart)
        assert re.search(r"measured, [a-z ]+ 0: 10 %", chart)
    assert (found.before, found.now) == (0.1, 0.6)
    assert "poad, iteration 12: 60 % (50 % to 70 %)" in page(read_run(run))


def test_a_mean_over_panels_is_of_all_of_them(tmp_path: Path) -> None:
    results = [
        result(0, 0.2, arm="base"),
        result(0, 0.4, arm="base", tier="combo"),
        result(5, 0.9),
        result(8, 0.5),
        result(8, None, tier="combo"),
        result(9, 0.5),
        result(9, 0.7, tier="combo"),
    ]
    found = shown(write_practice(tmp_path, [iteration(step) for step in range(1, 10)], results=results))
    chart = str(found.learning[0].chart)
    assert re.findall(r"measured, iteration (\d+): (\d+) %", chart) == [("0", "30"), ("9", "60")]
    assert (found.before, found.now) == (pytest.approx(0.3), pytest.approx(0.6))


def test_what_was_measured_once_is_before_or_after(tmp_path: Path) -> None:
    rows = [iteration(step) for step in range(1, 10)]
    first = shown(write_practice(tmp_path, rows, results=[result(0, 0.25, arm="base")]))
    last = shown(write_practice(tmp_path, rows, results=[result(9, 0.75)]))
    assert [(one.before, one.now) for one in (first, last)] == [(0.25, None), (None, 0.75)]


def test_a_return_that_says_the_same_as_success_is_not_drawn_twice(tmp_path: Path) -> None:
    rows = [iteration(step, 0.1 * step, **{"return": 0.1 * step}) for step in range(1, 9)]
    assert {one.title for one in shown(write_practice(tmp_path, rows)).learning} == {"Success"}


def test_updates_are_small_multiples_with_thresholds_that_are_near(tmp_path: Path) -> None:
    rows = [iteration(step, kl=0.08, clipped=0.001 * step, value_error=0.5) for step in range(1, 9)]
    found = {one.title: str(one.chart) for one in shown(write_practice(tmp_path, rows)).updates}
    for title in (
        "Entropy of a token, nats",
        "KL divergence of updates",
        "Clipped ratios, %",
        "Explained variance",
        "Value loss",
        "Loss",
        "Gradient norm",
    ):
        assert title in found
    assert "threshold: 0.1" in found["KL divergence of updates"]
    assert "threshold" not in found["Clipped ratios, %"], "30 % is far above 0.8 %"


def test_a_course_is_drawn_beside_its_limit() -> None:
    svg = ElementTree.fromstring(
        str(sparkline([(1, 0.0), (2, 1.0), (3, 0.5)], limit=0.25, is_beyond=True, label="kl <b>"))
    )
    limit, line, end = (svg[at] for at in range(3))
    assert limit.get("d") == "M0 20.5H120"  # 26 - 0.25 * 22
    assert line.get("d") == "M3.0 26.0L59.0 4.0L115.0 15.0"
    assert (line.get("class"), end.get("cx"), end.get("cy")) == ("line spark-beyond", "115.0", "15.0")
    assert svg[3].text == "kl <b>"
    flat = str(sparkline([(4, 0.0)], limit=0.0, is_beyond=False, label="x"))
    assert 'cx="115.0" cy="15.0"' in flat and "spark-within" in flat
    assert "circle" not in str(sparkline([], limit=1.0, is_beyond=False, label="x"))


# ---------------------------------------------------------------- the page


def test_the_page_begins_with_why_and_every_link_leads_somewhere(run: Path) -> None:
    text = page(read_run(run))
    found = outline(text)
    assert found.ids == ["why", "learning", "updates", "credit", "examples", "cost", "details"]
    assert {link[1:] for link in found.links if link.startswith("#")} == set(found.ids)
    assert not {"script", "img", "link", "iframe"} & set(found.tags)
    assert " style=" not in text
    body = text[text.index("</style>") :]
    assert body.count("Every evaluation as a table") == 1
    assert [words for words in ("Control", "train-matched", "Exploration") if words in body] == []


def test_other_runs_keep_their_page(tmp_path: Path) -> None:
    from fabricated import write_run

    data = read_run(write_run(tmp_path / "run", rounds=1, tasks=5))
    assert summarize_training(data) is None
    assert 'id="why"' not in page(data)


def test_of_several_practices_the_newest_of_the_main_arm_is_shown(tmp_path: Path) -> None:
    first = [iteration(step, stage="first") for step in (1, 2)]
    other = [iteration(step, stage="else", arm="ppo") for step in (1, 2)]
    found = shown(write_practice(tmp_path, [*first, iteration(1), *other]))
    assert (found.stage, found.iterations, found.others) == ("poad-0-practise-abc", 1, 2)
    assert "The run has 2 more practices" in page(read_run(tmp_path))


@pytest.mark.parametrize("kept", [(), ("success",), ("return",), ("episodes", "written"), tuple(WELL)])
def test_a_run_that_was_killed_after_one_iteration_has_a_page(tmp_path: Path, kept: tuple[str, ...]) -> None:
    row = iteration(1)
    always = ("time_s", "stage", "arm", "kind", "step", *kept)
    run = write_practice(tmp_path, [{name: row[name] for name in always}], state="running")
    text = page(read_run(run))
    outline(text)
    assert "No credit has been kept yet" in text
    assert ("early to say" if {"success", "return"} & set(kept) else "Nothing says whether it learns") in text
    assert ("No sign has been measured yet." in text) == (kept != tuple(WELL))


names = st.sampled_from([*WELL, "success", "return", "episodes", "written", "env_steps", "idle", "loss", "kl"])
numbers = st.one_of(st.none(), st.booleans(), st.floats(), st.sampled_from([0, 1, -1, 1e99, -1e99, 1e-99, "x", []]))
steps = st.one_of(st.integers(-2, 60), st.sampled_from([0.5, 1e99, 2**70, None, "7"]))
rows = st.builds(lambda step, more: {**iteration(1), "step": step} | more, steps, st.dictionaries(names, numbers))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(rows, max_size=8), means=st.lists(st.tuples(st.integers(0, 9), st.none() | st.floats(0, 1))))
def test_whatever_the_rows_hold_is_drawn(
    tmp_path: Path, rows: list[dict[str, Any]], means: list[tuple[int, float | None]]
) -> None:
    measured = [result(number, mean) for number, mean in means]
    text = page(read_run(write_practice(tmp_path, rows, results=measured)))
    assert text.rstrip().endswith("</html>")
    outline(text)
    assert not re.search(r' (?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf)', text)


EVIL = '"><script>owned()</script><img src=x onerror=owned()> {{ 7 * 191 }} \u202e'


def test_hostile_text_is_shown_and_does_nothing(run: Path, tmp_path: Path) -> None:
    row = credited(1, [token(EVIL, 0.5)], stage=EVIL)
    episode = row["episodes"][0]
    episode |= {"world": EVIL, "tier": EVIL, "kind": EVIL, "ended_by": EVIL, "task": EVIL}
    episode["turns"][0]["observation"] = EVIL
    rows = [iteration(step, stage=stage, **{EVIL: 1.0}) for stage in ("other", EVIL) for step in (1, 2)]
    evil = write_practice(tmp_path, rows, credit=[row])
    text = page(read_run(evil))
    found = outline(text)  # also: no attribute that is a script
    assert set(found.tags) <= {*outline(page(read_run(run))).tags, "code", "b"}
    assert text.count("&lt;script&gt;owned()") >= 6
    assert "1337" not in text
    assert "\u202e" not in text


def test_a_long_practice_is_a_small_page(tmp_path: Path) -> None:
    rows = [iteration(step, 0.3) for step in range(1, 3001)]
    credit = [credited(step, [token("word", 0.1)] * 240) for step in range(1, 12)]
    assert len(page(read_run(write_practice(tmp_path, rows, credit=credit)))) < 3_000_000


# ---------------------------------------------------------------- elsewhere


def test_a_run_that_practised_is_shown_with_its_first_sign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run = write_practice(tmp_path, [iteration(step, 0.25, kl=0.5) for step in range(1, 9)])
    (run / "trajectories" / "log").mkdir(parents=True)
    assert main(["runs", "show", str(run)]) == 0
    said = capsys.readouterr().out
    assert "practice poad, 8 of 12 iterations, success 25 % in the last 5\n" in said
    (kl,) = [sign for sign in SIGNS if sign.name == "kl"]
    assert f"sign     {kl.title} 0.5 (trouble above 0.1): {kl.means}\ntry      {kl.try_}\n" in said
    write_practice(tmp_path, [iteration(1)])
    main(["runs", "show", str(run)])
    assert "sign     none is beyond its threshold\n" in capsys.readouterr().out


@pytest.fixture
def looked(tab: Tab, run: Path) -> Iterator[Tab]:  # noqa: F811
    (run / "report.html").write_text(page(read_run(run)), encoding="utf-8")
    tab.call("Page.navigate", url=(run / "report.html").as_uri())
    tab.until("document.readyState === 'complete' && !!document.querySelector('#credit .credit')")
    yield tab


def _computed(name: str, selector: str) -> str:
    return f"getComputedStyle(document.querySelector({json.dumps(selector)})).{name}"


@pytest.mark.browser
def test_in_a_browser_colours_differ_in_both_schemes_and_nothing_is_wider_than_the_page(looked: Tab) -> None:
    up, down = "details[open] .credited .credit-up bdi", "details[open] .credited .credit-down bdi"
    seen = set()
    for scheme in ("light", "dark"):
        looked.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        seen |= {looked.value(_computed("backgroundColor", one)) for one in (up, down)}
        assert looked.value(_computed("borderBottomStyle", up)) == "solid"
        assert looked.value(_computed("borderBottomStyle", down)) == "dotted"
    assert len(seen) == 4
    gap = "(() => { const [a, b] = document.querySelectorAll('details[open] .credited .credit svg');"
    gap += " return b.getBoundingClientRect().left - a.getBoundingClientRect().right; })()"
    assert abs(looked.value(gap)) < 0.6, "the value line goes on from token to token"
    for width in (390, 1160):
        looked.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert looked.value("document.documentElement.scrollWidth") <= width
    asked = {e["params"]["request"]["url"] for e in looked.events if e.get("method") == "Network.requestWillBeSent"}
    assert {url.partition(":")[0] for url in asked} == {"file"} and len(asked) == 1


def test_a_terminal_is_told_what_the_page_says(tmp_path):
    run = write_practice(
        tmp_path / "learns",
        rows=[iteration(step, success=step / 20) for step in range(1, 13)],
        results=[result(0, 0.2), result(12, 0.7)],
    )
    before_and_after, verdict = describe_training(read_run(run))
    assert before_and_after == "success on held-out tasks: 20 % before, 70 % after"
    assert verdict == shown(run).verdict and "rose" in verdict
    idle_rows = [iteration(step, success=0.0, idle=1.0) for step in range(1, 4)]
    idle = write_practice(tmp_path / "idle", rows=idle_rows, results=[])
    (sentence,) = describe_training(read_run(idle))
    assert sentence.startswith("None of the 3 iterations taught anything")
    brief = write_practice(tmp_path / "brief", rows=idle_rows[:1], results=[])
    assert describe_training(read_run(brief))[0].startswith("The iteration taught nothing: all episodes")
    assert describe_training(replace(read_run(run), metrics=())) == []
