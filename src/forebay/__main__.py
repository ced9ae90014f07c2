"""`python -m forebay` is the `forebay` command."""

import sys

from forebay.gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
