"""``monolane train`` that waits behind a step: whoever is to kill it amid its work comes in time.

    python held.py 50 train tiny run

Started by tests, in place of ``python -m monolane``.
"""

import sys
import time

from monolane.cli import main
from monolane.train._journal import Journal
from monolane.train._record import StepRecord


def hold(step: int) -> None:
    """Have the process that keeps the journal stand still behind a step."""
    note = Journal.step

    def noted(journal: Journal, record: StepRecord) -> None:
        note(journal, record)
        if record.step == step:
            time.sleep(3600)

    Journal.step = noted  # type: ignore[method-assign]


if __name__ == "__main__":
    hold(int(sys.argv.pop(1)))
    main()
