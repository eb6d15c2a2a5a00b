"""Training of weights: trajectories become token sequences, sequences become batches, a Learner minimizes a loss."""

from importlib.util import find_spec

from evolvent.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra("train", "learning")
