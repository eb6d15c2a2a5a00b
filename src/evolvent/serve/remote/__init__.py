"""A world that a server of the native dialect runs, used like any other world."""
