"""`python -m evolvent`, and so `torchrun -m evolvent`: the command line."""

from evolvent.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
