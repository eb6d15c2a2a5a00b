"""Backends of a run: the operations happen in this process, on an endpoint, or on a cluster."""
