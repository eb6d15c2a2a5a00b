"""Sessions held by worker processes, so that a server uses several cores and survives a crash of one."""
