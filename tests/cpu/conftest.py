"""What the tests of this folder share lies in modules beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
