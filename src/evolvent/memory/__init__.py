"""What others saw, thought and did at a like moment: steps of trajectories, found by what is written in them."""
