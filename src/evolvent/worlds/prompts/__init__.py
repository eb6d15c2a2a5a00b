"""The world of a user's prompts: rows of a table, scored by functions, with tools that run when they are called."""

from __future__ import annotations

__all__ = ["MAX_TOKENS"]

MAX_TOKENS = 256
"""Longest reply in tokens where prompts are a user's, in Python and on the command line."""
