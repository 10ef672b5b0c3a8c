"""Draws a results file of 'monolane bench' as --plot does, long after it was measured.

python bench/plot.py bench/results/2026-11-21-amd-epyc-synthetic-laneformer-2b.json out.svg
"""

import argparse
import json
from pathlib import Path

from monolane.measure import plot_bench, validate_document


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    document = json.loads(given.results.read_text())
    validate_document(document)
    device = document["device"]
    title = f"{document['records'][-1]['model']} on {device['name']}, {device['cores']} cores"
    plot_bench(document["records"], title, given.picture)


if __name__ == "__main__":
    main()
