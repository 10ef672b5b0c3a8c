"""Put on PYTHONPATH by scripts/sanitize: every Python process imports the sanitized core.

Here, and not in a conftest.py: processes that a test starts import it, too.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class SanitizedCore:
    """Finds ``monolane._core``, ahead of all other finders."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where it is."""
        del path, target
        found = name == "monolane._core"
        return spec_from_file_location(name, os.environ["SANITIZED_CORE"]) if found else None


sys.meta_path.insert(0, SanitizedCore)  # type: ignore[arg-type]
