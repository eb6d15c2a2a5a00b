"""`evolvent data`: statistics, conversion, comments and selection of training data."""
