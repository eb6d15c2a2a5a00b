"""Environments and their task panels, one file per world. No torch here."""
