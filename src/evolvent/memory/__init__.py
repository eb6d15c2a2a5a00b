"""Memories of demonstration steps (observation, thought, action), retrieved by similar text."""
