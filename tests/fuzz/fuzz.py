"""Read many inputs of each kind, and say what came of them: for the gate few, by hand many.

    python tests/fuzz/fuzz.py [INPUTS of each kind] [FIRST input] [KIND ...]

An input is a function of kind and number, so that one that fails can be made again.
"""

import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from readers import CASES

from monolane.errors import MonolaneError


@dataclass(slots=True)
class Outcome:
    """How many inputs of a kind were read, and refused; and the faults, each with its number."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(kind: str, inputs: int, first: int = 0) -> Outcome:
    """Read inputs of a kind. Anything but a result, or an error of ours, is a fault."""
    outcome, case = Outcome(), CASES[kind]
    for number in range(first, first + inputs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case.write(random.Random(f"{kind} {number}"), folder)
            try:
                case.read(folder)
                outcome.read += 1
            except MonolaneError as error:
                outcome.refused[type(error).__name__] += 1
            except (Exception, RecursionError) as error:  # what nobody should ever see
                outcome.faults.append(f"{kind} {number}: {type(error).__name__}: {error!s:.200}")
    return outcome


def main() -> None:
    """Print a line for each kind; end with 1 if there was a fault."""
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    failed = False
    for kind in sys.argv[3:] or CASES:
        found = fuzz(kind, inputs, first)
        refused = ", ".join(f"{count} {name}" for name, count in sorted(found.refused.items()))
        sys.stdout.write(f"{kind}: {found.read} read, refused: {refused or 'none'}\n")
        for fault in found.faults:
            failed = True
            sys.stdout.write(f"  {fault}\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
