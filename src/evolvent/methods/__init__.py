"""One file per paper, each composing the rooms below."""
