"""`evolvent train`: its recipes, their checks before they begin, and one module for each kind of training."""
