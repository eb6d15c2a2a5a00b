"""Beliefs of agents and their stopping rules: summaries, detectors, outcomes, filters and planners."""
