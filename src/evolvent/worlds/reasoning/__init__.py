"""Worlds of one step: a question, a response with a rationale, and a verdict on its answer."""
