"""What commands share: settings, and the worlds, policies, agents and runs that they name."""
