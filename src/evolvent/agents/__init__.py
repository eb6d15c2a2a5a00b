"""Agents, which turn observations into actions."""
