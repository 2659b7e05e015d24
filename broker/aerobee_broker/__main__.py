"""`python -m aerobee_broker` is `aerobee`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip looks at requires-python; a copied directory is started without pip
    _found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.exit(f"aerobee: Python {_found} is too old; run it with Python 3.11 or newer")

from aerobee_broker.cli import main

sys.exit(main())
