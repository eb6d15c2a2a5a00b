"""Fault 42: an answer made to hang, to fill memory or to break its grader ends its process, and never passes."""

from __future__ import annotations

import ast
import os

import pytest

from evolvent.errors import GraderTimeout, ScoringError
from evolvent.workers import Workers


def grade(answer: str, reference: str) -> bool:
    """A careless grader: it computes what the answer says, as libraries for mathematics do, and ends as they may."""
    if answer == "exit":
        os._exit(0)
    tree = ast.parse(answer, mode="eval").body
    return compute(tree) == int(reference)


def compute(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        left, right = compute(node.left), compute(node.right)
        return left**right if isinstance(node.op, ast.Pow) else left * right
    if isinstance(node, ast.List):
        return compute(node.elts[0])
    return int(ast.literal_eval(node))


@pytest.fixture(scope="module")
def grader():
    with Workers(grade, wall_s=1.0, memory_mb=256, max_processes=1) as workers:
        yield workers


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("9**9**9", GraderTimeout),
        ("[" * 10_000 + "4" + "]" * 10_000, ScoringError),
        ("10**10**8 * 10**10**8", (GraderTimeout, ScoringError)),
        (r"\frac{" * 5000, ScoringError),
        ("what", ScoringError),
        ("4\0", ScoringError),
        ("exit", ScoringError),
        ("", ScoringError),
    ],
    ids=["tower", "brackets", "memory", "latex", "raises", "nul", "exit", "empty"],
)
def test_no_hostile_answer_passes_and_the_next_one_is_graded(grader, answer, error):
    with pytest.raises(error):
        grader.call(answer, "4")
    assert grader.call("2*2", "4") is True
    assert grader.call("2*3", "4") is False
