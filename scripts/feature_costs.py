"""What features cost, from git: `python scripts/feature_costs.py` writes CONTRIBUTING.md's table.

    python scripts/feature_costs.py             # anew, where the clone has the history
    python scripts/feature_costs.py REV NAME    # one commit, or a range, that is not in the list

Counts source files that a commit changed and made by hand: in src/ and csrc/, without tests, pages,
generated headers and stubs. A goal is no use if only the best case is shown, so the table ends with
medians.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
TABLE = re.compile(r"(?<=<!-- costs -->\n).*?(?=<!-- /costs -->)", re.DOTALL)
BY_HAND = re.compile(r"^(src|csrc)/(?!tests/|.*_abi\.h$|.*\.pyi$)")

FEATURES = {  # commit, or a range of them: what it brought
    "e3c8f7b": "layer: query and key norms, on reference alone",
    "79343d8": "layer: mixtures of experts",
    "e8d8474": "layer: GPT-OSS, MXFP4",
    "c153f38": "layer: latent attention",
    "395007e": "layer: a shared expert's gate",
    "c796d4b": "layer: gated delta rules",
    "71299b7": "layer: a gated short convolution, on reference and cpu",
    "9706bbe": "draw: three penalties",
    "7a9e195": "load: KV cache in int8 and int4",
    "035781b": "load: experts in a file",
    "910477b": "load: ranks of one host",
    "c844350": "load: ranks by TCP",
    "0036f77": "speculation: drafts verified in the pass",
    "6d42ae0": "speculation: drafts of guided answers",
    "4785659": "server: Responses",
    "7389f89": "server: Messages",
    "616db61": "server: llama.cpp's API",
}


@dataclass(frozen=True)
class Cost:
    """Source files of one feature."""

    changed: int
    new: int


def cost(revision: str) -> Cost:
    """Count the files of a commit, or of a range `A..B`."""
    span = revision if ".." in revision else f"{revision}^..{revision}"
    command = ["git", "-C", str(ROOT), "diff", "--name-status", "--no-renames", span]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    kinds = [kind for kind, path in rows if BY_HAND.search(path)]
    return Cost(kinds.count("M"), kinds.count("A"))


def table(features: dict[str, str]) -> str:
    """Return the rows, the medians last."""
    costs = {revision: cost(revision) for revision in features}
    lines = ["| feature | existing files | new files | commit |", "|---|---|---|---|"]
    for revision, name in features.items():
        lines.append(f"| {name} | {costs[revision].changed} | {costs[revision].new} | {revision} |")
    changed, new = (
        median(getattr(x, which) for x in costs.values()) for which in ("changed", "new")
    )
    lines.append(f"| **median of {len(costs)}** | **{changed:g}** | **{new:g}** | |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Exit status 2: usage."""
    if len(arguments) == 2:
        print(table({arguments[0]: arguments[1]}))
        return 0
    if arguments:
        print(__doc__)
        return 2
    PAGE.write_text(TABLE.sub(lambda _: table(FEATURES), PAGE.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
