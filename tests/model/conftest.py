"""Lets the tests of models import what they share: packed_folders.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
