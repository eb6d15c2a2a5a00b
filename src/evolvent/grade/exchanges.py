"""Grading of programs by their output for an input, and of functions by their return values: the two forms of
APPS.

Hendrycks et al. 2021, "Measuring Coding Challenge Competence With APPS" (2105.09938). Every exchange runs in a
separate sandbox, which sees the program and the input; the expected output is compared here and never enters a
sandbox.

Printed text is compared line by line, as in competitions: spaces at line ends and empty lines do not count.
Words of a line must be equal, or be numbers of which one has a decimal point and that differ by at most a
millionth, absolute or relative. The published checker also accepts lines and words in another order; this
grader does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.grade.base import Grade, shorten
from evolvent.grade.code import OpenSandbox
from evolvent.trajectory import Json

__all__ = ["Exchanges", "grade_exchanges", "is_same_text", "is_same_value"]

_TOLERANCE = 1e-6
_KEY = re.compile(r"0|-?[1-9][0-9]{0,99}")
_DECIMAL = re.compile(r"[-+]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")  # `float` takes 1_0 and others too
_ENTRY = "ask_the_program"
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
    """Inputs of a program and the expected outputs.

    Args:
        inputs: Texts for standard input; or, for a function, lists of its arguments.
        outputs: As many texts, or JSON values.
        function: The called function of the program or of its class `Solution`; "": the program is run.
    """

    inputs: tuple[Json, ...]
    outputs: tuple[Json, ...]
    function: str = ""

    @property
    def entry(self) -> str:
        """Returns the tested function; "" for a whole program."""
        return self.function


def grade_exchanges(source: str, tests: Exchanges, open_sandbox: OpenSandbox) -> Grade:
    """Returns whether a program passes all exchanges; stops at the first failure, which `why` names.

    Args:
        source: The program.
        tests: The exchanges.
        open_sandbox: Opens a fresh sandbox for a source; its limits are those of one exchange.
    """
    if not tests.inputs:
        return Grade(None, why="weak: no exchange")
    program = _DRIVER.format(program=_to_literal(source), function=_to_literal(tests.function), ask=_ENTRY)
    for number, (test_input, expected) in enumerate(zip(tests.inputs, tests.outputs, strict=True), 1):
        with open_sandbox(program, {}) as sandbox:
            answer = sandbox.ask(_ENTRY, (_restore_keys(test_input) if tests.function else test_input,))
            if answer.status != "value":
                return Grade(False, why=f"exchange {number}: {answer.status}: {answer.error}")
            is_correct = (
                is_same_value(answer.value, expected) if tests.function else is_same_text(answer.value, str(expected))
            )
            if not is_correct:
                return Grade(False, why=f"exchange {number}: got {shorten(answer.value, str)!r}")
            if not sandbox.end():
                return Grade(False, why=f"exchange {number}: malformed: more answers than calls")
    return Grade(True)


def _to_literal(text: str) -> str:
    """Formats a text as a literal of both Python and JSON, in ASCII; surrogates too."""
    return json.dumps(text)


def _restore_keys(arguments: Any) -> Any:
    """Restores integer keys: JSON has only texts for keys."""
    if isinstance(arguments, Mapping):
        keys = [str(key) for key in arguments]
        are_integers = bool(keys) and all(map(_KEY.fullmatch, keys))
        return {(int(key) if are_integers else key): _restore_keys(value) for key, value in arguments.items()}
    return [_restore_keys(argument) for argument in arguments] if isinstance(arguments, list) else arguments


def is_same_text(output: object, expected: str) -> bool:
    """Returns whether printed text equals the expected text, see the module; False for any other value."""
    if not isinstance(output, str):
        return False
    output_lines, expected_lines = (
        [line.split() for line in text.splitlines() if line.strip()] for text in (output, expected)
    )
    return len(output_lines) == len(expected_lines) and all(
        len(output_words) == len(expected_words) and all(map(_is_same_word, output_words, expected_words))
        for output_words, expected_words in zip(output_lines, expected_lines, strict=True)
    )


def _is_same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in word + expected or not (_DECIMAL.fullmatch(word) and _DECIMAL.fullmatch(expected)):
        return False
    number, expected_number = float(word), float(expected)
    return math.isfinite(number) and math.isclose(number, expected_number, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def is_same_value(returned: object, expected: object) -> bool:
    """Returns whether a returned value equals the expected one, or the only element of an expected list.

    Sets of APPS wrap some results in lists. A tuple equals a list, and an integer key its text, as in JSON. Decimals
    may differ by a millionth.
    """
    value = _to_json(returned)
    is_wrapped = isinstance(expected, Sequence) and not isinstance(expected, str) and len(expected) == 1
    return _is_equal(value, expected) or (is_wrapped and _is_equal(value, expected[0]))  # type: ignore[index]


def _to_json(value: object) -> object:
    if isinstance(value, (tuple, list)):
        return [_to_json(element) for element in value]
    if type(value) is dict:
        try:
            entries = {str(key): _to_json(element) for key, element in value.items()}
        except ValueError:  # a whole number of thousands of digits has no text
            return value
        return entries if len(entries) == len(value) else value  # 1 and "1" are no JSON, and equal nothing
    return value


def _is_equal(returned: object, expected: object) -> bool:
    if isinstance(returned, list) and isinstance(expected, list):
        return len(returned) == len(expected) and all(map(_is_equal, returned, expected))
    if isinstance(returned, dict) and isinstance(expected, dict):
        return returned.keys() == expected.keys() and all(_is_equal(returned[key], expected[key]) for key in expected)
    if isinstance(returned, float) or isinstance(expected, float):
        are_numbers = all(isinstance(operand, (int, float)) for operand in (returned, expected))
        try:
            return are_numbers and math.isclose(returned, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)  # type: ignore[arg-type]
        except OverflowError:  # a whole number beyond all floats
            return False
    return returned == expected
