"""Records commands in a terminal and writes an animated SVG.

    python tools/record_terminal.py FOLDER OUT.svg COMMAND ...

Each command runs in a pseudo-terminal in FOLDER, in the order given; pauses are cut to a second. The picture is plain
SVG with CSS, without scripts: pages that show it as an image play it. It begins with the last screen, which is all that
pages without animation show. It needs `pip install pyte`.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

COLUMNS, ROWS = 96, 24
MAX_PAUSE_S, FRAME_S, START_S, END_S, KEY_S = 1.0, 0.12, 2.0, 4.0, 0.03
CHARACTER_PX, LINE_PX, MARGIN_PX = 8.43, 19, 14
COLORS = {
    "default": "#d4d7dd",
    "black": "#6b7280",
    "red": "#f28b82",
    "green": "#8bd49c",
    "brown": "#e6c384",
    "blue": "#8ab4f8",
    "magenta": "#d7aefb",
    "cyan": "#78d9ec",
    "white": "#f3f4f6",
}
_STYLE = (
    f"font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: {COLORS['default']}; white-space: pre"
)


@dataclass(frozen=True)
class Frame:
    """A picture of the screen: each row as runs of (column, text, color, is_bold), and the time it is shown."""

    rows: tuple[tuple[tuple[int, str, str, bool], ...], ...]
    seconds: float


def record(folder: Path, commands: Sequence[str]) -> list[Frame]:
    """Runs the commands in turn and returns what the terminal showed.

    Raises:
        ValueError: a command ended with an exit code other than 0.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    frames: list[Frame] = []

    def show(seconds: float) -> None:
        rows = _read_rows(screen)
        if frames and frames[-1].rows == rows:
            frames[-1] = Frame(rows, frames[-1].seconds + seconds)
        else:
            frames.append(Frame(rows, seconds))

    for command in commands:
        stream.feed(b"\x1b[32m$\x1b[0m ")
        for start in range(0, len(command), 4):
            stream.feed(command[start : start + 4].encode())
            show(4 * KEY_S)
        stream.feed(b"\r\n")
        show(FRAME_S)
        for output, pause in _run(folder, command):
            show(min(pause, MAX_PAUSE_S))
            stream.feed(output)
        show(2.0)
    frames[-1] = Frame(frames[-1].rows, frames[-1].seconds + END_S)
    return [Frame(frames[-1].rows, START_S), *frames]


def _run(folder: Path, command: str) -> Iterator[tuple[bytes, float]]:
    """Yields the output of a command in pieces of at least `FRAME_S`, each with the time that passed before it."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    last = time.monotonic()
    is_open = True
    while is_open:
        is_ready, _, _ = select.select([controller], [], [], 0.05)
        if not is_ready and process.poll() is None:
            continue
        pause = time.monotonic() - last
        pieces = []
        while is_open and select.select([controller], [], [], 0.0 if pieces else FRAME_S)[0]:
            try:
                piece = os.read(controller, 65536)
            except OSError:
                piece = b""
            is_open = bool(piece)
            pieces.append(piece)
        is_open = is_open and (bool(pieces) or process.poll() is None)
        last = time.monotonic()
        yield b"".join(pieces), pause
    os.close(controller)
    if exit_code := process.wait():
        raise ValueError(f"{command!r} ended with exit code {exit_code}")


def _read_rows(screen: pyte.Screen) -> tuple[tuple[tuple[int, str, str, bool], ...], ...]:
    rows = []
    for y in range(ROWS):
        runs: list[tuple[int, str, str, bool]] = []
        for x in range(COLUMNS):
            cell = screen.buffer[y][x]
            color, is_bold = COLORS.get(cell.fg.removeprefix("bright"), COLORS["default"]), bool(cell.bold)
            if runs and runs[-1][2:] == (color, is_bold):
                runs[-1] = (runs[-1][0], runs[-1][1] + cell.data, color, is_bold)
            else:
                runs.append((x, cell.data, color, is_bold))
        rows.append(tuple(run for run in ((x, text.rstrip(), *style) for x, text, *style in runs) if run[1]))
    return tuple(rows)  # type: ignore[arg-type]


def to_svg(frames: Sequence[Frame], title: str) -> str:
    """Returns the animation as SVG: frames lie below each other, and a window moves over them without sliding."""
    width, height = COLUMNS * CHARACTER_PX + 2 * MARGIN_PX, ROWS * LINE_PX + 2 * MARGIN_PX
    total = sum(frame.seconds for frame in frames)
    definitions: dict[tuple[tuple[int, str, str, bool], ...], str] = {}
    strip, keys, seconds = [], [], 0.0
    for number, frame in enumerate(frames):
        keys.append(f"{100 * seconds / total:.3f}%{{transform:translateY({-number * height:.0f}px)}}")
        seconds += frame.seconds
        for y, runs in enumerate(frame.rows):
            if runs:
                name = definitions.setdefault(runs, f"r{len(definitions)}")
                strip.append(f'<use href="#{name}" y="{number * height + MARGIN_PX + (y + 0.75) * LINE_PX:.0f}"/>')
    keys.append(f"100%{{transform:translateY({-(len(frames) - 1) * height:.0f}px)}}")
    rows = "".join(f'<text id="{name}" x="0">{_spans(runs)}</text>' for runs, name in definitions.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>text{{{_STYLE}}}.b{{font-weight:700}}"
        f"#strip{{transform:translateY({-(len(frames) - 1) * height:.0f}px);"
        f"animation:play {total:.1f}s step-end infinite}}"
        f"@keyframes play{{{''.join(keys)}}}@media(prefers-reduced-motion:reduce){{#strip{{animation:none}}}}</style>"
        f'<defs>{rows}</defs><rect width="100%" height="100%" rx="8" fill="#1e2127"/>'
        f'<g id="strip">{"".join(strip)}</g></svg>\n'
    )


def _spans(runs: Sequence[tuple[int, str, str, bool]]) -> str:
    return "".join(
        f'<tspan x="{MARGIN_PX + x * CHARACTER_PX:.1f}"'
        + (f' fill="{color}"' if color != COLORS["default"] else "")
        + (' class="b"' if is_bold else "")
        + f">{escape(text)}</tspan>"
        for x, text, color, is_bold in runs
    )


def main(argv: Sequence[str]) -> int:
    """Records, and writes the picture."""
    folder, to, *commands = argv
    frames = record(Path(folder), commands)
    Path(to).write_text(to_svg(frames, "; ".join(commands)), encoding="utf-8")
    print(f"{len(frames)} frames, {sum(frame.seconds for frame in frames):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
