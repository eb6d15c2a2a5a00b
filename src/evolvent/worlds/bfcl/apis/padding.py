"""Padding of the long-context items: text after every file, empty files, and unrequested lists and records.

The gold answers of a few items quote the text and the names of the files, so those two are read from the data set
itself (see `evolvent.worlds.bfcl.multi_turn.find_padding`). Everything else only has to be long, and equal in the gold
run and in the judged run: it is generated here from fixed seeds, about as long as the leaderboard's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

from evolvent.trajectory import JsonObject, sample_rng

__all__ = ["SHORT_FILES", "Padding"]

SHORT_FILES = frozenset(
    {
        "log.txt",
        "report.txt",
        "report.csv",
        "DataSet1.csv",
        "file1.txt",
        "finance_report.txt",
        "config.py",
        "Q4_summary.doc",
        "file3.txt",
    }
)
"""Files of which items ask for the last lines; the leaderboard appends nothing to them."""

_WORDS = (
    "the",
    "of",
    "a",
    "report",
    "year",
    "team",
    "market",
    "growth",
    "result",
    "region",
    "steady",
    "plan",
    "cost",
    "and",
    "figure",
    "shows",
    "remains",
    "strong",
    "value",
    "service",
    "change",
    "before",
    "after",
    "several",
    "part",
    "new",
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TOWNS = ("New", "Old", "Fort", "Lake", "Port", "East", "West"), ("ham", "ton", "field", "burg", "ford", "mouth")
_STEMS = ("Ash", "Birch", "Clay", "Elm", "Fern", "Glen", "Holly", "Ivy", "Lark", "Mill", "Oak", "Stone", "Wren")
_CODES = ("SFO", "LAX", "JFK", "ORD", "BOS")


@cache
def _generate_prose(topic: str, length: int) -> str:
    """Generates `length` characters of meaningless words."""
    rng = sample_rng("bfcl", "padding", topic)
    word_indices = rng.integers(0, len(_WORDS), size=length)
    return " ".join(_WORDS[int(word_index)] for word_index in word_indices)[: length - 1] + "."


def _generate_file_names() -> tuple[str, ...]:
    rng = sample_rng("bfcl", "padding", "files")
    return tuple(f"image_{int(number)}.jpg" for number in rng.integers(10**17, 9 * 10**18, size=30))


@cache
def _generate_numbers(topic: str, count: int) -> tuple[float, ...]:
    return tuple(round(float(value), 2) for value in sample_rng("bfcl", "padding", topic).uniform(200, 250, size=count))


@cache
def _generate_symbols(topic: str, count: int) -> tuple[str, ...]:
    rng = sample_rng("bfcl", "padding", topic)
    rows, sizes = rng.integers(0, 26, size=(count, 5)), rng.integers(1, 6, size=count)
    return tuple(
        "".join(_LETTERS[letter_index] for letter_index in row[:size]) for row, size in zip(rows, sizes, strict=True)
    )


@dataclass(frozen=True)
class Padding:
    """Padding of the items of long context.

    Args:
        text: follows the content of every file, except for `SHORT_FILES`.
        files: names of the empty files in every directory without subdirectories.
    """

    text: str = field(default_factory=lambda: _generate_prose("text", 3251))
    files: tuple[str, ...] = field(default_factory=_generate_file_names)

    def __deepcopy__(self, memo: dict[int, object]) -> Padding:
        """Returns itself: it never changes, so a snapshot of an episode need not copy it."""
        return self

    def prose(self, topic: str, length: int) -> str:
        """Returns a text of `length` characters, the same for the same topic."""
        return _generate_prose(topic, length)

    def numbers(self, topic: str, count: int) -> list[float]:
        """Returns numbers between 200 and 250 with two decimals."""
        return list(_generate_numbers(topic, count))

    def symbols(self, topic: str, count: int) -> list[str]:
        """Returns symbols of invented stocks: one to five capital letters."""
        return list(_generate_symbols(topic, count))

    @cached_property
    def transactions(self) -> list[dict[str, object]]:
        """Returns a thousand deposits and withdrawals of the previous year."""
        rng = sample_rng("bfcl", "padding", "transactions")
        kinds, amounts = rng.integers(0, 2, size=1000), rng.uniform(1, 10_000, size=1000)
        samples = zip(kinds, amounts, rng.integers(1, 29, size=1000), strict=True)
        return [
            {
                "type": ("deposit", "withdrawal")[int(kind)],
                "amount": round(float(amount), 2),
                "timestamp": f"2023-{1 + index % 12:02d}-{int(day):02d} 12:00:00",
            }
            for index, (kind, amount, day) in enumerate(samples)
        ]

    @cached_property
    def towns(self) -> list[str]:
        """Returns names of towns on the way."""
        firsts, lasts = _TOWNS
        return [f"{first} {stem}{last}" for first in firsts for stem in _STEMS for last in lasts]

    @cached_property
    def cards(self) -> dict[str, JsonObject]:
        """Returns credit cards that the item does not name."""
        return {
            f"{70000000000000 + index * 1111}": {
                "card_number": f"{7000000000000000 + index * 111111}",
                "expiration_date": f"{1 + index % 12:02d}/2028",
                "cardholder_name": f"{_STEMS[index % 13]} {_STEMS[index * 5 % 13]}",
                "card_verification_number": 100 + index,
                "balance": 1000.0 + 250 * index,
            }
            for index in range(22)
        }

    @cached_property
    def bookings(self) -> dict[str, JsonObject]:
        """Returns bookings that the item does not name, each paid with one of the cards."""
        cards = list(self.cards)
        return {
            f"earlier_{index:03d}": {
                "card_id": cards[index],
                "travel_date": f"2024-{1 + index % 12:02d}-15",
                "travel_from": _CODES[index % 5],
                "travel_to": _CODES[(index + 1) % 5],
                "travel_class": "economy",
                "travel_cost": 200.0 + 10 * index,
                "transaction_id": f"earlier_payment_{index:03d}",
            }
            for index in range(16)
        }

    @cached_property
    def days(self) -> dict[str, dict[str, float]]:
        """Returns the weather of the last fifteen days."""
        rows = sample_rng("bfcl", "padding", "days").uniform(0, 100, size=(15, 4))
        names = ("windSpeed", "humidity", "precipitation", "visibility")
        return {
            f"-{index}_day": {name: round(float(value), 1) for name, value in zip(names, row, strict=True)}
            for index, row in enumerate(rows, 1)
        }
