"""`python -m aerobee_broker` is `aerobee`."""

import sys

from aerobee_broker.cli import main

sys.exit(main())
