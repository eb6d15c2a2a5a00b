"""The command line, for `python -m evolvent` and `torchrun -m evolvent`."""

from evolvent.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
