"""Recorded web pages played again: Mind2Web's files, or pages of our own making."""
