"""Tree search as generators of what they want: selection, expansion, valuing and backup; no model, no world."""
