r"""Words and units around a number: which of them change what an answer means.

"5 cm" is 5 where the gold answer has no unit, and so is "18 eggs". "12 million" is 12,000,000, and "10 p.m." is not
"10 a.m.". Words that are not known to be harmless leave a pair undecided: a false reward is worse than a missed one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Quantity", "compare_words", "is_harmless", "read_quantity"]


def _words(text: str) -> list[str]:
    return text.split()


_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|up|md|sl)?|math(?:rm|bf|it|sf|tt|normal)|mbox|operatorname)\s*\{([^{}]*)\}"
)
_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
_UNIT_NAMES = {
    "meter": "m meter meters metre metres",
    "centimeter": "cm centimeter centimeters centimetre centimetres",
    "millimeter": "mm millimeter millimeters millimetre millimetres",
    "kilometer": "km kilometer kilometers kilometre kilometres",
    "inch": "in inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "gram": "g gram grams",
    "kilogram": "kg kilogram kilograms",
    "milligram": "mg milligram milligrams",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "liter": "l liter liters litre litres",
    "milliliter": "ml milliliter milliliters",
    "gallon": "gal gallon gallons",
    "second": "s sec secs second seconds",
    "minute": "min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "degree": "deg degree degrees",
    "radian": "rad radian radians",
    "dollar": "dollar dollars usd",
    "euro": "euro euros eur",
    "cent": "cent cents",
    "percent": "percent pct",
    "unit": "unit units",
    "mph": "mph",
    "joule": "j joule joules",
    "newton": "n newton newtons",
    "watt": "w watt watts",
    "volt": "volt volts",
    "hertz": "hz hertz",
    "kelvin": "kelvin kelvins",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
}
_UNITS = {spelling: unit for unit, spellings in _UNIT_NAMES.items() for spelling in spellings.split()}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
_SCALES = {
    "dozen": Fraction(12),
    "hundred": Fraction(100),
    "thousand": Fraction(1_000),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
    "tenth": Fraction(1, 10),
    "hundredth": Fraction(1, 100),
    "thousandth": Fraction(1, 1_000),
    "millionth": Fraction(1, 10**6),
    "half": Fraction(1, 2),
    "third": Fraction(1, 3),
    "quarter": Fraction(1, 4),
    "fourth": Fraction(1, 4),
    "fifth": Fraction(1, 5),
    "sixth": Fraction(1, 6),
    "eighth": Fraction(1, 8),
}
_SCALES |= {f"{word}s": scale for word, scale in _SCALES.items()} | {"halves": Fraction(1, 2)}
# Words that change a meaning; those of one group exclude one another.
_GROUPS = (
    ("am", "pm", "noon", "midnight"),
    ("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest"),
    ("n", "s", "e", "w"),
    ("left", "right"),
    ("up", "down", "upward", "downward", "upwards", "downwards"),
    ("above", "below"),
    ("over", "under"),
    ("more", "less", "fewer", "greater"),
    ("least", "most"),
    ("even", "odd"),
    ("positive", "negative"),
    ("increase", "decrease", "increased", "decreased"),
    ("gain", "loss", "profit"),
    ("bc", "ad", "bce", "ce"),
    ("axis", "intercept", "coordinate"),
    ("true", "false"),
    ("yes", "no"),
    ("prime", "composite"),
    ("maximum", "minimum", "max", "min."),
    ("rational", "irrational"),
    ("celsius", "fahrenheit", "kelvin"),
    ("first", "second", "third", "fourth"),
)
_OPPOSITES = {word: number for number, group in enumerate(_GROUPS) for word in group}
# Words with which a number is another number, or several.
_MEANINGFUL = {*_OPPOSITES, *_SCALES} | set(
    _words(
        "power2 power3 or and to through times plus minus divided by mod modulo choose not no except between about"
        " approximately"
        " nearly around almost roughly base factorial imaginary pair pairs score remainder ago infinite infinitely x"
        " out off than ratio"
    )
)
_HARMLESS = set(
    _words(
        "the a an of in total is are was all altogether each every per for this that these it there we i they which so"
        " final answer exactly only"
    )
)
_REMAINING = ("are", "is", "was", "were", "has", "have", "had", "of", "be")  # before "left", which is no side then
_WORD = re.compile(r"[A-Za-z][A-Za-z.'-]*")
_NUMBER_HEAD = re.compile(
    r"^\s*(?P<number>[-+]?(?:\\?\$|[€£¥])?\s*[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*\d+|\s+\d+\s*/\s*\d+|\s*\\[dt]?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})?"
    r"|[-+]?\\[dt]?frac\s*\{\s*[-+]?\d+\s*\}\s*\{\s*\d+\s*\})(?P<rest>.*)$",
    re.DOTALL,
)
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|°")
_PERCENT = re.compile(r"\\?%")
_SUPERSCRIPT = re.compile(r"(?<=[A-Za-z }])\^\s*\{?\s*([23])\s*\}?")
_OPERATOR_END = re.compile(r"\\(?:[dtc]?frac|sqrt|binom|times|cdot|div|cup|cap|leq?|geq?|lt|gt|in|to|pm|mp)\s*$")
_CLOCK = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_LONE_DOLLAR = re.compile(r"\\\$|(?<!\S)\$(?=\s*[-\d.])")


@dataclass(frozen=True, slots=True)
class Quantity:
    """An answer apart from its words.

    Args:
        core: The mathematics, as written.
        scale: What the words multiply the number by: 1,000,000 for "million".
        units: Names of the units, sorted; "inch^2" for a square inch.
        words: Other words that may matter, in lowercase, without an s at their end.
        is_number: Whether the core is one number.
    """

    core: str
    scale: Fraction = Fraction(1)
    units: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_number: bool = False

    @property
    def in_degrees(self) -> bool:
        return "degree" in self.units


def read_quantity(text: str) -> Quantity:
    """Separates an answer into its mathematics and the words at its end."""
    text = _CLOCK.sub(lambda match: f"{match[1]}m", text)
    currency = [_CURRENCY["$"]] if _has_dollar_sign(text) else [_CURRENCY[sign] for sign in "€£¥" if sign in text]
    head = _NUMBER_HEAD.match(text.strip().strip("$") if not currency else _LONE_DOLLAR.sub("", text.strip()))
    if head is not None:
        rest = head["rest"]
        spoken = _DEGREE.sub(" degree ", _TEXT.sub(r" \1 ", rest))
        cleaned = _SUPERSCRIPT.sub("", _PERCENT.sub(" percent ", spoken))
        cleaned = re.sub(r"\\[,;:! ]|[~(){}\[\]$*_`]|\\(?:q?quad|left|right)", " ", cleaned)
        is_spelled = rest[:1].isspace() or "\\" in rest or rest[:1] in "%$°~"
        only_words = re.fullmatch(r"[A-Za-z\s.,'/-]*", cleaned) is not None
        if only_words and (is_spelled or not cleaned.strip(" .,")) and not _is_symbol(spoken):
            return _with_words(head["number"], cleaned, spoken, currency, is_number=True)
    return _read_trailing(text, currency)


def _is_symbol(spoken: str) -> bool:
    """Returns whether what follows a number is one bare letter, which may be a variable."""
    return re.fullmatch(r"\s*[A-Za-z]\s*[.,]?", spoken) is not None and "\\" not in spoken


def _read_trailing(text: str, currency: list[str]) -> Quantity:
    r"""Separates the words in \text at the end of an expression that is not a plain number."""
    core, words = text, ""
    powers = ""
    while match := re.search(rf"(?<=\S)\s*(?:\\[,;:! ]\s*)*{_TEXT.pattern}(\s*\^\s*\{{?[23]\}}?)?\s*[.,$]*\s*$", core):
        if not re.search(r"[\d})\]A-Za-z°]\s*$", core[: match.start()]) or _OPERATOR_END.search(core[: match.start()]):
            break
        words, powers = f"{match[1]} {words}", powers + (match[2] or "")
        core = core[: match.start()]
    degree = _DEGREE.search(core)
    quantity = _with_words(core, words + (" degree" if degree else ""), words + powers, currency, is_number=False)
    return quantity if core.strip() else Quantity(text)


def _has_dollar_sign(text: str) -> bool:
    return r"\$" in text or (text.count("$") == 1 and _LONE_DOLLAR.search(text) is not None)


def _with_words(core: str, words: str, spoken: str, currency: list[str], *, is_number: bool) -> Quantity:
    """Sorts words into a scale, units and others."""
    scale, units, others = Fraction(1), list(currency), list[str]()
    power = next((int(match[1]) for match in _SUPERSCRIPT.finditer(spoken)), 1)
    tokens = [word.strip(".'-").lower() for word in _WORD.findall(words)]
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "left" and position and tokens[position - 1] in _REMAINING:
            pass
        elif token in ("f", "c") and "degree" in units:
            units = [unit for unit in units if unit != "degree"] + ["fahrenheit" if token == "f" else "celsius"]
        elif token in ("celsius", "fahrenheit"):
            units = [unit for unit in units if unit != "degree"] + [token]
        elif token in _POWERS:
            power = _POWERS[token]
        elif token in _SCALES and is_number and not (token in _UNITS and position == 0 and not others):
            scale *= _SCALES[token]
        elif token in _UNITS:
            units.append(_UNITS[token])
        elif token not in _HARMLESS or token in _MEANINGFUL:
            others.append(token)
        position += 1
    if power > 1 and units:
        units[-1] = f"{units[-1]}^{power}"
    elif power > 1:
        others.append(f"power{power}")
    return Quantity(core, scale, tuple(sorted(set(units))), tuple(others), is_number)


def is_harmless(words: str, *, after_number: bool) -> bool:
    """Returns whether words behind an expression are a unit, or behind a number words that change nothing."""
    tokens = [word.strip(".'-") for word in _WORD.findall(_CLOCK.sub(lambda match: f"{match[1]}m", words))]
    if any(token.lower() in _MEANINGFUL or (len(token) == 1 and token.isupper()) for token in tokens):
        return False
    return after_number or all(token.lower() in _UNITS or token.lower() in _POWERS for token in tokens)


def compare_words(answer: Quantity, gold: Quantity) -> bool | None:
    """Returns whether the words of two answers leave them comparable: True, False for opposites, else None."""
    answer_words, gold_words = set(map(_singular, answer.words)), set(map(_singular, gold.words))
    if answer.units and gold.units and answer.units != gold.units:
        if {"celsius", "fahrenheit"} <= {*answer.units, *gold.units}:
            return False
        return None
    if answer_words == gold_words:
        return True
    only = (answer_words | gold_words) - (answer_words & gold_words)
    groups = [(_OPPOSITES[word], word in answer_words) for word in only if word in _OPPOSITES]
    if any((group, not side) in groups for group, side in groups):
        return False
    if only & _MEANINGFUL:
        return None
    if not answer.is_number or not gold.is_number:
        return None if answer_words and gold_words else None if only else True
    return True if answer_words <= gold_words or gold_words <= answer_words else None


def _singular(word: str) -> str:
    if word in _MEANINGFUL:
        return word
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
