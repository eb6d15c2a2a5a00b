"""The plume world: where does it come from, and how strongly? Source term estimation with a moving, noisy sensor."""
