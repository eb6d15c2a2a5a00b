"""Credit on the page: every token of an action coloured by its advantage, the value of its prefix as a line under it.

Read from `credit.json`, which is trusted as little as any other file. Colour is never alone: an underline says the
sign, a title the numbers, and a table has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, exp

from markupsafe import Markup

from evolvent.view.escape import marked, plain
from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_text

__all__ = [
    "CreditEpisode",
    "CreditToken",
    "CreditTurn",
    "Credited",
    "Picture",
    "credit_scale",
    "credit_tokens",
    "pictures",
    "read_credit",
]

_ROWS, _EPISODES, _TURNS, _TOKENS = 24, 2, 64, 400  # most of each that are read
_SHADES = 5
_SILENT = 0.04  # share of the strongest credit below which a token has no colour
_HIGH = 22.0  # of a strip, whose width is 10
_BLANKS = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "↵"})


@dataclass(frozen=True, slots=True)
class CreditToken:
    """One token of an action; numbers are None where they are not known. `logp` is natural, of the old policy."""

    text: str
    logp: float | None
    advantage: float | None
    returned: float | None
    value: float | None
    learned: bool

    @property
    def probability(self) -> float | None:
        """Of the token where it was sampled."""
        return None if self.logp is None else exp(min(self.logp, 0.0))


@dataclass(frozen=True, slots=True)
class CreditTurn:
    """One action: the step of its episode (from 1), what was observed before it, and the reward that followed."""

    step: int
    observation: str
    reward: float | None
    tokens: tuple[CreditToken, ...]


@dataclass(frozen=True, slots=True)
class CreditEpisode:
    """One episode; `left` turns are not in the file."""

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
class Credited:
    """What was kept of an iteration."""

    stage: str
    arm: str
    iteration: int
    episodes: tuple[CreditEpisode, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """An iteration's credit as it is drawn.

    Attributes:
        reach: the largest advantage, which has the strongest colour. low, high: ends of the scale of the value line.
        valued: whether there are values. same: whether its episodes are of one task.
    """

    row: Credited
    reach: float
    low: float
    high: float
    valued: bool
    same: bool


def read_credit(document: object) -> tuple[Credited, ...]:
    """The rows of `credit.json`; those that are none are passed over."""
    rows = [_row(one) for one in as_list(document) if isinstance(one, dict)]
    return tuple(row for row in rows if row is not None)[-_ROWS:]


def pictures(rows: Sequence[Credited]) -> list[Picture]:
    """What is drawn of these iterations, in their order."""
    return [_picture(row) for row in sorted(rows, key=lambda row: row.iteration) if any(_tokens(row))]


def _picture(row: Credited) -> Picture:
    tokens = list(_tokens(row))
    levels = [0.0, *(level for one in tokens for level in (one.value, one.returned) if level is not None)]
    groups = {one.group for one in row.episodes}
    return Picture(
        row=row,
        reach=max((abs(one.advantage) for one in tokens if one.advantage is not None), default=0.0),
        low=min(levels),
        high=max(levels),
        valued=any(one.value is not None for one in tokens),
        same=len(row.episodes) > 1 and len(groups) == 1,
    )


def _tokens(row: Credited) -> Iterator[CreditToken]:
    return (token for episode in row.episodes for turn in episode.turns for token in turn.tokens)


# ---------------------------------------------------------------- reading


def _row(row: dict[str, object]) -> Credited | None:
    iteration = as_count(row.get("iteration"))
    if iteration is None:
        return None
    episodes = [_episode(one) for one in as_list(row.get("episodes"))[:_EPISODES] if isinstance(one, dict)]
    return Credited(as_text(row.get("stage")), as_text(row.get("arm")), iteration, tuple(episodes))


def _episode(row: dict[str, object]) -> CreditEpisode:
    turns = [_turn(one) for one in as_list(row.get("turns"))[:_TURNS] if isinstance(one, dict)]
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


def _turn(row: dict[str, object]) -> CreditTurn:
    tokens = [_token(as_mapping(one)) for one in as_list(row.get("tokens"))[:_TOKENS] if isinstance(one, dict)]
    observation, reward = as_text(row.get("observation")), as_number(row.get("reward"))
    return CreditTurn(as_count(row.get("step")) or 0, observation, reward, tuple(tokens))


def _token(row: object) -> CreditToken:
    said = as_mapping(row)
    logp, advantage, returned, value = (as_number(said.get(name)) for name in ("logp", "advantage", "return", "value"))
    return CreditToken(as_text(said.get("text")), logp, advantage, returned, value, said.get("learned") is not False)


# ---------------------------------------------------------------- drawing


def credit_tokens(turn: CreditTurn, picture: Picture) -> Markup:
    """A turn's tokens one after another; the value lines of neighbours meet, also where a line of text ends."""
    values = [token.value for token in turn.tokens]
    ends = [*values[1:], values[-1] if values else None]
    drawn = [_drawn(token, end, picture) for token, end in zip(turn.tokens, ends, strict=True)]
    return Markup("").join(drawn)


def credit_scale(picture: Picture) -> list[tuple[str, float]]:
    """The colours of the legend, each with the advantage that it stands for."""
    steps = [number for number in range(-_SHADES, _SHADES + 1) if abs(number) in (0, 1, 3, _SHADES)]
    return [(_style(number), picture.reach * number / _SHADES) for number in steps]


def shown_text(text: str) -> str:
    """A token's text, blanks that would not be seen as signs."""
    return text.translate(_BLANKS) if text.strip(" ") else "␣" * len(text) or "∅"


def _drawn(token: CreditToken, end: float | None, picture: Picture) -> Markup:
    style = "unlearned" if not token.learned else _style(_shade(token.advantage, picture.reach))
    strip = _strip(token, end, picture) if picture.valued else Markup("")
    return Markup('<span class="credit {}" title="{}"><bdi>{}</bdi>{}</span>').format(
        style, plain(_title(token)), marked(shown_text(token.text), 80), strip
    )


def _shade(advantage: float | None, reach: float) -> int:
    """-5..5, 0 for what is small beside the strongest."""
    if advantage is None or reach <= 0 or abs(advantage) < _SILENT * reach:
        return 0
    size = min(_SHADES, ceil(_SHADES * abs(advantage) / reach))
    return size if advantage > 0 else -size


def _style(shade: int) -> str:
    return "credit-0" if not shade else f"credit-{'up' if shade > 0 else 'down'} shade-{abs(shade)}"


def _title(token: CreditToken) -> str:
    parts = [] if token.advantage is None else [f"advantage {token.advantage:+.3g}"]
    for name, number in (("value", token.value), ("return", token.returned), ("p", token.probability)):
        parts += [] if number is None else [f"{name} {number:.3g}"]
    return ", ".join([*parts, *(() if token.learned else ("not learned",))]).replace("-", "−")


def _strip(token: CreditToken, end: float | None, picture: Picture) -> Markup:
    """Under a token: the return as a dashed level, and the value from its prefix to the next one."""

    def y(level: float) -> float:
        whole = picture.high - picture.low
        return _HIGH - 2 - (level - picture.low) / whole * (_HIGH - 4) if whole > 0 else _HIGH / 2

    parts = [f'<path class="grid" d="M0 {y(0.0):.1f}H10"/>']
    if token.returned is not None:
        parts.append(f'<path class="reference" d="M0 {y(token.returned):.1f}H10"/>')
    if token.value is not None:
        ended = token.value if end is None else end
        parts.append(f'<path class="line arm-evolve" d="M0 {y(token.value):.1f}L10 {y(ended):.1f}"/>')
    drawing = Markup("".join(parts))
    return Markup('<svg viewBox="0 0 10 22" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(drawing)
