"""``monolane verify --bits``: compute a GPU's answer anew on the processor, bit for bit."""

import json
import sys
from pathlib import Path

import typer

from monolane._progress import counted, still
from monolane.cli._report import print_note

_TOKENS = 16  # of a recorded answer, unless said otherwise


def verify_bits(
    model: str, file: Path, *, record: bool, prompt: str, tokens: int | None, as_json: bool
) -> bool:
    """Record an answer of the GPU here, or hold one against what it must be; True if it holds."""
    if record:
        return _record(model, file, prompt, tokens or _TOKENS, as_json)
    if tokens is not None:
        raise typer.BadParameter("--tokens: with --bits it counts with --record alone")
    from monolane.cuda import AnswerBits, check_answer
    from monolane.engine import ModelFiles
    from monolane.sources import find_model

    answer = AnswerBits.read(file)
    with still(f"loading {model}"):
        weights = ModelFiles.open(find_model(model)).weights()
    differs: int | None = None
    with counted("tokens", len(answer.logits), shown=not as_json) as step:
        for position, same in enumerate(check_answer(answer, weights)):
            if not same and differs is None:
                differs = position
            step()
    facts = {"tokens": len(answer.logits), "gpu": answer.gpu["name"], "differs_at": differs}
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    elif differs is None:
        sys.stdout.write(
            f"{len(answer.logits)} tokens of {answer.gpu['name']}, {answer.dtype}: "
            "the logits of each have the same bits here\n"
        )
    else:
        sys.stdout.write(f"LOGITS DIFFER from token {differs} on ({answer.gpu['name']})\n")
    return differs is None


def _record(model: str, file: Path, prompt: str, tokens: int, as_json: bool) -> bool:
    from monolane.cuda import CudaExecutor, record_answer
    from monolane.engine import Engine, ModelFiles
    from monolane.sources import find_model

    path = find_model(model)
    with still(f"loading {model}"):
        loaded = Engine.load(path, "cuda", prefix_cache="off")
    with loaded as engine:
        executor = engine.backend.executor
        assert isinstance(executor, CudaExecutor)
        ids = engine.prompt_ids(prompt)
        answer = record_answer(executor, ModelFiles.open(path).weights(), ids, tokens)
    answer.write(file)
    if not as_json:
        print_note(f"{file}: {len(answer.answer)} tokens of {answer.gpu['name']}")
    return True
