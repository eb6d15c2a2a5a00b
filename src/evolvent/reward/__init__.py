"""Reward models of outcomes, spans and values: their data, training rows, scores and calibration."""
