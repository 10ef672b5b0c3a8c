"""What heads learn from: texts, what the model's head reads of them, and what the model says next.

Read by the engine that will draft, in its own arithmetic: heads are fed just that. By default the
texts are the model's own, answers to requests made of Python's library and continuations of code,
greedy and sampled in turns: what it says is what is to be guessed. Each text is a file of its own,
so a killed run goes on where it was.

Shape legend: T tokens of a text, N of all texts, D hidden, B best next tokens.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.engine import Engine, SamplingParams
from monolane.errors import TextError
from monolane.text import Tokenizer
from monolane.tune._stdlib_pairs import library_requests
from monolane.tune._windows import read_windows

BEST = 16  # next tokens of the model that are kept of each place: nearly all of its probability
_SEQUENCES = 8  # texts that are answered side by side
_SAMPLED = 0.8  # temperature of every other text
_STRIDE = 7  # every so manieth request: neighbours are of one file

Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Material:
    """Texts one behind the other."""

    ids: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]  # what the head reads of each token
    best: npt.NDArray[np.int32]  # what the model would say behind it, the most probable first
    chance: npt.NDArray[np.float32]
    starts: list[range]  # of each text, the places that are learnt from: its answer's
    ends: list[range]  # of each text, all of its places

    def places(self, depth: int, texts: slice) -> npt.NDArray[np.int64]:
        """Return the places of some texts behind which ``depth`` tokens of the text follow."""
        found = [np.arange(r.start, max(r.start, r.stop - depth)) for r in self.starts[texts]]
        return np.concatenate([np.empty(0, np.int64), *found])


def gather(
    engine: Engine,
    folder: Path,
    given_RC: npt.NDArray[np.int32] | None,
    count: int,
    context: int,
    seed: int,
    step: Step,
) -> Material:
    """Read ``count`` texts of ``context`` tokens, those that ``folder`` lacks; return them all.

    given   what ``given_texts`` returns, of which there may be fewer; None: the model's own
    step    called after each text; what it raises ends the reading
    """
    folder.mkdir(exist_ok=True)
    if given_RC is None:
        make = _own(engine, count, context, seed)
    else:
        # None twice: those that are held out would be learnt from.
        make, count = _given(given_RC), min(count, len(given_RC))
    lock = Lock()  # logits of a text are large

    def read(number: int) -> None:
        path = folder / f"text-{number:06}.npz"
        if not path.is_file():
            begin, ids = make(number)
            fed = ids.tolist()
            hidden = engine.hidden(fed).astype(np.float16)
            with lock:
                best, chance = _best(engine.logits(fed))
            aside = path.with_suffix(".new")
            with aside.open("wb") as file:
                np.savez(file, ids=ids, hidden=hidden, best=best, chance=chance, begin=begin)
            aside.replace(path)

    with ThreadPoolExecutor(_SEQUENCES) as pool:
        try:
            for _ in pool.map(read, range(count)):
                step()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return _joined(folder, count)


def _best(
    logits_TV: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    peak_T1 = logits_TV.max(axis=1, keepdims=True)
    total_T1 = np.exp(logits_TV - peak_T1).sum(axis=1, keepdims=True)
    best_TB = np.argpartition(-logits_TV, BEST, axis=1)[:, :BEST]
    found_TB = np.take_along_axis(logits_TV, best_TB, axis=1)
    order_TB = np.argsort(-found_TB, axis=1, kind="stable")
    chance_TB = np.exp(np.take_along_axis(found_TB, order_TB, axis=1) - peak_T1) / total_T1
    best_TB = np.take_along_axis(best_TB, order_TB, axis=1)
    return best_TB.astype(np.int32), chance_TB.astype(np.float16)


_Make = Callable[[int], tuple[int, npt.NDArray[np.int32]]]  # number -> first place learnt from, ids


def given_texts(text: Path, tokenizer: Tokenizer, context: int, seed: int) -> npt.NDArray[np.int32]:
    """Return the texts of a file or folder as ``monolane retrofit --distil`` takes it.

    [R, C], in the order in which they are read. TextError where there are too few.
    """
    windows = read_windows(text, tokenizer, context, seed)
    rows_RC = np.concatenate([windows.train_RC, windows.held_out_RC]).astype(np.int32)
    return rows_RC[np.random.default_rng(seed).permutation(len(rows_RC))]


def _given(rows_RC: npt.NDArray[np.int32]) -> _Make:
    return lambda number: (0, rows_RC[number])


def _own(engine: Engine, count: int, context: int, seed: int) -> _Make:
    requests = islice(library_requests(), seed % _STRIDE, None, _STRIDE)
    prompts: list[tuple[int, ...]] = []
    for number, request in enumerate(requests):
        # In turns, so that the model has to answer and to go on: a chat, and plain code.
        code = request.assistant[: len(request.assistant) // 4 + 1]
        chat = [{"role": "user", "content": request.user}]
        ids = engine.prompt_ids(chat if number % 2 else code)
        if len(ids) <= context // 2:
            prompts.append(ids)
        if len(prompts) == count:
            break
    if len(prompts) < count:
        raise TextError(
            f"texts: expected at most {len(prompts)}, which Python's library gives prompts of at "
            f"most {context // 2} tokens for, got {count}; ask for fewer, or give --text"
        )

    def answer(number: int) -> tuple[int, npt.NDArray[np.int32]]:
        prompt = prompts[number]
        warm = _SAMPLED if number // 2 % 2 else 0.0
        left = context - len(prompt)
        params = SamplingParams(max_tokens=left, temperature=warm, seed=seed + number)
        said = engine.generate(prompt, params).token_ids
        return len(prompt) - 1, np.array([*prompt, *said], np.int32)

    return answer


def _joined(folder: Path, count: int) -> Material:
    parts: dict[str, list[npt.NDArray[Any]]] = {n: [] for n in ("ids", "hidden", "best", "chance")}
    starts: list[range] = []
    ends: list[range] = []
    at = 0
    for number in range(count):
        with np.load(folder / f"text-{number:06}.npz") as file:
            for name, found in parts.items():
                found.append(file[name])
            begin = int(file["begin"])
        starts.append(range(at + begin, at + len(parts["ids"][-1])))
        ends.append(range(at, starts[-1].stop))
        at = starts[-1].stop
    ids, hidden, best, chance = (np.concatenate(found) for found in parts.values())
    return Material(ids, hidden, best, chance.astype(np.float32), starts, ends)
