"""Drives agents through worlds, many episodes at once, and evaluates panels."""
