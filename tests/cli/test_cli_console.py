"""The console: colours only where they are wanted, plain text stays plain, any width and any encoding."""

from __future__ import annotations

import io

import pytest

from evolvent.cli.terminal.console import format_rate, make_console, render_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, environment: dict[str, str], *cells: str) -> str:
    console = make_console(stream, environment)
    console.print(render_table(console, ("name", "value"), [cells], numbers=("value",)))
    return stream.getvalue()


def test_no_colour_without_a_terminal_or_with_no_color():
    assert "\x1b[1m" in shown(Terminal(), {"TERM": "xterm", "COLUMNS": "80"}, "a", "1")
    plain = shown(Terminal(), {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}, "a", "1")
    assert not any(f"\x1b[{code}m" in plain for code in range(30, 48))
    assert "\x1b" not in shown(io.StringIO(), {}, "a", "1")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_asked(width):
    text = shown(io.StringIO(), {"COLUMNS": str(width)}, "a-very-long-name-without-a-space" * 4, "12")
    assert max(map(len, text.splitlines())) <= width
    assert "".join(text.split()).count("v") > 0


def test_too_narrow_for_its_words_it_becomes_blocks():
    at = {width: shown(io.StringIO(), {"COLUMNS": str(width)}, "one-long-name", "12") for width in (20, 40)}
    assert at[20] == "one-long-name\n  value 12\n"
    assert [line.split() for line in at[40].splitlines()][::2] == [["name", "value"], ["one-long-name", "12"]]


def test_a_strange_width_is_passed_over():
    assert make_console(io.StringIO(), {"COLUMNS": "wide"}).width == 80
    assert make_console(io.StringIO(), {"COLUMNS": "0"}).width == 80
    assert make_console(io.StringIO(), {"COLUMNS": "3"}).width == 20


def test_cells_are_not_marked_up():
    text = shown(io.StringIO(), {}, "[red]x[/red] :smile:", "\x1b[31m")
    assert "[red]x[/red] :smile:" in text and "\x1b" not in text and "[U+001B]" in text


def test_ascii_only():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    console = make_console(stream, {})
    console.print(render_table(console, ("name",), [("ü",)]))
    stream.flush()
    assert b"?" in raw.getvalue() and b"|name|" in raw.getvalue().replace(b" ", b"")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0%"), (1.0, "100%"), (0.125, "12.5%"), (0.999, "99.9%")]
)
def test_rates(value, text):
    assert format_rate(value) == text
