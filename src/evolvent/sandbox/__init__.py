"""Isolated execution of model-written code; a sandbox returns values, never grades."""
