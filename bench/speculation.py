"""What drafts from the text itself bring: tokens per pass, cost of each width, speed.

    python bench/speculation.py [MODEL] [--dtype int8] [--own N] [--engine N] [--arctic FOLDER]
                                [--draft NAME] [--out DIR]

Sixty edits of files of Python's own library (``_edits.py``), tokenised by SmolLM2's tokenizer, are
replayed: a pass takes of a draft what the answer goes on with (``_replay.py``). The cost of a pass
of each width is measured on MODEL, a synthetic one or one on this machine, interleaved with plain
decoding, as one call of ``logits``: all rows go through the head, as a verification's
do. Tokens/s of a replay are its tokens, over the sum of what its passes cost and the time spent in
the drafter: simulated, from measured parts. A replay takes no account of what the model would say.

``--engine N`` decodes the first N texts of each kind with the engine's own loop instead, off and
auto in turns (``_spoken.py``): these tokens/s are of a clock. ``--own N`` takes for answers what
MODEL, a real one, says greedily, N tokens of each, in place of the edited files. ``--draft`` names
a draft model or a folder of heads, as ``monolane serve`` takes it, for ``--engine``; then each
drafter alone takes its turn, too.

``fixed N`` drafts up to N tokens always, ``auto`` as many as its own chances make worth their cost.
``--arctic`` names the folder of the module _C that arctic-inference's csrc/suffix_decoding builds.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _document import publish
from _edits import Trace, edits, prose
from _program import run_script
from _replay import Drafter, Ids, Replay, arctic, ours, replay
from _spoken import Speaker, tokens_per_second

from monolane.engine import Engine, SamplingParams
from monolane.measure import SYNTHETIC, LoadedModel, Record, summary, synthetic
from monolane.sources import find_model

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
CONTEXT = 1024  # tokens before a measured pass
PLAIN = 8  # tokens of a plain epoch
BUDGETS = (3, 7, 15, 31)
SEED = 14

Costs = list[float]  # ms of a pass by width; [1] is plain decoding's token
Text = tuple[str, Ids, Ids]  # kind, prompt, answer


def main() -> None:
    """Measure, replay and print."""
    parser = argparse.ArgumentParser(description="Speculation by suffixes, from measured parts.")
    parser.add_argument("model", nargs="?", default="laneformer-2b")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokenizer", default="smollm2", help="model whose tokenizer is used")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens before a timed pass")
    parser.add_argument("--each", type=int, default=15, help="traces of each kind of edit")
    parser.add_argument("--own", type=int, default=0, help="tokens that MODEL answers itself")
    parser.add_argument("--engine", type=int, default=0, help="texts of each kind to decode")
    parser.add_argument("--draft", help="with --engine: a draft model, or heads, beside suffixes")
    parser.add_argument("--tokens", type=int, default=400, help="of an answer that is decoded")
    parser.add_argument("--plain", type=int, default=48, help="of them with speculation off")
    parser.add_argument("--arctic", type=Path, help="folder of the peer's module _C")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    if options.draft and not options.engine:
        parser.error("--draft: expected --engine N too: nothing but a clock tells what it costs")
    name = options.model
    is_synthetic = name in SYNTHETIC
    folder = synthetic(name, lambda text: None) if is_synthetic else find_model(name)
    shown = f"synthetic-{name}" if is_synthetic else Path(name).name.removesuffix(".gguf")
    costs, records = pass_costs(folder, options, shown)
    texts = texts_of(options, is_synthetic)
    if options.engine:
        records += engine_records(folder, options, texts, shown)
    else:
        records += replays(options.arctic, texts, costs, shown)
    what = f"speculation-{shown}" + "-engine" * bool(options.engine) + "-own" * bool(options.own)
    what += f"-{Path(options.draft).name}" if options.draft else ""
    python = ".".join(map(str, sys.version_info[:3]))
    publish(records, what, options.out, python=python, tokenizer=options.tokenizer, seed=SEED)


def replays(peer: Path | None, texts: Sequence[Text], costs: Costs, shown: str) -> list[Record]:
    """Replay all texts with our drafter, and with the peer's if it is there."""
    makers: dict[str, Callable[[Ids], Drafter]] = {"monolane": ours}
    if peer is not None:
        sys.path.insert(0, str(peer.resolve()))
        makers["arctic-inference"] = arctic()
    records, begin = [], time.monotonic()
    for engine, make in makers.items():
        for case, budget, weighed in cases(engine):
            records += replay_records(engine, case, make, texts, budget, costs, weighed, shown)
            sys.stderr.write(f"{time.monotonic() - begin:.0f} s: {engine}, {case}\n")
    return records


def cases(engine: str) -> list[tuple[str, int, bool]]:
    """Return name, tokens of a draft at most, and whether its length is weighed against cost."""
    auto = [("auto", max(BUDGETS), True)] if engine == "monolane" else []
    return [*((f"fixed {budget}", budget, False) for budget in BUDGETS), *auto]


def texts_of(options: argparse.Namespace, is_synthetic: bool) -> list[Text]:
    """Return prompts and answers as token ids."""
    traces = [*edits(SEED, options.each), *prose()]
    if options.own:
        if is_synthetic:
            raise SystemExit("speculation: --own expected a real model: random weights say nothing")
        return own_answers(options.model, options.dtype, traces, options.own)
    with Engine.load(options.tokenizer) as engine:
        tokenizer = engine.tokenizer
        assert tokenizer is not None
        encode = tokenizer.encode
        return [(t.kind, ids(encode(t.prompt)), ids(encode(t.answer))) for t in traces]


def own_answers(model: str, dtype: str, traces: Sequence[Trace], tokens: int) -> list[Text]:
    """Return what a model answers greedily to the traces' prompts, as chat."""
    texts = []
    params = SamplingParams(max_tokens=tokens, temperature=0)
    with Engine.load(model, dtype=dtype) as engine:
        for trace in traces:
            prompt = engine.prompt_ids([{"role": "user", "content": trace.prompt}])
            if len(prompt) + tokens > engine.backend.context:
                continue
            answer = engine.generate(prompt, params)
            texts.append((trace.kind, ids(prompt), ids(answer.token_ids)))
            sys.stderr.write(f"{trace.kind}: {len(prompt)} tokens, {answer.finish_reason}\n")
    return texts


def ids(tokens: npt.ArrayLike) -> Ids:
    """Return token ids as the drafters take them."""
    return np.array(tokens, np.int32)


def pass_costs(folder: Path, options: argparse.Namespace, shown: str) -> tuple[Costs, list[Record]]:
    """Time plain decoding and passes of each width, in turns; widths between are interpolated."""
    context: int = options.context
    room = context + max(*WIDTHS, PLAIN)
    # The second slot goes on from a copy: a layer that keeps a state cannot be taken back to it.
    model = LoadedModel(folder, options.dtype, context=room, slots=2, workers=None)
    model.epoch(0, model.random_tokens(context), budget=1)
    rows = model.random_tokens(max(WIDTHS))
    times: defaultdict[int, list[float]] = defaultdict(list)  # 0: plain
    for number in range(options.rounds + 1):  # the first round warms up
        model.executor.copy(0, 1)
        _, drawn = model.epoch(1, rows[:1], PLAIN)
        found = {0: (drawn[-1] - drawn[0]) / (PLAIN - 1) / 1e6}
        for width in WIDTHS:
            model.executor.copy(0, 1)
            begin = time.perf_counter_ns()
            model.executor.logits(1, rows[:width])
            found[width] = (time.perf_counter_ns() - begin) / 1e6
        for width, milliseconds in found.items() if number else ():
            times[width].append(milliseconds)
    model.executor.close()
    records: list[Record] = []
    plain = summary(times[0], "ms a token: plain")["median"]
    for width, samples in sorted(times.items()):
        what = f"a pass of {width} tokens" if width else "a token: plain"
        of = {"engine": "monolane", "model": shown, "dtype": model.dtype, "context": context}
        more = {"width": width, "workers": model.workers}
        figures = summary(samples, f"ms {what}")
        cost = {"cost": round(figures["median"] / plain, 3)}
        records.append({"name": "speculation_pass", **of, **more, **figures, **cost})
    medians = [plain, *(float(np.median(times[width])) for width in WIDTHS[1:])]
    costs = np.interp(np.arange(max(WIDTHS) + 1), WIDTHS, medians)
    return [float(cost) for cost in costs], records


def replay_records(
    engine: str,
    case: str,
    make: Callable[[Ids], Drafter],
    texts: Sequence[Text],
    budget: int,
    costs: Costs,
    weighed: bool,
    shown: str,
) -> list[Record]:
    """Replay all texts; return a record for each kind, and one for all edits."""
    found: defaultdict[str, Replay] = defaultdict(Replay)
    for kind, prompt, answer in texts:
        one = replay(make, prompt, answer, budget, costs if weighed else None)
        for name in (kind, "edits") if kind != "prose" else (kind,):
            found[name].add(one)
    return [
        {
            "name": f"speculation {case}, {kind}",
            "engine": engine,
            "model": shown,
            "case": case,
            "kind": kind,
            "tokens": total.tokens,
            "tokens_per_pass": round(total.tokens / total.passes, 3),
            "accepted_share": round(total.accepted / max(total.drafted, 1), 4),
            "drafter_us_per_token": round(total.seconds / total.tokens * 1e6, 2),
            **speed(total, costs),
        }
        for kind, total in found.items()
    ]


def engine_records(
    folder: Path, options: argparse.Namespace, texts: Sequence[Text], shown: str
) -> list[Record]:
    """Decode some texts of each kind, off and auto in turns; return a record for kind and case."""
    by_kind: defaultdict[str, list[Text]] = defaultdict(list)
    for text in texts:
        by_kind[text[0]].append(text)
    chosen = [text for kind in by_kind.values() for text in kind[: options.engine]]
    if not options.own:
        chosen = renumbered(chosen)
    room = max(len(prompt) for _, prompt, _ in chosen) + options.tokens
    speaker = Speaker(folder, options.dtype, room, options.draft)
    speeds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    counts: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for kind, prompt, answer in chosen:
        speaker.read(prompt)
        tokens = min(options.tokens, len(answer))
        script = None if options.own else answer[:tokens].tolist()
        said = {}
        for case in turns(speaker.cases, len(speeds[kind, "off"])):
            count = min(tokens, options.plain) if case == "off" else tokens
            events = speaker.speak(prompt, count, case, script)
            said[case] = [event.token_id for event in events]
            speeds[kind, case].append(tokens_per_second(events))
            drafted = sum(event.drafted for event in events)
            right = sum(event.accepted > 0 for event in events)
            for i, value in enumerate((len(events), drafted, right)):
                counts[kind, case][i] += value
        if any(said["off"] != text[: len(said["off"])] for text in said.values()):
            raise SystemExit("speculation: expected the same text with speculation off and on")
        sys.stderr.write(f"{kind}: {speeds[kind, 'off'][-1]:.1f}, {speeds[kind, 'auto'][-1]:.1f}\n")
    records = []
    for (kind, case), found in speeds.items():
        figures = summary(found, f"tokens/s, speculation {case}, {kind}")
        ratios = [a / b for a, b in zip(found, speeds[kind, "off"], strict=True)]
        record: dict[str, Any] = {
            "name": "speculation engine",
            "engine": "monolane",
            "model": shown,
        }
        record |= {"dtype": speaker.executor.dtype, "case": case, "kind": kind}
        record |= {"tokens": options.plain if case == "off" else options.tokens}
        said_tokens, drafted, right = counts[kind, case]
        record |= {"drafted_share": round(drafted / said_tokens, 3)}
        record |= {"accepted_share": round(right / max(drafted, 1), 4)}
        if options.draft and case != "off":
            record |= {"draft": Path(options.draft).name}
        records.append({**record, **figures, "times_plain": round(float(np.median(ratios)), 3)})
    speaker.executor.close()
    return records


def turns(cases: Sequence[str], text: int) -> tuple[str, ...]:
    """Return the cases in an order that changes from text to text: machines drift."""
    at = text % len(cases)
    return (*cases[at:], *cases[:at])


def renumbered(texts: Sequence[Text]) -> list[Text]:
    """Return the texts with ids from 0 on: a synthetic vocabulary may be the smaller one."""
    known = np.unique(np.concatenate([part for text in texts for part in text[1:]]))
    return [
        (kind, ids(np.searchsorted(known, prompt)), ids(np.searchsorted(known, answer)))
        for kind, prompt, answer in texts
    ]


def speed(total: Replay, costs: Costs) -> dict[str, Any]:
    """Return tokens/s from measured parts, and how many times plain decoding that is."""
    milliseconds = total.milliseconds(costs)
    return {
        "simulated_tokens_per_s": round(total.tokens / milliseconds * 1e3, 2),
        "times_plain": round(total.tokens * costs[1] / milliseconds, 3),
    }


if __name__ == "__main__":
    run_script(main)
