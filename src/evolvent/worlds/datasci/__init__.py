"""Data science as acting: choose a model for a data set, in a small language or in free Python code."""
