"""Equality of two mathematical expressions by math-verify (extra `math`), which uses sympy.

This module is imported only where the extra is installed and a pair of answers needs it; its function runs in a
process that can be killed (`evolvent.workers`). math-verify 0.9 freezes on huge powers, its time limit needs
the main thread, and its comparison is not symmetric: the gold answer comes first.
"""

from __future__ import annotations

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

__all__ = ["is_same_expression"]

_FORMS = (LatexExtractionConfig(), ExprExtractionConfig())


def is_same_expression(gold: str, answer: str) -> bool | None:
    """Returns whether an answer equals the gold answer; None where the gold answer cannot be parsed as mathematics.

    Args:
        gold, answer: LaTeX without dollars around it. An answer that cannot be parsed equals nothing.
    """
    parsed_gold = parse(f"${gold}$", _FORMS, parsing_timeout=None)
    if not parsed_gold:
        return None
    parsed_answer = parse(f"${answer}$", _FORMS, parsing_timeout=None)
    return bool(parsed_answer) and bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))
