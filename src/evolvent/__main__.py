"""`python -m evolvent`, and so `torchrun -m evolvent`: the command line."""

from evolvent.cli.main import main

raise SystemExit(main())
