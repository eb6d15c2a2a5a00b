"""Teams: rollouts as arrays, credit, updates and state of a training in which several agents decide at once."""
