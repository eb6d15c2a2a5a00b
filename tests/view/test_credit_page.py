"""Credit on the page: colours by the strongest advantage, numbers without colour, value lines that meet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from practised import credited, iteration, token, write_practice
from test_document import outline

from evolvent.view import page, read_run
from evolvent.view.credit import build_credit_scale, build_pictures, parse_credit, render_credit_tokens

numbers = st.one_of(st.none(), st.booleans(), st.floats(), st.sampled_from([0, 1, -1, 1e99, -1e99, 1e-99, "x", []]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_practice(tmp_path_factory.mktemp("runs") / "rl-1")


def drawn(tokens: list[dict[str, Any]]) -> tuple[str, list[ElementTree.Element]]:
    (picture,) = build_pictures(parse_credit([credited(1, tokens)]))
    text = str(render_credit_tokens(picture.row.episodes[0].turns[0], picture))
    return text, list(ElementTree.fromstring(f"<p>{text}</p>"))


def test_colours_go_by_the_strongest_advantage_of_the_iteration() -> None:
    shades = {
        0.5: "credit-up shade-5",
        0.41: "credit-up shade-5",
        0.4: "credit-up shade-4",
        0.02: "credit-up shade-1",
        0.019: "credit-0",
        0.0: "credit-0",
        -0.05: "credit-down shade-1",
        -0.5: "credit-down shade-5",
    }
    _, spans = drawn([token("x", advantage) for advantage in shades])
    assert [span.get("class") for span in spans] == [f"credit {style}" for style in shades.values()]
    _, (unknown, left_out) = drawn([token("x", None), token("y", 0.5, learned=False)])
    assert [unknown.get("class"), left_out.get("class")] == ["credit credit-0", "credit unlearned"]
    (picture,) = build_pictures(parse_credit([credited(1, [token("x", 0.5)])]))
    assert build_credit_scale(picture) == [
        ("credit-down shade-5", -0.5),
        ("credit-down shade-3", -0.3),
        ("credit-down shade-1", -0.1),
        ("credit-0", 0.0),
        ("credit-up shade-1", 0.1),
        ("credit-up shade-3", 0.3),
        ("credit-up shade-5", 0.5),
    ]


def test_without_colours_a_title_and_a_table_have_the_numbers(run: Path) -> None:
    _, (span,) = drawn([token("nina", -0.125, 0.75)])
    assert span.get("title") == "advantage −0.125, value 0.75, return 1, p 0.607"  # exp(-0.5)
    text = page(read_run(run))
    cells = "".join(f'<td class="num">{number}</td>' for number in ("−0.1", "0.75", "1", "60.7 %"))
    assert f"<code><bdi>nina</bdi></code></th>{cells}" in text


def test_the_value_lines_of_neighbours_meet() -> None:
    _, spans = drawn([token("a", 0.1, 0.0), token("b", 0.1, 1.0), token("c", 0.1, 0.5)])
    paths = [[one.get("d") for one in span.iter() if one.get("class") == "line arm-evolve"] for span in spans]
    assert paths == [["M0 20.0L10 2.0"], ["M0 2.0L10 11.0"], ["M0 11.0L10 11.0"]]
    assert [one.get("d") for one in spans[0].iter() if one.get("class") == "reference"] == ["M0 2.0H10"]


def test_without_a_critic_there_is_no_value_line() -> None:
    row = credited(1, [token("a", 0.5, None)])
    row["episodes"] = row["episodes"][:1]
    (picture,) = build_pictures(parse_credit([row]))
    assert not picture.valued
    assert "<svg" not in render_credit_tokens(picture.row.episodes[0].turns[0], picture)


def test_blank_tokens_are_seen() -> None:
    _, spans = drawn([token(text, 0.1) for text in ("\n", "  ", "", " boss", "a\tb")])
    assert [span[0].text for span in spans] == ["↵", "␣␣", "∅", " boss", "a⇥b"]


def test_iterations_come_in_order_and_those_of_other_practices_do_not(tmp_path: Path) -> None:
    rows = [
        credited(20, [token("later", 0.1)]),
        credited(3, [token("early", 0.1)]),
        credited(4, [], episodes=[]),
        credited(5, [token("elsewhere", 0.1)], stage="other"),
    ]
    text = page(read_run(write_practice(tmp_path, [iteration(1)], credit=rows)))
    assert re.findall(r"<summary>Iteration (\d+)", text) == ["3", "20"]
    assert text.index("early") < text.index("later")
    assert "elsewhere" not in text
    assert text.count("one task, two outcomes") == 2


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["iteration", "stage", "episodes", "turns", "tokens", "text", "advantage", "value", "return"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(credit=anything, number=numbers)
@example(credit=[{"iteration": 1, "episodes": [{"turns": [{"tokens": [{"text": 3, "value": 1e99}]}]}]}], number=-1e99)
def test_whatever_the_credit_holds_is_drawn(tmp_path: Path, credit: object, number: object) -> None:
    odd = [token("x", 0.5) | {"advantage": number, "value": number, "return": number, "logp": number}]
    known = [*(credit if isinstance(credit, list) else [credit]), credited(2, odd)]
    text = page(read_run(write_practice(tmp_path, [iteration(1)], credit=known)))
    outline(text)
    assert "Iteration 2 " in text
    assert not re.search(r' (?:d|x|y|cx|cy|width)="[^"]*(?:nan|inf)', text)
