"""How a script ends that cannot go on: with one message, as monolane's commands do."""

import sys
from collections.abc import Callable
from typing import NoReturn

from monolane.errors import MonolaneError


def run_script(main: Callable[[], None]) -> NoReturn:
    """Run a script; the process ends with 0 when done, and 1 after an error of ours."""
    try:
        main()
    except MonolaneError as error:
        sys.exit(f"{error}")
    sys.exit(0)
