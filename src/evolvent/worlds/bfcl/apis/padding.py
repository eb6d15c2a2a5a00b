"""What makes the items of long context long: text behind every file, empty files, lists and records nobody asked for.

The gold answers of a few items quote the text and the names of the files, so those two are read from the data set
itself (see `evolvent.worlds.bfcl.multi_turn.padding_of`). Everything else only has to be long, and to be the same in
the gold run and in the judged one: it is made here from fixed seeds, about as long as the leaderboard's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from evolvent.trajectory import sample_rng

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
def _prose(topic: str, length: int) -> str:
    """Words without sense, `length` characters of them."""
    rng = sample_rng("bfcl", "padding", topic)
    chosen = rng.integers(0, len(_WORDS), size=length)
    return " ".join(_WORDS[int(at)] for at in chosen)[: length - 1] + "."


def _files() -> tuple[str, ...]:
    rng = sample_rng("bfcl", "padding", "files")
    return tuple(f"image_{int(number)}.jpg" for number in rng.integers(10**17, 9 * 10**18, size=30))


@cache
def _numbers(topic: str, count: int) -> tuple[float, ...]:
    return tuple(round(float(one), 2) for one in sample_rng("bfcl", "padding", topic).uniform(200, 250, size=count))


@cache
def _symbols(topic: str, count: int) -> tuple[str, ...]:
    rng = sample_rng("bfcl", "padding", topic)
    rows, sizes = rng.integers(0, 26, size=(count, 5)), rng.integers(1, 6, size=count)
    return tuple("".join(_LETTERS[at] for at in row[:size]) for row, size in zip(rows, sizes, strict=True))


@dataclass(frozen=True)
class Padding:
    """What is added in items of long context.

    Args:
        text: what follows the content of every file, but for `SHORT_FILES`.
        files: names of the empty files in every directory that holds no other one.
    """

    text: str = field(default_factory=lambda: _prose("text", 3251))
    files: tuple[str, ...] = field(default_factory=_files)

    def __deepcopy__(self, memo: dict[int, Any]) -> Padding:
        """Itself: nobody changes it, and a snapshot of an episode need not copy it."""
        return self

    def prose(self, topic: str, length: int) -> str:
        """A text of `length` characters, the same for the same topic."""
        return _prose(topic, length)

    def numbers(self, topic: str, count: int) -> list[float]:
        """Numbers between 200 and 250 with two decimals."""
        return list(_numbers(topic, count))

    def symbols(self, topic: str, count: int) -> list[str]:
        """Symbols of stocks that do not exist: one to five capital letters."""
        return list(_symbols(topic, count))

    @cached_property
    def transactions(self) -> list[dict[str, Any]]:
        """A thousand deposits and withdrawals of the year before."""
        rng = sample_rng("bfcl", "padding", "transactions")
        kinds, amounts = rng.integers(0, 2, size=1000), rng.uniform(1, 10_000, size=1000)
        drawn = zip(kinds, amounts, rng.integers(1, 29, size=1000), strict=True)
        return [
            {
                "type": ("deposit", "withdrawal")[int(kind)],
                "amount": round(float(amount), 2),
                "timestamp": f"2023-{1 + at % 12:02d}-{int(day):02d} 12:00:00",
            }
            for at, (kind, amount, day) in enumerate(drawn)
        ]

    @cached_property
    def towns(self) -> list[str]:
        """Names of towns on the way."""
        firsts, lasts = _TOWNS
        return [f"{first} {stem}{last}" for first in firsts for stem in _STEMS for last in lasts]

    @cached_property
    def cards(self) -> dict[str, dict[str, Any]]:
        """Credit cards that the item does not name."""
        return {
            f"{70000000000000 + at * 1111}": {
                "card_number": f"{7000000000000000 + at * 111111}",
                "expiration_date": f"{1 + at % 12:02d}/2028",
                "cardholder_name": f"{_STEMS[at % 13]} {_STEMS[at * 5 % 13]}",
                "card_verification_number": 100 + at,
                "balance": 1000.0 + 250 * at,
            }
            for at in range(22)
        }

    @cached_property
    def bookings(self) -> dict[str, dict[str, Any]]:
        """Bookings that the item does not name, each paid with one of the cards."""
        cards = list(self.cards)
        return {
            f"earlier_{at:03d}": {
                "card_id": cards[at],
                "travel_date": f"2024-{1 + at % 12:02d}-15",
                "travel_from": _CODES[at % 5],
                "travel_to": _CODES[(at + 1) % 5],
                "travel_class": "economy",
                "travel_cost": 200.0 + 10 * at,
                "transaction_id": f"earlier_payment_{at:03d}",
            }
            for at in range(16)
        }

    @cached_property
    def days(self) -> dict[str, dict[str, float]]:
        """The weather of the last fifteen days."""
        rows = sample_rng("bfcl", "padding", "days").uniform(0, 100, size=(15, 4))
        names = ("windSpeed", "humidity", "precipitation", "visibility")
        return {
            f"-{at}_day": {name: round(float(one), 1) for name, one in zip(names, row, strict=True)}
            for at, row in enumerate(rows, 1)
        }
