"""Text that the model writes after a prompt, for the eye: numbers do not show what it learnt.

The whole prefix is computed again for every token. It is slower than a cache of keys and values,
but this package stays free of the engine, and a few hundred tokens of a small model take seconds.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from monolane.train._demo.material import EOS


@dataclass(frozen=True)
class Sample:
    """A prompt and what the model wrote after it; temperature 0 is greedy."""

    prompt: str
    temperature: float
    seed: int
    text: str


@torch.inference_mode()
def write_sample(
    model: torch.nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> Sample:
    """Let the model continue ``prompt`` by up to ``tokens`` tokens."""
    model.eval()
    ids = list(tokenizer.encode(prompt).ids)
    prompt_length = len(ids)
    generator = torch.Generator().manual_seed(seed)
    while len(ids) < prompt_length + tokens:
        logits_V = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        token = _choose(logits_V, temperature, generator)
        if token == EOS:
            break
        ids.append(token)
    return Sample(prompt, temperature, seed, tokenizer.decode(ids[prompt_length:]))


def _choose(logits_V: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax(logits_V / temperature, dim=0)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
