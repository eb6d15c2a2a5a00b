"""Attacks with what comes out: values and texts that the host could not print, or that a terminal or a log would obey.

`Host.escaped` looks at every outcome: its error is one printable line, and all of it can be printed and written.
"""

from __future__ import annotations

from attack_answers import LINE
from attack_base import Attack, f

_LOST = ("malformed",)
_ENDS = ("raised",)


def _error(name: str, body: str, before: str = "", ends: tuple[str, ...] = _ENDS) -> Attack:
    return Attack(f"text: {name}", f(body, before), ends)


def _value(name: str, body: str, before: str = "", ends: tuple[str, ...] = ("value",)) -> Attack:
    return Attack(f"value: {name}", f(body, before), ends)


def _forged(name: str, row: str, ends: tuple[str, ...] = _LOST) -> Attack:
    return Attack(f"forged: {name}", f(f"put({row})\nos._exit(0)", LINE), ends)


ERRORS = [
    _error("terminal codes", r"raise ValueError('\x1b[2J\x1b]0;title\x07')"),
    _error("codes of eight bits", r"raise ValueError('\x9b2J\x85')"),
    _error("half a character", r"raise ValueError('\ud800 and \udfff')"),
    _error("more lines", r"raise ValueError('wrong\nvalue: escaped\r\n1 passed')"),
    _error("overwritten line", r"raise ValueError('wrong\r' + ' ' * 80 + '\rpassed' + '\b' * 6)"),
    _error("text from right to left", r"raise ValueError('\u202e dessap \u2066 \u200f')"),
    _error("invisible characters", r"raise ValueError('\u200b\ufeff\u00ad\u2028\U000e0041')"),
    _error("zeros", r"raise ValueError('\x00' * 100)"),
    _error("ten megabytes", "raise ValueError('x' * 10**7)"),
    _error("ten megabytes of codes", r"raise ValueError('\x1b' * 10**6)"),
    _error("a number that cannot be printed", "raise ValueError(1 << 100_000)"),
    _error("a group of errors", r"raise ExceptionGroup('\x1b[2J', [ValueError('\ud800')] * 100)"),
    _error("a cause", r"raise ValueError('\x1b[1m') from KeyError('\ud800')"),
    _error("a note", r"error = ValueError('x'); error.add_note('\x1b[2J'); raise error"),
    _error("a class named by codes", r"raise type('\x1b[31mError', (Exception,), {})('x')"),
    _error("a class with a long name", "raise type('E' * 10**5, (Exception,), {})('x')"),
    _error(
        "a text whose parts are a lie",
        "raise Bad",
        """
        class Text(str):
            def __getitem__(self, key): return Text("\\x1b" * 10**6)
            def __format__(self, spec): return "\\x1b" * 10**6
        class Bad(Exception):
            def __str__(self): return Text("x")""",
        ("raised", "malformed"),
    ),
    _error("while loading", "return 0", r"raise RuntimeError('\x1b[2J\ud800')"),
    _error("in the source", "return 0", "x = '\x1b[2J\n"),
    _error("of a name", r"return getattr(object, '\x1b[2J\u202e')"),
    _error("of a missing file", r"open('\x1b[2J\udc80')"),
]
VALUES = [
    _value("a number that cannot be printed", "return 1 << 100_000", ends=_LOST),
    _value("a number of millions of bits", "return -(1 << 3_000_000)", ends=_LOST),
    _value("a digit too many", "return 10**4300", ends=_LOST),
    _value("as many digits as Python prints", "return 10**4299"),
    _value("such a number in a dict", "return {'x': [(1, 1 << 20_000)]}", ends=_LOST),
    _value("such a number as a key", "return {1 << 20_000: 1}", ends=_LOST),
    _value("such a number in a set", "return frozenset([1 << 20_000])", ends=_LOST),
    _value("half a character in a key", r"return {'\udc80': 1}", ends=_LOST),
    _value("half a character in a set", r"return [{'\udfff'}]", ends=_LOST),
    _value(
        "names of bytes that are no text", r"open(b'\xff', 'w').close(); return os.listdir('.')", "import os", _LOST
    ),
    _value("a class named by codes", r"return type('\x1b[31m\u202e', (), {})()"),
    _value("a class with a long name", "return [type('x' * 10**5, (), {})()] * 100"),
    _value("terminal codes are text", r"return '\x1b[2J\r\n\x00'"),
    _value("thousands of numbers that are none", "return [float('nan'), float('inf')] * 5000"),
    _value(
        "lists in lists", "row = []\nfor _ in range(63):\n    row = [row, ()]\nreturn row", ends=("value", "malformed")
    ),
]
FORGED = [
    _forged("a name of codes", r"{'value': {'t': 'other', 'v': '\x1b[2J\ud800' * 99}}", ("value",)),
    _forged("an error of codes", r"{'raised': '\x1b[2J\ud800\n' * 99}", ("raised",)),
    _forged("a malformed answer of codes", r"{'malformed': '\x1b[2J\ud800\n' * 99999}", _LOST),
    _forged("a class of codes", r"{'value': {'t': '\x1b[2J\ud800', 'v': 1}}"),
    _forged("a call of codes", r"{'call': '\x1b[2J\ud800', 'args': {'t': 'tuple', 'v': []}}"),
    _forged("a number past all bounds", r"{'value': {'t': 'int', 'v': '0x' + 'f' * 10**6}}"),
    _forged("a float past all bounds", r"{'value': {'t': 'float', 'v': '0x1p99999999999'}}"),
    _forged("half a character", r"{'value': {'t': 'str', 'v': '\ud800'}}"),
    _forged("an error that is a number", r"{'raised': 10**4000}"),
    _forged("a number in JSON that cannot be read", "b'{\"raised\": ' + b'9' * 5000 + b'}'"),
]
PRINTED = [
    Attack("printed: bytes that are no text", f(r"os.write(1, bytes(range(256)) * 9); return 1", "import os")),
    Attack("printed: half a character", f(r"sys.stdout.buffer.write(b'\xed\xa0\x80'); return 1", "import sys")),
    Attack("printed: codes", f(r"print('\x1b[2J\x07', end='\r'); return 1")),
    Attack("printed: a number that cannot be printed", f("print(1 << 100_000)"), _ENDS),
]
TEXTS = (*ERRORS, *VALUES, *FORGED, *PRINTED)
