"""Real weights: SmolLM2-135M-Instruct in Q4_1, beside llama.cpp on the same file.

The texts are llama.cpp's (that of llama-cpp-python 0.3.36), greedy:
    llama-completion -m SmolLM2-135M-Instruct.Q4_1.gguf -p PROMPT -n 48 --temp 0 -no-cnv
Each is kept up to the first token whose logit leads by less than 0.4, twice the root mean square by
which activations in int8 move a logit of this model: beyond, two right programs may part.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from monolane.engine import Engine, SamplingParams

pytestmark = pytest.mark.slow

TEXTS = {
    "Gravity is the force that": " holds the universe together. It's a fundamental concept",
    "The first ten prime numbers are": " 2, 3, 5, 7, 11, 13, 17, 19, 21, 23,",
    "Photosynthesis is the process by which": " plants convert sunlight into energy. This process",
}
PROSE = (
    "The sun rose over the quiet village, and the baker opened his shop. He had been awake since "
    "three in the morning, kneading dough and heating the old brick oven. By seven, the smell of "
    "fresh bread had reached the church, and the first customers stood in line at the door."
)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def engine(request: pytest.FixtureRequest, smollm2: Path) -> Engine:
    return Engine.load(smollm2, request.param, context=128)


@pytest.mark.parametrize("prompt", TEXTS)
def test_the_text_is_that_of_llama_cpp(engine: Engine, prompt: str) -> None:
    wanted = TEXTS[prompt]
    assert engine.tokenizer is not None
    count = len(engine.tokenizer.encode(wanted))
    answer = engine.generate(prompt, SamplingParams(max_tokens=count, temperature=0.0))
    assert answer.text == wanted


def surprise(rows: np.ndarray, ids: Sequence[int]) -> float:
    """Return the mean of -ln p of each token behind its predecessors, in nats."""
    rows = rows[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    chosen = rows[np.arange(len(rows)), ids[1:]] - np.log(np.exp(rows).sum(axis=1))
    return float(-chosen.mean())


def test_logits_are_those_of_transformers(smollm2: Path) -> None:
    """On the dequantised weights, in float32; and what int8 activations cost on the CPU backend.

    They cost 0.024 nats a token here on AVX-512; sets of instructions differ in rounding alone.
    """
    transformers = pytest.importorskip("transformers", reason="needs monolane[hf]")
    torch = pytest.importorskip("torch", reason="needs monolane[hf]")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    with Engine.load(smollm2, "reference", context=128) as oracle:
        ids = oracle.prompt_ids(PROSE)
        ours = oracle.logits(ids)
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    # 30 layers of sums over up to 1,536 float32 products in another order; logits reach 30.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)
    with Engine.load(smollm2, "cpu", context=128) as engine:
        assert surprise(engine.logits(ids), ids) - surprise(ours, ids) < 0.05
