"""Measurements against peers and limits. Not part of the installed package."""
