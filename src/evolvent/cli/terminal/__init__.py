"""Parsing of command lines, and what a terminal shows."""
