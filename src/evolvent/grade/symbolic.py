"""Whether two mathematical expressions are equal, asked of math-verify (extra `math`), which asks sympy.

This module is imported where the extra is there and a pair of answers needs it; its function is made to run in a
process that can be killed (`evolvent.workers`). math-verify 0.9 freezes on huge powers, its own time limit needs the
main thread, and its comparison is not symmetric: the gold answer comes first.
"""

from __future__ import annotations

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

__all__ = ["same"]

_FORMS = (LatexExtractionConfig(), ExprExtractionConfig())


def same(gold: str, answer: str) -> bool | None:
    """Whether an answer equals the gold answer; None where the gold answer cannot be read as mathematics.

    Args:
        gold, answer: LaTeX without the dollars around. An answer that cannot be read equals nothing.
    """
    right = parse(f"${gold}$", _FORMS, parsing_timeout=None)
    if not right:
        return None
    found = parse(f"${answer}$", _FORMS, parsing_timeout=None)
    return bool(found) and bool(verify(right, found, timeout_seconds=None))
