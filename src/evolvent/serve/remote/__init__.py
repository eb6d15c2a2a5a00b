"""A world that a server of the native dialect plays, as a world like any other."""
