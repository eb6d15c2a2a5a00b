"""Tokens coloured: by how unsure the policy was, by credit or value, or by whatever a scorer noted about them.

Colour is never alone: a title has the numbers, and an underline the sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, isfinite, log
from typing import Any

from markupsafe import Markup

from evolvent.trajectory import Annotation, Generation, Trajectory
from evolvent.view.credit import CreditToken, CreditTurn, Picture, credit_tokens, read_credit, shown_text
from evolvent.view.escape import marked, plain
from evolvent.view.values import as_list, as_mapping

__all__ = ["Colour", "colours_of", "credit_of", "shaded"]

_UNSURE = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a token changes, as in the report
_SHADES = 5
_SILENT = 0.04  # share of the largest number below which a token has no colour

Numbers = Mapping[tuple[int, int], Mapping[int, float]]
Texts = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, slots=True)
class Colour:
    """What tokens are coloured by.

    Args:
        name: in addresses. label: for people. told: a line beside the legend.
        numbers: (step, generation of the step) -> token -> its number.
        reach: the largest number, up or down, which has the strongest colour.
        turns: step -> its tokens as the run has kept them, where colours come from there. picture: their scales.
    """

    name: str
    label: str
    told: str = ""
    numbers: Numbers = field(default_factory=dict)
    reach: float = 0.0
    turns: Mapping[int, CreditTurn] = field(default_factory=dict)
    picture: Picture | None = None

    @property
    def spelled(self) -> bool:
        """Whether texts of tokens are known without a tokenizer."""
        return bool(self.turns)

    def scale(self) -> list[tuple[str, float]]:
        """The colours of the legend, each with the number that it stands for."""
        low = any(number < 0 for one in self.numbers.values() for number in one.values()) or self.picture is not None
        steps = [
            step for step in range(-_SHADES, _SHADES + 1) if abs(step) in (0, 1, 3, _SHADES) and (low or step >= 0)
        ]
        return [(_style(step), self.reach * step / _SHADES) for step in steps]


def colours_of(one: Trajectory, annotations: Sequence[Annotation], credit: Mapping[int, CreditTurn]) -> list[Colour]:
    """The ways in which the tokens of a trajectory can be coloured; none where it has no tokens."""
    if not any(step.generations for step in one.steps):
        return []
    found = [Colour("logprob", "log-probability")]
    found += _kept(credit)
    scorers: dict[str, list[Annotation]] = {}
    for note in annotations:
        if isinstance(note.value, (int, float)) and isfinite(note.value):
            scorers.setdefault(note.scorer, []).append(note)
    for scorer, notes in scorers.items():
        numbers = _numbers(one, notes)
        reach = max((abs(value) for each in numbers.values() for value in each.values()), default=0.0)
        if numbers:
            found.append(Colour(f"@{scorer}", scorer, f"as {scorer} noted", numbers, reach))
    return found


def credit_of(document: object, traj: str) -> dict[int, CreditTurn]:
    """Step (from 0) -> tokens with their credit, of a trajectory in `credit.json`; the newest iteration that has it."""
    for row in reversed([as_mapping(one) for one in as_list(document)]):
        own = [one for one in as_list(row.get("episodes")) if as_mapping(one).get("trajectory") == traj]
        for found in read_credit([{**row, "episodes": own[:1]}]) if own else ():
            return {max(0, turn.step - 1): turn for episode in found.episodes for turn in episode.turns}
    return {}


def shaded(generation: Generation, at: tuple[int, int], *, colour: Colour, texts: Texts, most: int) -> Markup:
    """The tokens of a generation, each coloured, at most so many.

    Args:
        at: its step, and its place in the step. texts: what ids say.
    """
    turn = colour.turns.get(at[0])
    if turn is not None and at[1] == 0 and colour.picture is not None:
        return credit_tokens(turn, colour.picture)
    ids = generation.ids[:most].tolist()
    numbers = colour.numbers.get(at, {})
    if turn is not None:
        numbers = {place: token.value for place, token in enumerate(turn.tokens) if token.value is not None}
        return _joined(
            [
                _drawn(token.text, True, token.logp, numbers.get(place), colour)
                for place, token in enumerate(turn.tokens)
            ]
        )
    rows = zip(texts(ids), generation.sampled.tolist(), generation.logprobs.tolist(), range(len(ids)), strict=False)
    drawn = [_drawn(text, sampled, logp, numbers.get(place), colour) for text, sampled, logp, place in rows]
    left = len(generation.ids) - len(ids)
    return _joined(drawn) + (Markup(" <em>{} more</em>").format(left) if left > 0 else Markup(""))


def _joined(drawn: Sequence[Markup]) -> Markup:
    return Markup("").join(drawn)


def _drawn(text: str, sampled: bool, logp: float | None, number: float | None, colour: Colour) -> Markup:
    told = [] if number is None else [f"{colour.label} {number:.4g}"]
    told += [f"log p {logp:.3f}, p {exp(min(logp, 0.0)):.2g}"] if sampled and logp is not None else []
    if colour.name == "logprob":
        style = "read" if not sampled or logp is None else f"unsure-{sum(logp < log(chance) for chance in _UNSURE)}"
    else:
        shade = _style(_shade(number, colour.reach)) if number is not None else "credit-0"
        style = f"credit {shade}" if sampled or number is not None else "credit credit-0 unlearned"
    title = Markup(' title="{}"').format(plain(", ".join(told)).replace("-", "−")) if told else Markup("")
    return Markup('<span class="{}"{}><bdi>{}</bdi></span>').format(style, title, marked(shown_text(text), 80))


def _shade(number: float, reach: float) -> int:
    if reach <= 0 or abs(number) < _SILENT * reach:
        return 0
    size = min(_SHADES, ceil(_SHADES * abs(number) / reach))
    return size if number > 0 else -size


def _style(shade: int) -> str:
    return "credit-0" if not shade else f"credit-{'up' if shade > 0 else 'down'} shade-{abs(shade)}"


# ---------------------------------------------------------------------- where numbers come from


def _kept(turns: Mapping[int, CreditTurn]) -> list[Colour]:
    """Credit and value, of a trajectory whose credit the run has kept."""
    tokens = [token for turn in turns.values() for token in turn.tokens]
    if not tokens:
        return []
    reach = _reach(token.advantage for token in tokens)
    told = "the line below is the value of what was written so far"
    found = [Colour("credit", "credit", told, reach=reach, turns=turns, picture=_picture(tokens))]
    if any(token.value is not None for token in tokens):
        numbers = {
            (step, 0): {place: token.value for place, token in enumerate(turn.tokens) if token.value is not None}
            for step, turn in turns.items()
        }
        reach = _reach(token.value for token in tokens)
        found.append(Colour("value", "value", "of what was written before the token", numbers, reach, turns))
    return found


def _reach(numbers: Any) -> float:
    return max((abs(number) for number in numbers if number is not None), default=0.0)


def _picture(tokens: Sequence[CreditToken]) -> Picture | None:
    row = read_credit([{"iteration": 0, "episodes": []}])[0]
    levels = [0.0, *(level for one in tokens for level in (one.value, one.returned) if level is not None)]
    return Picture(
        row,
        _reach(token.advantage for token in tokens),
        min(levels),
        max(levels),
        any(token.value is not None for token in tokens),
        False,
    )


def _numbers(one: Trajectory, notes: Sequence[Annotation]) -> dict[tuple[int, int], dict[int, float]]:
    """What a scorer noted, carried down to the sampled tokens that each note is about; finer notes go first."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for note in sorted(notes, key=_fineness):
        at = note.place.step
        for step in range(len(one.steps)) if at is None else [at] if 0 <= at < len(one.steps) else []:
            for number, generation in enumerate(one.steps[step].generations):
                if note.place.generation in (None, number):
                    tokens = _tokens(generation, note)
                    found.setdefault((step, number), {}).update(dict.fromkeys(tokens, float(note.value)))  # type: ignore[arg-type]
    return {at: numbers for at, numbers in found.items() if numbers}


def _fineness(note: Annotation) -> int:
    """How small a place a note is about: 4 a token, 3 a span, 2 a generation, 1 a step, 0 all of it."""
    place = note.place
    places = ((4, place.token), (3, place.span), (2, place.generation), (1, place.step))
    return next((size for size, at in places if at is not None), 0)


def _tokens(generation: Generation, note: Annotation) -> list[int]:
    """The sampled tokens of a generation that a note is about."""
    size, place = len(generation.ids), note.place
    if place.token is not None:
        return [place.token] if 0 <= place.token < size else []
    begin, end = 0, size
    if place.span is not None:
        if not 0 <= place.span < len(generation.spans):
            return []
        begin = generation.spans[place.span - 1] if place.span else 0
        end = generation.spans[place.span]
    return [at for at in range(begin, min(end, size)) if generation.sampled[at]]
