"""The reward of a purchase, as published with WebShop (Yao et al. 2022, https://arxiv.org/abs/2207.01206).

    r = r_type * (matched attributes + matched options + [price is low enough]) / (attributes + options + 1)

    r_type = 1    the same query, or two categories in common, or more than 0.2 of the goal's title nouns
             0.5  none of these
             0.1  fewer than 0.1 of the nouns
             0    none of the nouns

An attribute matches one of the product's whose `token_set_ratio` is above 85, or occurs in title, features or
description. A chosen option matches a wanted one likewise, a size only if it is equal, and colors by their basic color;
one that occurs in the product's texts counts too. The original counts chosen options without a limit, so that its sum
can exceed 1; here at most as many count as are wanted. It finds nouns by a parser; a generated title's are the words of
its kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

__all__ = [
    "Goal",
    "Purchase",
    "RewardParts",
    "compute_reward",
    "compute_type_reward",
    "count_attributes",
    "count_options",
    "normalize_color",
    "token_set_ratio",
]

_MIN_RATIO = 85
_EXACT_KEYS = ("size",)
_COLORS = (
    "beige",
    "black",
    "blue",
    "brown",
    "gold",
    "green",
    "grey",
    "ivory",
    "navy",
    "orange",
    "pink",
    "purple",
    "red",
    "silver",
    "teal",
    "white",
    "yellow",
)
_OTHER_CHARACTERS = re.compile(r"[\W_]+")


class Purchase(Protocol):
    """The members of a product that the reward reads."""

    @property
    def query(self) -> str:
        """The search that the product belongs to."""
        ...

    @property
    def path(self) -> Sequence[str]:
        """Its categories."""
        ...

    @property
    def nouns(self) -> Sequence[str]:
        """The nouns of its title, in lower case."""
        ...

    @property
    def attributes(self) -> Sequence[str]:
        """Its attributes."""
        ...

    @property
    def title(self) -> str:
        """Its title."""
        ...

    @property
    def features(self) -> Sequence[str]:
        """Its features."""
        ...

    @property
    def description(self) -> str:
        """Its description."""
        ...


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal.

    Args:
        query, path, nouns: the kind of product that is wanted.
        attributes: the attributes that are wanted, at least one.
        options: the options that are wanted, key -> value.
        max_price: highest price in dollars.
    """

    query: str
    path: Sequence[str]
    nouns: Sequence[str]
    attributes: Sequence[str]
    options: Mapping[str, str]
    max_price: float


@dataclass(frozen=True, slots=True)
class RewardParts:
    """The parts of a reward.

    Args:
        type_reward: 1, 0.5, 0.1 or 0.
        num_attributes, num_options: numbers of matches.
        is_price_ok: the price is low enough.
        total: the reward.
    """

    type_reward: float
    num_attributes: int
    num_options: int
    is_price_ok: bool
    total: float


def compute_reward(purchase: Purchase, goal: Goal, *, price: float, options: Mapping[str, str]) -> RewardParts:
    """Computes the reward of buying a product.

    Args:
        purchase: the product.
        goal: the goal.
        price: the price in dollars.
        options: the chosen options, key -> value.

    Two attributes and one option are wanted; one attribute, the option and the price are right: 3 of 4.

    >>> from evolvent.worlds.shop.products import load_catalogue
    >>> lamp = load_catalogue().by_kind["headlamp"][0]
    >>> goal = Goal(lamp.query, lamp.path, lamp.nouns, (lamp.attributes[0], "made of cheese"), {"color": "red"}, 500.0)
    >>> compute_reward(lamp, goal, price=25.0, options={"color": "red"}).total
    0.75
    """
    type_reward = compute_type_reward(purchase, goal)
    num_attributes = count_attributes(purchase, goal.attributes)
    num_options = count_options(purchase, tuple(goal.options.values()), options)
    is_price_ok = price <= goal.max_price
    share = (num_attributes + num_options + is_price_ok) / (len(goal.attributes) + len(goal.options) + 1)
    return RewardParts(type_reward, num_attributes, num_options, is_price_ok, type_reward * share)


def compute_type_reward(purchase: Purchase, goal: Goal) -> float:
    """Computes whether a product is of the wanted type: 1, 0.5, 0.1 or 0."""
    goal_nouns = list(goal.nouns)
    overlap = len({*purchase.nouns} & {*goal_nouns}) / len(goal_nouns) if goal_nouns else 0.2
    if overlap == 0.0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    shares_categories = len({*purchase.path} & {*goal.path}) >= 2
    return 1.0 if purchase.query == goal.query or shares_categories or overlap > 0.2 else 0.5


def count_attributes(purchase: Purchase, wishes: Sequence[str]) -> int:
    """Counts the wanted attributes that a product has."""
    return sum(
        any(token_set_ratio(attribute, wish) > _MIN_RATIO for attribute in purchase.attributes)
        or _occurs_in_texts(purchase, wish)
        for wish in wishes
    )


def count_options(purchase: Purchase, wishes: Sequence[str], options: Mapping[str, str]) -> int:
    """Counts the chosen options that are wanted, at most as many as are wanted."""
    normalized_wishes = [normalize_color(wish) for wish in wishes]
    num_matches = 0
    for key, value in options.items():
        color = normalize_color(value)
        if key.lower() in _EXACT_KEYS:
            matches = color in normalized_wishes
        else:
            matches = any(token_set_ratio(wish, color) > _MIN_RATIO for wish in normalized_wishes)
        num_matches += matches or _occurs_in_texts(purchase, color)
    return min(num_matches, len(normalized_wishes))


def _occurs_in_texts(purchase: Purchase, text: str) -> bool:
    return (
        text in purchase.title.lower()
        or text in " ".join(purchase.features).lower()
        or text in purchase.description.lower()
    )


def normalize_color(text: str) -> str:
    """Returns the first basic color among the words of an option, else the option itself.

    >>> normalize_color("dark blue"), normalize_color("x-large")
    ('blue', 'x-large')
    """
    text_words = text.split()
    return next((color for color in _COLORS if color in text_words), text)


@lru_cache(maxsize=4096)
def token_set_ratio(first: str, second: str) -> int:
    """Compares the words of two texts as sets, 0 to 100: 100 if all words of one are words of the other.

    With s the sorted common words and a, b these followed by the other words of each text, it is the highest ratio of
    (s, a), (s, b) and (a, b), where ratio(x, y) = 100 * 2 * (longest common subsequence) / (|x| + |y|).

    >>> token_set_ratio("essential oils", "essential oil"), token_set_ratio("powder snow", "cool powder snow")
    (96, 100)
    """
    first_words, second_words = _split(first), _split(second)
    if not first_words or not second_words:
        return 0
    common = first_words & second_words
    if common and (first_words == common or second_words == common):
        return 100
    prefix = " ".join(sorted(common))
    longer = [" ".join(filter(None, (prefix, *sorted(word_set - common)))) for word_set in (first_words, second_words)]
    ratios = [_ratio(*longer)]
    ratios += [_ratio(prefix, text) for text in longer] if prefix else []
    return max(ratios)


def _split(text: str) -> set[str]:
    return set(_OTHER_CHARACTERS.sub(" ", text.lower()).split())


def _ratio(first: str, second: str) -> int:
    """Returns twice the length of the longest common subsequence as a percentage of both lengths, rounded."""
    lengths = [0] * (len(second) + 1)
    for left in first:
        diagonal = 0
        for column, right in enumerate(second, 1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if left == right else max(above, lengths[column - 1])
            diagonal = above
    return round(200 * lengths[-1] / (len(first) + len(second)))
