"""Tree search as generators of requests: selection, expansion, valuing and backup; no model, no world."""
