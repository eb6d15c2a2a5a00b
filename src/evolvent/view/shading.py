"""Coloring of tokens: by the policy's uncertainty, by credit or value, or by the scores of annotations.

Color is never alone: a title has the numbers, and an underline the sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, isfinite, log
from typing import Any

from markupsafe import Markup

from evolvent.trajectory import Annotation, Generation, Trajectory
from evolvent.view.credit import CreditPicture, CreditToken, CreditTurn, parse_credit, render_credit_tokens, show_blanks
from evolvent.view.escape import mark_hidden, show_hidden
from evolvent.view.values import as_list, as_mapping

__all__ = ["TokenColoring", "find_colorings", "find_credit", "has_logprobs", "shade_tokens"]

_UNSURE = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a token changes, as in the report
_SHADES = 5
_SILENT = 0.04  # share of the largest number below which a token has no color

Numbers = Mapping[tuple[int, int], Mapping[int, float]]
Texts = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True, slots=True)
class TokenColoring:
    """A way to color the tokens of a trajectory.

    Args:
        name: in addresses. label: for people. caption: a line beside the legend.
        has_numbers: whether the tokens have numbers to be colored by; otherwise the caption stands alone.
        numbers: (step, generation of the step) -> token -> its number.
        reach: the largest absolute number, which has the strongest color.
        turns: step -> its tokens as the run stored them, where colors come from there. picture: their scales.
    """

    name: str
    label: str
    caption: str = ""
    numbers: Numbers = field(default_factory=dict)
    reach: float = 0.0
    turns: Mapping[int, CreditTurn] = field(default_factory=dict)
    picture: CreditPicture | None = None
    has_numbers: bool = True

    @property
    def spelled(self) -> bool:
        """Returns whether token texts are known without a tokenizer."""
        return bool(self.turns)

    def scale(self) -> list[tuple[str, float]]:
        """Returns the colors of the legend, each with its number."""
        has_negative = (
            any(number < 0 for token_numbers in self.numbers.values() for number in token_numbers.values())
            or self.picture is not None
        )
        steps = [
            step
            for step in range(-_SHADES, _SHADES + 1)
            if abs(step) in (0, 1, 3, _SHADES) and (has_negative or step >= 0)
        ]
        return [(_shade_class(step), self.reach * step / _SHADES) for step in steps]


def find_colorings(
    trajectory: Trajectory, annotations: Sequence[Annotation], credit: Mapping[int, CreditTurn]
) -> list[TokenColoring]:
    """Returns the ways in which the tokens of a trajectory can be colored; none where it has no tokens."""
    if not any(step.generations for step in trajectory.steps):
        return []
    generations = [generation for step in trajectory.steps for generation in step.generations]
    has_numbers = any(map(has_logprobs, generations))
    caption = "" if has_numbers else "played at temperature 0: how sure the policy was is not stored"
    if any(generation.model_logprobs is not None for generation in generations):
        caption = "(at temperature 1; tokens were chosen at temperature 0)"
    colorings = [TokenColoring("logprob", "log-probability", caption, has_numbers=has_numbers)]
    colorings += _credit_colorings(credit)
    scorers: dict[str, list[Annotation]] = {}
    for note in annotations:
        if isinstance(note.value, (int, float)) and isfinite(note.value):
            scorers.setdefault(note.scorer, []).append(note)
    for scorer, notes in scorers.items():
        numbers = _spread_notes(trajectory, notes)
        reach = max((abs(value) for token_numbers in numbers.values() for value in token_numbers.values()), default=0.0)
        if numbers:
            colorings.append(TokenColoring(f"@{scorer}", scorer, f"as {scorer} noted", numbers, reach))
    return colorings


def has_logprobs(generation: Generation) -> bool:
    """Tells whether log-probabilities say something: those of the sampling distribution are 0 at temperature 0."""
    return bool(generation.informative_logprobs[generation.sampled].any())


def find_credit(document: object, traj: str) -> dict[int, CreditTurn]:
    """Returns step (from 0) -> tokens with credit of a trajectory in `credit.json`, from the newest iteration that
    has it.
    """
    for row in reversed([as_mapping(entry) for entry in as_list(document)]):
        episodes = [entry for entry in as_list(row.get("episodes")) if as_mapping(entry).get("trajectory") == traj]
        for credited in parse_credit([{**row, "episodes": episodes[:1]}]) if episodes else ():
            return {max(0, turn.step - 1): turn for episode in credited.episodes for turn in episode.turns}
    return {}


def shade_tokens(
    generation: Generation, position: tuple[int, int], *, coloring: TokenColoring, texts: Texts, max_tokens: int
) -> Markup:
    """Renders the tokens of a generation, each colored, at most `max_tokens`.

    Args:
        position: its step, and its index in the step. texts: converts ids to texts.
    """
    turn = coloring.turns.get(position[0])
    if turn is not None and position[1] == 0 and coloring.picture is not None:
        return render_credit_tokens(turn, coloring.picture)
    ids = generation.ids[:max_tokens].tolist()
    numbers = coloring.numbers.get(position, {})
    if turn is not None:
        numbers = {token_index: token.value for token_index, token in enumerate(turn.tokens) if token.value is not None}
        return _join_spans(
            [
                _render_token(token.text, True, token.logp, numbers.get(token_index), coloring)
                for token_index, token in enumerate(turn.tokens)
            ]
        )
    logprobs: list[float | None] = (
        [*generation.informative_logprobs.tolist()] if has_logprobs(generation) else [None] * len(ids)
    )
    rows = zip(texts(ids), generation.sampled.tolist(), logprobs, range(len(ids)), strict=False)
    token_spans = [
        _render_token(text, sampled, logp, numbers.get(token_index), coloring)
        for text, sampled, logp, token_index in rows
    ]
    num_omitted = len(generation.ids) - len(ids)
    return _join_spans(token_spans) + (
        Markup(" <em>{} more</em>").format(num_omitted) if num_omitted > 0 else Markup("")
    )


def _join_spans(token_spans: Sequence[Markup]) -> Markup:
    return Markup("").join(token_spans)


def _render_token(
    text: str, sampled: bool, logp: float | None, number: float | None, coloring: TokenColoring
) -> Markup:
    facts = [] if number is None else [f"{coloring.label} {number:.4g}"]
    facts += [f"log p {logp:.3f}, p {exp(min(logp, 0.0)):.2g}"] if sampled and logp is not None else []
    if coloring.name == "logprob":
        style = f"unsure-{sum(logp is not None and logp < log(chance) for chance in _UNSURE)}" if sampled else "read"
    else:
        shade = _shade_class(_shade_level(number, coloring.reach)) if number is not None else "credit-0"
        style = f"credit {shade}" if sampled or number is not None else "credit credit-0 unlearned"
    title = Markup(' title="{}"').format(show_hidden(", ".join(facts)).replace("-", "−")) if facts else Markup("")
    return Markup('<span class="{}"{}><bdi>{}</bdi></span>').format(style, title, mark_hidden(show_blanks(text), 80))


def _shade_level(number: float, reach: float) -> int:
    if reach <= 0 or abs(number) < _SILENT * reach:
        return 0
    level = min(_SHADES, ceil(_SHADES * abs(number) / reach))
    return level if number > 0 else -level


def _shade_class(shade: int) -> str:
    return "credit-0" if not shade else f"credit-{'up' if shade > 0 else 'down'} shade-{abs(shade)}"


# ---------------------------------------------------------------------- where numbers come from


def _credit_colorings(turns: Mapping[int, CreditTurn]) -> list[TokenColoring]:
    """Returns the colorings by credit and value of a trajectory whose credit the run stored."""
    tokens = [token for turn in turns.values() for token in turn.tokens]
    if not tokens:
        return []
    reach = _max_abs(token.advantage for token in tokens)
    caption = "the line below is the value of what was written so far"
    colorings = [TokenColoring("credit", "credit", caption, reach=reach, turns=turns, picture=_build_picture(tokens))]
    if any(token.value is not None for token in tokens):
        numbers = {
            (step, 0): {
                token_index: token.value for token_index, token in enumerate(turn.tokens) if token.value is not None
            }
            for step, turn in turns.items()
        }
        reach = _max_abs(token.value for token in tokens)
        colorings.append(TokenColoring("value", "value", "of what was written before the token", numbers, reach, turns))
    return colorings


def _max_abs(numbers: Any) -> float:
    return max((abs(number) for number in numbers if number is not None), default=0.0)


def _build_picture(tokens: Sequence[CreditToken]) -> CreditPicture | None:
    row = parse_credit([{"iteration": 0, "episodes": []}])[0]
    levels = [
        0.0,
        *(
            level
            for credit_token in tokens
            for level in (credit_token.value, credit_token.returned)
            if level is not None
        ),
    ]
    return CreditPicture(
        row,
        _max_abs(token.advantage for token in tokens),
        min(levels),
        max(levels),
        any(token.value is not None for token in tokens),
        False,
    )


def _spread_notes(trajectory: Trajectory, notes: Sequence[Annotation]) -> dict[tuple[int, int], dict[int, float]]:
    """Assigns a scorer's annotations to the sampled tokens that each is about; finer annotations take precedence."""
    numbers_per_generation: dict[tuple[int, int], dict[int, float]] = {}
    for note in sorted(notes, key=_specificity):
        step_target = note.target.step
        for step in (
            range(len(trajectory.steps))
            if step_target is None
            else [step_target]
            if 0 <= step_target < len(trajectory.steps)
            else []
        ):
            for number, generation in enumerate(trajectory.steps[step].generations):
                if note.target.generation in (None, number):
                    tokens = _target_tokens(generation, note)
                    value = float(note.value)  # type: ignore[arg-type]
                    numbers_per_generation.setdefault((step, number), {}).update(dict.fromkeys(tokens, value))
    return {step_target: numbers for step_target, numbers in numbers_per_generation.items() if numbers}


def _specificity(note: Annotation) -> int:
    """Returns how specific the target is: 4 for a token, 3 a span, 2 a generation, 1 a step, 0 the trajectory."""
    target = note.target
    levels = ((4, target.token), (3, target.span), (2, target.generation), (1, target.step))
    return next((level for level, index in levels if index is not None), 0)


def _target_tokens(generation: Generation, note: Annotation) -> list[int]:
    """Returns the indices of the sampled tokens of a generation that an annotation is about."""
    size, target = len(generation.ids), note.target
    if target.token is not None:
        return [target.token] if 0 <= target.token < size else []
    begin, end = 0, size
    if target.span is not None:
        if not 0 <= target.span < len(generation.spans):
            return []
        begin = generation.spans[target.span - 1] if target.span else 0
        end = generation.spans[target.span]
    return [token_index for token_index in range(begin, min(end, size)) if generation.sampled[token_index]]
