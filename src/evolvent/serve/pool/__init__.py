"""Sessions held by worker processes, so that a server uses several cores and outlives a crash."""
