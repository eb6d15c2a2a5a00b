"""Methods: one file per paper."""
