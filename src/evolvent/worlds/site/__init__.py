"""Generated web sites in the form of WebArena: one database, three sites over it, a browser of text, and its world."""
