"""Programs judged by what they print for what they read, and functions by what they return: the two forms of APPS.

Hendrycks et al. 2021, "Measuring Coding Challenge Competence With APPS" (2105.09938). Every exchange goes into a box of
its own, which sees the program and the input; what should come out is compared here and never enters a box.

Printed text is compared line by line, as competitions do: spaces at the ends of lines and empty lines do not count,
words of a line have to be equal, or to be numbers of which one has a decimal point and that differ by no more than a
millionth, absolute or relative. The published checker also accepts lines and words in another order; this one does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.grade.base import Grade, shown
from evolvent.grade.code import Open

__all__ = ["Exchanges", "judge_exchanges", "same_text", "same_value"]

_NEAR = 1e-6
_KEY = re.compile(r"0|-?[1-9][0-9]{0,99}")
_DECIMAL = re.compile(r"[-+]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")  # `float` takes 1_0 and others too
_ASK = "ask_the_program"
# What stands around a program in its box. The input is a real file at descriptor 0 and the output one at descriptor 1,
# since programs read `open(0)` and write past `print`. `sys.exit()` is how many programs end.
_DRIVER = """
import builtins as _b, os as _os, sys as _sys, threading as _threading

_PROGRAM = {program}
_FUNCTION = {function}


def _run(name):
    space = {{"__name__": name, "__builtins__": _b}}
    for line in ("from typing import *", "from collections import *", "import math, re, sys, heapq, bisect",
                 "import itertools, functools, operator, string, random, collections"):
        exec(line, space)
    exec(compile(_PROGRAM, "<candidate>", "exec"), space)
    return space


def _file():
    number = _os.open(".exchange", _os.O_RDWR | _os.O_CREAT | _os.O_TRUNC, 0o600)
    _os.unlink(".exchange")
    return number


def {ask}(given):
    if _FUNCTION:
        space = _run("candidate")
        owner = space.get("Solution")
        found = getattr(owner(), _FUNCTION, None) if isinstance(owner, type) else None
        return (found or space[_FUNCTION])(*given)
    source, target, kept = _file(), _file(), _os.dup(1)
    data = memoryview(given.encode("utf-8", "surrogatepass"))
    while data:
        data = data[_os.write(source, data):]
    _os.lseek(source, 0, 0)
    _os.dup2(source, 0)
    _os.dup2(target, 1)
    before = _sys.stdout
    _sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)
    _sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    try:
        _run("__main__")
    except SystemExit:
        pass
    for one in _threading.enumerate():
        if one is not _threading.current_thread() and not one.daemon:
            one.join()
    _sys.stdout.flush()
    _os.dup2(kept, 1)
    _sys.stdout = before
    _os.lseek(target, 0, 0)
    return b"".join(iter(lambda: _os.read(target, 1 << 20), b"")).decode("utf-8", "replace")
"""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What a program is given and what should come out.

    Args:
        inputs: texts for standard input; or, for a function, lists of its arguments.
        outputs: as many: texts, or values of JSON.
        function: the function that is called, of the program or of its class `Solution`; "": the program is run.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    function: str = ""

    @property
    def entry(self) -> str:
        """The function in question; "" for a whole program."""
        return self.function


def judge_exchanges(source: str, tests: Exchanges, open_box: Open) -> Grade:
    """Whether a program passes all exchanges; it ends with the first that fails, and `why` says which.

    Args:
        open_box: opens a fresh box for a source; its limits are those of one exchange.
    """
    if not tests.inputs:
        return Grade(None, why="weak: no exchange")
    program = _DRIVER.format(program=_literal(source), function=_literal(tests.function), ask=_ASK)
    for number, (given, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        with open_box(program, {}) as box:
            answer = box.ask(_ASK, (_arguments(given) if tests.function else given,))
            if answer.status != "value":
                return Grade(False, why=f"exchange {number}: {answer.status}: {answer.error}")
            right = same_value(answer.value, expected) if tests.function else same_text(answer.value, expected)
            if not right:
                return Grade(False, why=f"exchange {number}: got {shown(answer.value, str)!r}")
            if not box.end():
                return Grade(False, why=f"exchange {number}: malformed: more answers than calls")
    return Grade(True)


def _literal(text: str) -> str:
    """A text as Python and JSON write it alike, in ASCII; half characters too."""
    return json.dumps(text)


def _arguments(given: Any) -> Any:
    """JSON has texts alone for keys: those that are whole numbers were numbers."""
    if isinstance(given, Mapping):
        keys = [str(key) for key in given]
        whole = bool(keys) and all(map(_KEY.fullmatch, keys))
        return {(int(key) if whole else key): _arguments(value) for key, value in given.items()}
    return [_arguments(one) for one in given] if isinstance(given, list) else given


def same_text(got: object, expected: str) -> bool:
    """Whether printed text is what was expected, see the module. Anything but a text is not."""
    if not isinstance(got, str):
        return False
    one, other = ([line.split() for line in text.splitlines() if line.strip()] for text in (got, expected))
    return len(one) == len(other) and all(
        len(left) == len(right) and all(map(_same_word, left, right)) for left, right in zip(one, other, strict=True)
    )


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if "." not in got + expected or not (_DECIMAL.fullmatch(got) and _DECIMAL.fullmatch(expected)):
        return False
    one, other = float(got), float(expected)
    return math.isfinite(one) and math.isclose(one, other, rel_tol=_NEAR, abs_tol=_NEAR)


def same_value(got: object, expected: object) -> bool:
    """Whether a returned value is the expected one, or the only one in a list: sets of APPS wrap some results.

    A tuple is a list, and a whole number for a key is its text, as in JSON. Decimals may differ by a millionth.
    """
    found = _json_like(got)
    wrapped = isinstance(expected, Sequence) and not isinstance(expected, str) and len(expected) == 1
    return _equal(found, expected) or (wrapped and _equal(found, expected[0]))  # type: ignore[index]


def _json_like(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_json_like(one) for one in value]
    if type(value) is dict:
        try:
            found = {str(key): _json_like(one) for key, one in value.items()}
        except ValueError:  # a whole number of thousands of digits has no text
            return value
        return found if len(found) == len(value) else value  # 1 and "1" are no JSON, and equal nothing
    return value


def _equal(got: object, expected: object) -> bool:
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(_equal, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_equal(got[key], expected[key]) for key in expected)
    if isinstance(got, float) or isinstance(expected, float):
        numbers = all(isinstance(one, (int, float)) for one in (got, expected))
        try:
            return numbers and math.isclose(got, expected, rel_tol=_NEAR, abs_tol=_NEAR)  # type: ignore[arg-type]
        except OverflowError:  # a whole number beyond all floats
            return False
    return got == expected
