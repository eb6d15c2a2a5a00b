"""Exact graders: an answer is compared in this process, with no model and no network."""
