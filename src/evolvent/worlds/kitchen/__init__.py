"""A text kitchen in the manner of Overcooked: fetch, chop, lay on a plate, deliver."""
