"""`python -m octavo.cli`: the same as the command octavo."""

import sys

from octavo.cli import main

sys.exit(main())
