"""``python -m pipeline``: the same as the command ``elmo-store``. May import pipeline.cli."""

import sys

from pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
