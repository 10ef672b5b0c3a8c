"""A vocabulary: byte-level BPE, trained on the text that the model learns.

Byte-level, because any text must survive the round trip; the pieces that merges stay inside are
cut for source code: a line break carries its indentation, and each digit stands alone.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from monolane.errors import TextError
from monolane.text import MODEL_INPUTS

BOS = 1
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<|start_header_id|>", "<|end_header_id|>")

# Alternatives are tried in order; together they match every character, so nothing is lost.
_PIECES = "|".join(
    (
        r"(?:\r?\n)+[ \t]*",  # line breaks with the indentation that follows
        r"\p{N}",  # one digit
        r" ?[\p{L}\p{M}_]+",  # a name, with the space before it
        r" ?[^\s\p{L}\p{M}\p{N}_]+",  # punctuation, likewise
        r"[^\S\r\n]+(?!\S)",  # spaces, all but the one that belongs to the next word
        r"\s",
    )
)


def train_vocabulary(texts: Iterable[str], size: int) -> Tokenizer:
    """Train a byte-level BPE of exactly ``size`` tokens, the special ones first."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(_PIECES), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    if tokenizer.get_vocab_size() != size:
        raise TextError(
            f"expected text with enough distinct pieces for {size} tokens, it gave "
            f"{tokenizer.get_vocab_size()}; use more text or a smaller vocab_size"
        )
    return tokenizer


def write_vocabulary(tokenizer: Tokenizer, folder: Path, context: int | None = None) -> None:
    """Write the tokenizer's files in Hub layout; ``context``: the model's, in tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "additional_special_tokens": list(SPECIAL_TOKENS[3:]),
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": list(MODEL_INPUTS),
        **({} if context is None else {"model_max_length": context}),
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    for name, value in (("tokenizer_config", config), ("special_tokens_map", special)):
        text = json.dumps(value, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
