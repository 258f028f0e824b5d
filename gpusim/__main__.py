"""`python -m gpusim` is the `gpusim` command."""

import sys

from gpusim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
