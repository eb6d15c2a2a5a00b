"""Where a run's verbs happen: in this process, or elsewhere."""
