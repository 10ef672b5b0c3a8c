"""``monolane verify --lossless``: prove on the spot that no speed-up changes a bit of an answer."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from monolane._progress import counted, still
from monolane.cli._report import print_note

if TYPE_CHECKING:
    from monolane.engine import Engine
    from monolane.executor_api import Advance, Executor, TokenEvent

_DRAFTERS = {"draft": "the model", "heads": "heads"}
_LONG = 32  # tokens drafted for each pass, whether they pay or not
_SEQUENCES = 4  # in one pass
_ALTERNATIVES = 5  # whose log-probabilities are compared, too
_DRAWS = {"greedy": 0.0, "sampled": 0.8}  # temperatures


@dataclass(frozen=True)
class Check:
    """One answer, made in another way than token by token."""

    prompt: str
    draw: str
    way: str
    tokens: int
    differs_at: int | None  # the first token that is another, or has another log-probability
    drafted: int
    accepted: int


def verify_lossless(
    model: str, texts: Sequence[str], tokens: int, backend: str, draft: str | None, as_json: bool
) -> bool:
    """Answer each prompt plainly and in other ways, and compare bit by bit; True if all agree."""
    from monolane.engine import Engine

    with still(f"loading {model}"):
        loaded = Engine.load(
            model, backend, max_sequences=_SEQUENCES, prefix_cache="off", draft=draft
        )
    with loaded as engine:
        executor = engine.backend.executor
        named = _prompts(engine, texts, tokens)
        if not as_json:
            print_note(
                f"{len(named)} prompts, {tokens} tokens each, {executor.name} {executor.dtype}"
            )
        with counted("prompts", len(_DRAWS) * len(named), shown=not as_json) as step:
            checks = [x for draw in _DRAWS for x in _checks(engine, named, draw, tokens, step)]
    same = all(check.differs_at is None for check in checks)
    if as_json:
        sys.stdout.write(json.dumps({"same": same, "checks": list(map(asdict, checks))}) + "\n")
    else:
        _print(checks)
        verdict = "every bit is the same" if same else "ANSWERS DIFFER"
        sys.stdout.write(f"{len(checks)} answers: {verdict}\n")
    return same


def _checks(
    engine: "Engine",
    named: Sequence[tuple[str, tuple[int, ...]]],
    draw: str,
    tokens: int,
    step: Callable[[], None],
) -> list[Check]:
    from monolane.executor_api import AUTO_DRAFTS, Advance, Draw

    executor = engine.backend.executor
    checks: list[Check] = []
    requests: list[tuple[str, Advance, list[TokenEvent]]] = []

    def compare(name: str, way: str, got: "list[TokenEvent]", plain: "list[TokenEvent]") -> None:
        checks.append(_compare(name, draw, way, got, plain))

    for name, ids in named:
        asked = Advance(
            slot=0,
            token_ids=ids,
            budget=min(tokens, executor.context - len(ids) + 1),
            draw=Draw(temperature=_DRAWS[draw], seed=len(ids)),
            logprobs=_ALTERNATIVES,
            prompt=len(ids),
        )
        plain = _run(executor, [asked])
        requests.append((name, asked, plain))
        for way, drafts in (("drafts that pay", AUTO_DRAFTS), ("long drafts", _LONG)):
            compare(name, way, _run(executor, [replace(asked, drafts=drafts)]), plain)
            if executor.drafter:
                way = f"{way}, by {_DRAFTERS[executor.drafter]}"
                alone = replace(asked, drafts=drafts, drafter=executor.drafter)
                compare(name, way, _run(executor, [alone]), plain)
        answer = [*ids, *(event.token_id for event in plain)]
        vocab = engine.config.vocab_size
        other = [(token + 1) % vocab for token in answer]
        half = [o if i % 5 == 0 else a for i, (a, o) in enumerate(zip(answer, other, strict=True))]
        for way, script in (("right", answer), ("wrong", other), ("partly right", half)):
            if executor.drafts:
                executor.script(0, drafts=script)
                got = _run(executor, [replace(asked, drafts=_LONG)])
                compare(name, f"{way} drafts", got, plain)
                executor.script(0)
        if executor.keeps_prefixes and len(ids) > 1:
            compare(name, "a kept prefix", _behind_prefix(executor, asked), plain)
        step()
    for begin in range(0, len(requests), executor.slots):
        group = requests[begin : begin + executor.slots]
        batch = [replace(a, slot=i, drafts=AUTO_DRAFTS) for i, (_, a, _) in enumerate(group)]
        events = _run(executor, batch)
        for i, (name, _, plain) in enumerate(group):
            compare(name, "in a batch", [e for e in events if e.slot == i], plain)
    return checks


def _behind_prefix(executor: "Executor", asked: "Advance") -> "list[TokenEvent]":
    """Answer behind a half of the prompt that was read in another slot, and kept."""
    ids = asked.token_ids
    cut = len(ids) // 2
    executor.truncate(0, 0)
    executor.logits(0, ids[:cut])
    kept = executor.save(0, 0, cut)
    executor.truncate(1, 0)
    executor.restore(1, kept, kept.positions)
    rest = replace(asked, slot=1, token_ids=ids[cut:], history=ids[:cut], drafts=_LONG)
    return _read(executor, [rest])


def _run(executor: "Executor", advances: "Sequence[Advance]") -> "list[TokenEvent]":
    for advance in advances:
        executor.truncate(advance.slot, 0)
    return _read(executor, advances)


def _read(executor: "Executor", advances: "Sequence[Advance]") -> "list[TokenEvent]":
    executor.start(advances)
    events: list[TokenEvent] = []
    over = False
    while not over:
        over = executor.read(1.0)
        events += executor.take()
    return events


def _compare(
    prompt: str, draw: str, way: str, got: "list[TokenEvent]", plain: "list[TokenEvent]"
) -> Check:
    pairs = [[(event.token_id, event.logprob) for event in events] for events in (plain, got)]
    places = (i for i, (a, b) in enumerate(zip(*pairs, strict=False)) if a != b)
    shorter = min(map(len, pairs)) if len(pairs[0]) != len(pairs[1]) else None
    return Check(
        prompt,
        draw,
        way,
        len(plain),
        next(places, shorter),
        sum(event.drafted for event in got),
        sum(event.accepted > 0 for event in got),
    )


def _prompts(
    engine: "Engine", texts: Sequence[str], tokens: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return prompts with their names, one of them without a meaning."""
    import numpy as np

    longest = max(1, engine.backend.context - tokens)
    found: list[tuple[str, tuple[int, ...]]] = []
    if engine.tokenizer is not None:
        found += [(repr(text), engine.prompt_ids(text)[:longest]) for text in texts]
    # One that repeats itself, so that there is something to copy.
    unit = np.random.default_rng(0).integers(engine.config.vocab_size, size=40).tolist()
    found.append(("40 random tokens, again and again", tuple(unit * 8)[:longest]))
    return found


def read_prompts(path: Path) -> list[str]:
    """Return the texts of a file: a line each, as it is or as a JSON string."""
    from monolane.errors import RequestError

    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        found = [json.loads(line) if line.startswith('"') else line for line in lines]
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--prompts {path}: expected text, a prompt or a JSON string in each line, got: {error}"
        ) from None
    if not found:
        raise RequestError(f"--prompts {path}: expected a prompt in each line, got none")
    return found


def _print(checks: Sequence[Check]) -> None:
    sys.stdout.write(f"{'way':29} {'answers':>7} {'tokens':>7} {'drafted':>8} {'drawn':>7}  bits\n")
    for way in dict.fromkeys(check.way for check in checks):
        of = [check for check in checks if check.way == way]
        wrong = [check for check in of if check.differs_at is not None]
        sys.stdout.write(
            f"{way:29} {len(of):7} {sum(c.tokens for c in of):7,} {sum(c.drafted for c in of):8,} "
            f"{sum(c.accepted for c in of):7,}  {'differ' if wrong else 'the same'}\n"
        )
        for check in wrong:
            sys.stdout.write(f"  {check.draw}, token {check.differs_at}: {check.prompt:.80}\n")
