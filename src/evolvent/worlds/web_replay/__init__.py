"""Replay of recorded web pages: Mind2Web's files, or generated pages."""
