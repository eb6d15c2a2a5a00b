"""Learning: trajectories become parts, parts become batches, and a Learner changes the weights by a loss."""

from importlib.util import find_spec

from evolvent.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra("train", "learning")
