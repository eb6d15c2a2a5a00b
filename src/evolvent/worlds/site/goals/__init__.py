"""The parts of tasks: how a target is described, and what is to be asked of it or done with it."""
