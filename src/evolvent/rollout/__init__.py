"""Rollouts of agents in worlds, many episodes at once, and evaluation of panels."""
