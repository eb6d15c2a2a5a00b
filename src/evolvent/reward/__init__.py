"""Reward models of outcomes, spans and values: their data, their training rows, their scores, and how far to trust."""
