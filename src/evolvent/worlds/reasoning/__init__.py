"""Worlds of one step: a question, a response with its rationale, and whether the answer is right."""
