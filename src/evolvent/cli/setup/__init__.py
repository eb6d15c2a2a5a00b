"""Settings that commands share, and the worlds, policies, agents and runs that they name."""
