"""Attacks on what a box answers: forged frames, strange values, changed builtins, and searches for the expected value.

Code inside can find the line to the outside and write to it. That makes wrong values, which is nothing, and never right
ones, because the expected value is not in the box.
"""

from __future__ import annotations

import textwrap

from attack_base import Attack, f

LINE = """
import json, os, sys
def found():
    frame = sys._getframe()
    while "line" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["line"]
def put(body, size=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (len(body) if size is None else size).to_bytes(4, "little")
    os.write(found().outgoing, head + body)
"""
_AGREES = """
class Agrees:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
"""
LOST = ("malformed",)


def _forged(name: str, body: str, ends: tuple[str, ...] = LOST) -> Attack:
    return Attack(f"forged: {name}", f(body, LINE), ends)


def _value(name: str, body: str, before: str = "", ends: tuple[str, ...] = ("value",)) -> Attack:
    return Attack(f"value: {name}", f(body, before), ends)


FORGED = [
    _forged("a second answer", "put({'value': {'t': 'str', 'v': 'forged'}})\nreturn 1"),
    _forged("a hundred answers", "for _ in range(100):\n    put({'value': {'t': 'none'}})\nreturn 1"),
    _forged(
        "an answer, then the end",
        "put({'value': {'t': 'none'}}); put({'end': True}); os._exit(0)",
        ("malformed", "killed", "value"),
    ),
    _forged("huge length", "put(b'', 2**32 - 1)\nreturn 1"),
    _forged("length just over the most", "put(b'x', 2**20 + 1)\nreturn 1"),
    _forged("half a frame", "put(b'x', 100); os._exit(0)", ("killed",)),
    _forged("half a frame, then silence", "import time\nput(b'x', 100); time.sleep(60)", ("timeout",)),
    _forged("no JSON", "put(b'passed')\nreturn 1"),
    _forged("no ASCII", "put(bytes(range(128, 256)))\nreturn 1"),
    _forged("JSON without end", "put(b'[' * 100000)\nreturn 1"),
    _forged("a number without end", "put(b'{\"value\":' + b'9' * 100000 + b'}')\nreturn 1"),
    _forged("a list", "put([1])\nreturn 1"),
    _forged("a verdict", "put({'passed': True})\nreturn 1"),
    _forged("a value and a verdict", "put({'value': {'t': 'none'}, 'passed': True})\nreturn 1"),
    _forged("an unknown class", "put({'value': {'t': 'object', 'v': 1}})\nreturn 1"),
    _forged("an int that is none", "put({'value': {'t': 'int', 'v': 'x'}})\nreturn 1"),
    _forged("a list in a set", "put({'value': {'t': 'set', 'v': [{'t': 'list', 'v': []}]}})\nreturn 1"),
    _forged(
        "one hash for all",
        """
        put({"value": {"t": "set", "v": [{"t": "int", "v": hex(k * (2**61 - 1))} for k in range(9000)]}})
        return 1""",
    ),
    _forged("a call of the outside", "put({'call': 'candidate', 'args': {'t': 'tuple', 'v': []}})\nreturn 1"),
    _forged("closed line", "os.close(found().outgoing)\nreturn 1", ("killed",)),
    _forged("taken requests", "return os.read(found().incoming, 100000).decode()", ("timeout",)),
    _forged("two processes answer", "os.fork()\nreturn 1", ("malformed", "value")),
]
VALUES = [
    _value("always equal", "return Agrees()", _AGREES),
    _value("always equal, in a list", "return [Agrees()]", _AGREES),
    _value(
        "a str that agrees",
        "return Text('x')",
        "class Text(str):\n"
        + textwrap.indent("def __eq__(self, other): return True\ndef __hash__(self): return 0", "    "),
    ),
    _value("an int that agrees", "return Number(1)", "class Number(int):\n    def __eq__(self, other): return True"),
    _value("a list that agrees", "return Row()", "class Row(list):\n    def __eq__(self, other): return True"),
    _value(
        "a lie about its class",
        "return Liar()",
        """
        class Liar:
            __class__ = str
            def __eq__(self, other): return True""",
    ),
    _value("a class", "return str"),
    _value("a module", "import os\nreturn os"),
    _value("circular", "row = []\nrow.append(row)\nreturn row", ends=LOST),
    _value("deep", "row = []\nfor _ in range(100000):\n    row = [row]\nreturn row", ends=LOST),
    _value(
        "doubled 60 times", "row = []\nfor _ in range(60):\n    row = [row, row]\nreturn row", ends=(*LOST, "timeout")
    ),
    _value("large", "return 'x' * 2**21", ends=LOST),
    _value("a large number", "return 1 << 2**24", ends=LOST),
    _value("half a character", "return '\\ud800'", ends=LOST),
]
INSIDE = [
    Attack(
        "changed json",
        f(
            "return 1",
            """
        import json
        json.dumps = json.JSONEncoder.encode = lambda *args, **kwargs: '{"value": {"t": "str", "v": "forged"}}'""",
        ),
    ),
    Attack(
        "changed encoder",
        f(
            "return 1",
            """
        import sys
        sys.modules["evolvent.sandbox.child"].encode = lambda value, depth=0: {"t": "str", "v": "forged"}""",
        ),
    ),
    Attack(
        "changed builtins",
        f(
            "return 1",
            """
        import builtins
        builtins.type = lambda value: str
        builtins.isinstance = builtins.hasattr = builtins.all = builtins.any = lambda *args: True""",
        ),
        ("value", "raised", "malformed", "killed"),
    ),
    Attack(
        "changed AssertionError",
        f(
            "raise AssertionError",
            """
        import builtins
        class Quiet(Exception):
            def __new__(cls, *args): raise SystemExit(0)
        builtins.AssertionError = AssertionError = Quiet""",
        ),
        ("raised",),
    ),
    Attack("own check", f("return check()", "def check(candidate=None): return True\ncandidate = check")),
    Attack("printed verdict", f("print('passed'); print('1 passed in 0.01s'); return None")),
    Attack("exit 0", f("os._exit(0)", "import os"), ("killed",)),
    Attack("exit 0 while loading", "import os\nos._exit(0)\n", ("killed",)),
    Attack("SystemExit", f("raise SystemExit(0)"), ("raised",)),
    Attack(
        "an exception whose text raises",
        f(
            "raise Bad",
            """
        class Bad(BaseException):
            def __str__(self): raise Bad
            __repr__ = __str__""",
        ),
        ("raised",),
    ),
    Attack(
        "an exception whose text is endless",
        f(
            "raise Bad",
            """
        class Bad(BaseException):
            def __str__(self):
                while True: pass""",
        ),
        ("timeout",),
    ),
    Attack(
        "frame walk to a queue",
        f(
            """
        frame = sys._getframe()
        while frame is not None:
            for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                if hasattr(value, "put"):
                    value.put("passed")
                    return "escaped"
            frame = frame.f_back""",
            "import sys",
        ),
    ),
    Attack(
        "search of all objects",
        f(
            """
        texts = [value for value in gc.get_objects() if isinstance(value, dict) and len(value) < 1000]
        for row in texts:
            for value in list(row.values()):
                if isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef"):
                    return value""",
            "import gc",
        ),
    ),
    Attack(
        "search of own memory",
        f(
            """
        seen = b""
        for line in open("/proc/self/maps"):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" in line and last - first < 2**24:
                with open("/proc/self/mem", "rb") as memory:
                    memory.seek(first)
                    seen += memory.read(last - first)
        found = re.findall(rb"EVOLVENT_SECRET=([0-9a-f]{32})", seen)
        return found[0].decode() if found else 0""",
            "import re",
        ),
    ),
    Attack(
        "threads that go on",
        f(
            """
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
        return 1""",
            "import threading",
        ),
    ),
]
ANSWERS = (*FORGED, *VALUES, *INSIDE)
