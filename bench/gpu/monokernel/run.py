"""The monokernel on one GPU, right or wrong and how fast: `python bench/gpu/monokernel/run.py`.

Climbs from the smallest launch to speed within one budget, and turns to diagnosis where something
is wrong; writes one JSON in the results format, a page, a log and the ledger of what is done and
pending, rewritten after each part; says last what to run next. Needs a driver, and the packages of
`monolane[cuda]`; torch and transformers for the peers. It never changes the GPU's settings.
README.md tells how to read the page.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bench.gpu._campaign import Course, Part  # noqa: E402
from bench.gpu._device import gpu_info  # noqa: E402
from bench.gpu._script import Script  # noqa: E402
from bench.gpu._stage import Budget, NotMeasuredError, Stage  # noqa: E402
from bench.gpu.monokernel._carried import kernels_digest, provide  # noqa: E402
from bench.gpu.monokernel._ladder import Ladder  # noqa: E402
from bench.gpu.monokernel._ledger import PATH, Ledger, card_of  # noqa: E402
from bench.gpu.monokernel._page import render  # noqa: E402
from bench.gpu.monokernel._parts import parts  # noqa: E402
from bench.gpu.monokernel._scale import FULL, REHEARSAL  # noqa: E402
from bench.gpu.monokernel._trial import command_lines  # noqa: E402
from bench.gpu.probes import _context as probes  # noqa: E402
from monolane._results import Record, validate_document  # noqa: E402

_LEAST = 60.0  # seconds for which --next still makes sense


def make_stage(
    part: str, rehearse: bool, work: Path, budget: Budget, emit: Callable[[Record], None]
) -> Stage:
    """The surroundings of a part."""
    family, _, name = part.partition(":")
    if family == "probe":
        return probes.make_stage(name, rehearse, work, budget, emit)
    scale = REHEARSAL if rehearse else FULL
    return Stage(scale, work, budget, emit, {"engine": "monolane", "model": scale.model})


def make_course(options: Any, wanted: Sequence[Part]) -> Course:
    """The ladder of a run."""
    asked = [part.name for part in wanted]
    return Ladder(parts(options.rehearse), asked, Ledger.read(options.ledger), options)


SCRIPT = Script(
    path=Path(__file__).resolve(),
    doc=__doc__ or "",
    engine="monolane",
    what="monokernel",
    minutes=10.0,
    parts=parts,
    stage=make_stage,
    render=render,
    epilogue=command_lines,
    course=make_course,
    as_named=True,
)


def main(arguments: list[str]) -> int:
    """Exit status 0: all right and measured; 1: something failed; 2: usage."""
    p = SCRIPT.parser()
    p.add_argument("--next", type=float, metavar="SECONDS",
                   help="the most valuable pending parts that fit, by the ledger")  # fmt: skip
    p.add_argument("--then", type=float, default=300.0, metavar="SECONDS",
                   help="what the next command may take, which is printed last: 300")  # fmt: skip
    p.add_argument("--diagnose", action="store_true",
                   help="run every part that is named, whatever fails")  # fmt: skip
    p.add_argument("--ledger", type=Path, default=PATH, help="what is done and what is pending")
    p.add_argument("--fold", type=Path, nargs="+", metavar="RESULTS",
                   help="bring results files into the ledger, and stop")  # fmt: skip
    options = p.parse_args(arguments)
    if options.fold:
        return fold(options.ledger, options.fold)
    if options.tell is not None or options.child or options.list:
        return SCRIPT.main(arguments, options)
    if options.next is not None and (options.only or options.next < _LEAST):
        print(f"--next: expected {_LEAST:g} seconds or more, and no --only", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="packages-") as site:
        if folder := provide(options.carried, Path(site)):
            sys.path.insert(0, folder)
            before = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = f"{folder}:{before}" if before else folder
        return run(options, arguments)


def run(options: Any, arguments: list[str]) -> int:
    """The parts that are named, or those that the ledger chooses."""
    if options.next is not None:
        options.minutes = options.next / 60
        chosen = next_parts(options)
        if chosen == []:
            print("next: nothing: no part is pending on this card")
            return 0
        options.only = ",".join(chosen or ())
    return SCRIPT.main(arguments, options)


def next_parts(options: Any) -> list[str] | None:
    """What the ledger chooses for the GPU here; None without one: the first part says why."""
    try:
        card = card_of(gpu_info(options.rehearse).name)
    except NotMeasuredError:
        return None
    there = [part.name for part in parts(options.rehearse)]
    ledger = Ledger.read(options.ledger)
    return ledger.choose(card, options.next, kernels_digest(), there)


def fold(ledger: Path, results: Sequence[Path]) -> int:
    """Bring results files into the ledger."""
    made = Ledger.read(ledger)
    for path in results:
        document = json.loads(path.read_text(encoding="utf-8"))
        validate_document(document)
        made = made.folded(document, path.name)
    made.write(ledger)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
