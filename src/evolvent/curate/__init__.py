"""Pure, seeded functions on trajectories: what is learned, and in which proportions."""
