"""Agents: what turns observations into actions."""
