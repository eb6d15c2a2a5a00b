"""Gymnasium both ways: its environments as worlds, and worlds as its environments."""
