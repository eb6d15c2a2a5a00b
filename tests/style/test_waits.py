"""Tests wait as long as a busy machine needs: what takes a second alone took seven beside two other workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from house import ROOT

REQUESTS = ("Client", "AsyncClient", "delete", "get", "head", "options", "patch", "post", "put", "request", "stream")


def without_timeout(text: str) -> Iterator[int]:
    """Lines of calls of httpx2 that leave the timeout to its default of five seconds."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REQUESTS:
            is_httpx = isinstance(node.func.value, ast.Name) and node.func.value.id == "httpx2"
            if is_httpx and all(word.arg not in ("timeout", None) for word in node.keywords):
                yield node.lineno


def test_requests_name_their_timeout():
    texts = ((path, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tests").rglob("*.py")))
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, text in texts
        if "httpx2." in text
        for line in without_timeout(text)
    ]
    assert not found, "\n".join(found)


def test_a_default_is_found():
    calls = "httpx2.get(url)\nhttpx2.get(url, timeout=60)\nhttpx2.Client(**settings)\nclient.get(url)\nhttpx2.Client()"
    assert list(without_timeout(calls)) == [1, 5]
