"""Credit on the page: every action token colored by its advantage, with the value of its prefix as a line under it.

Read from `credit.json`, which is trusted as little as any other file. Color is never alone: an underline says the
sign, a title the numbers, and a table has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, exp

from markupsafe import Markup

from evolvent.view.escape import mark_hidden, show_hidden
from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_text

__all__ = [
    "CreditEpisode",
    "CreditPicture",
    "CreditRow",
    "CreditToken",
    "CreditTurn",
    "build_credit_scale",
    "build_pictures",
    "parse_credit",
    "render_credit_tokens",
]

_MAX_ROWS, _MAX_EPISODES, _MAX_TURNS, _MAX_TOKENS = 24, 2, 64, 400  # most of each that are read
_SHADES = 5
_MIN_SHADED_RATIO = 0.04  # share of the strongest credit below which a token has no color
_STRIP_HEIGHT = 22.0  # of a strip, whose width is 10
_BLANKS = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "↵"})


@dataclass(frozen=True, slots=True)
class CreditToken:
    """A token of an action; numbers are None where they are unknown. `logp` is natural, of the old policy."""

    text: str
    logp: float | None
    advantage: float | None
    returned: float | None
    value: float | None
    learned: bool

    @property
    def probability(self) -> float | None:
        """Returns the probability of the token if it was sampled."""
        return None if self.logp is None else exp(min(self.logp, 0.0))


@dataclass(frozen=True, slots=True)
class CreditTurn:
    """An action: the step of its episode (from 1), the observation before it, and the reward after it."""

    step: int
    observation: str
    reward: float | None
    tokens: tuple[CreditToken, ...]


@dataclass(frozen=True, slots=True)
class CreditEpisode:
    """An episode; `left` turns are not in the file."""

    task: str
    world: str
    tier: str
    kind: str
    success: bool | None
    returned: float | None
    ended_by: str
    group: int
    turns: tuple[CreditTurn, ...]
    left: int


@dataclass(frozen=True, slots=True)
class CreditRow:
    """The stored credit of an iteration."""

    stage: str
    arm: str
    iteration: int
    episodes: tuple[CreditEpisode, ...]


@dataclass(frozen=True, slots=True)
class CreditPicture:
    """The drawing data of an iteration's credit.

    Attributes:
        reach: the largest advantage, which has the strongest color. low, high: ends of the scale of the value line.
        valued: whether there are values. same: whether its episodes are of one task.
    """

    row: CreditRow
    reach: float
    low: float
    high: float
    valued: bool
    same: bool


def parse_credit(document: object) -> tuple[CreditRow, ...]:
    """Parses the rows of `credit.json`; invalid rows are skipped."""
    rows = [_parse_row(entry) for entry in as_list(document) if isinstance(entry, dict)]
    return tuple(row for row in rows if row is not None)[-_MAX_ROWS:]


def build_pictures(rows: Sequence[CreditRow]) -> list[CreditPicture]:
    """Builds the drawing data of these iterations, in their order."""
    return [_build_picture(row) for row in sorted(rows, key=lambda row: row.iteration) if any(_row_tokens(row))]


def _build_picture(row: CreditRow) -> CreditPicture:
    tokens = list(_row_tokens(row))
    heights = [0.0, *(level for entry in tokens for level in (entry.value, entry.returned) if level is not None)]
    groups = {entry.group for entry in row.episodes}
    return CreditPicture(
        row=row,
        reach=max((abs(entry.advantage) for entry in tokens if entry.advantage is not None), default=0.0),
        low=min(heights),
        high=max(heights),
        valued=any(entry.value is not None for entry in tokens),
        same=len(row.episodes) > 1 and len(groups) == 1,
    )


def _row_tokens(row: CreditRow) -> Iterator[CreditToken]:
    return (token for episode in row.episodes for turn in episode.turns for token in turn.tokens)


# ---------------------------------------------------------------- reading


def _parse_row(row: dict[str, object]) -> CreditRow | None:
    iteration = as_count(row.get("iteration"))
    if iteration is None:
        return None
    episodes = [
        _parse_episode(entry) for entry in as_list(row.get("episodes"))[:_MAX_EPISODES] if isinstance(entry, dict)
    ]
    return CreditRow(as_text(row.get("stage")), as_text(row.get("arm")), iteration, tuple(episodes))


def _parse_episode(row: dict[str, object]) -> CreditEpisode:
    turns = [_parse_turn(entry) for entry in as_list(row.get("turns"))[:_MAX_TURNS] if isinstance(entry, dict)]
    success = row.get("success")
    return CreditEpisode(
        task=as_text(row.get("task")),
        world=as_text(row.get("world")),
        tier=as_text(row.get("tier")),
        kind=as_text(row.get("kind")),
        success=success if isinstance(success, bool) else None,
        returned=as_number(row.get("return")),
        ended_by=as_text(row.get("ended_by")),
        group=as_count(row.get("group")) or 0,
        turns=tuple(turns),
        left=as_count(row.get("turns_left")) or 0,
    )


def _parse_turn(row: dict[str, object]) -> CreditTurn:
    tokens = [
        _parse_token(as_mapping(entry)) for entry in as_list(row.get("tokens"))[:_MAX_TOKENS] if isinstance(entry, dict)
    ]
    observation, reward = as_text(row.get("observation")), as_number(row.get("reward"))
    return CreditTurn(as_count(row.get("step")) or 0, observation, reward, tuple(tokens))


def _parse_token(row: object) -> CreditToken:
    fields = as_mapping(row)
    logp, advantage, returned, value = (
        as_number(fields.get(name)) for name in ("logp", "advantage", "return", "value")
    )
    return CreditToken(
        as_text(fields.get("text")), logp, advantage, returned, value, fields.get("learned") is not False
    )


# ---------------------------------------------------------------- drawing


def render_credit_tokens(turn: CreditTurn, picture: CreditPicture) -> Markup:
    """Renders the tokens of a turn in sequence; the value lines of neighbors meet, also across line breaks."""
    values = [token.value for token in turn.tokens]
    next_values = [*values[1:], values[-1] if values else None]
    token_spans = [_render_token(token, end, picture) for token, end in zip(turn.tokens, next_values, strict=True)]
    return Markup("").join(token_spans)


def build_credit_scale(picture: CreditPicture) -> list[tuple[str, float]]:
    """Returns the colors of the legend, each with its advantage."""
    steps = [number for number in range(-_SHADES, _SHADES + 1) if abs(number) in (0, 1, 3, _SHADES)]
    return [(_shade_class(number), picture.reach * number / _SHADES) for number in steps]


def show_blanks(text: str) -> str:
    """Returns a token's text with invisible blanks replaced by signs."""
    return text.translate(_BLANKS) if text.strip(" ") else "␣" * len(text) or "∅"


def _render_token(token: CreditToken, end: float | None, picture: CreditPicture) -> Markup:
    style = "unlearned" if not token.learned else _shade_class(_shade_level(token.advantage, picture.reach))
    strip = _draw_strip(token, end, picture) if picture.valued else Markup("")
    return Markup('<span class="credit {}" title="{}"><bdi>{}</bdi>{}</span>').format(
        style, show_hidden(_format_title(token)), mark_hidden(show_blanks(token.text), 80), strip
    )


def _shade_level(advantage: float | None, reach: float) -> int:
    """Returns -5..5, and 0 for advantages that are small beside the strongest."""
    if advantage is None or reach <= 0 or abs(advantage) < _MIN_SHADED_RATIO * reach:
        return 0
    level = min(_SHADES, ceil(_SHADES * abs(advantage) / reach))
    return level if advantage > 0 else -level


def _shade_class(shade: int) -> str:
    return "credit-0" if not shade else f"credit-{'up' if shade > 0 else 'down'} shade-{abs(shade)}"


def _format_title(token: CreditToken) -> str:
    parts = [] if token.advantage is None else [f"advantage {token.advantage:+.3g}"]
    for name, number in (("value", token.value), ("return", token.returned), ("p", token.probability)):
        parts += [] if number is None else [f"{name} {number:.3g}"]
    return ", ".join([*parts, *(() if token.learned else ("not learned",))]).replace("-", "−")


def _draw_strip(token: CreditToken, end: float | None, picture: CreditPicture) -> Markup:
    """Draws under a token the return as a dashed level, and the value from its prefix to the next prefix."""

    def y(level: float) -> float:
        value_range = picture.high - picture.low
        return (
            _STRIP_HEIGHT - 2 - (level - picture.low) / value_range * (_STRIP_HEIGHT - 4)
            if value_range > 0
            else _STRIP_HEIGHT / 2
        )

    parts = [f'<path class="grid" d="M0 {y(0.0):.1f}H10"/>']
    if token.returned is not None:
        parts.append(f'<path class="reference" d="M0 {y(token.returned):.1f}H10"/>')
    if token.value is not None:
        end_value = token.value if end is None else end
        parts.append(f'<path class="line arm-evolve" d="M0 {y(token.value):.1f}L10 {y(end_value):.1f}"/>')
    drawing = Markup("".join(parts))
    return Markup('<svg viewBox="0 0 10 22" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(drawing)
