"""Pure, seeded functions on trajectories and rows that select training data and set its proportions."""
