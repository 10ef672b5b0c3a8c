"""Small tokenizers of the two kinds that model folders hold, built here and saved as such."""

import json
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library

from monolane.text import Tokenizer

CORPUS = ["the cat sat on the mat, the end", "über naïve café 日本語 🙂", "def f(x):\n    return x"]


def _llama() -> Library:
    """As in Llama 2: merges over '▁', bytes for the rest, one leading space off the whole text."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("i", "n"), ("▁", "▁"), ("e", "r")]
    for token in [*"▁abcdefghijklmnopqrstuvwxyz<>/|_.,é日", *(a + b for a, b in merges)]:
        vocab.setdefault(token, len(vocab))
    model = models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    library = Library(model)
    prepend = normalizers.Prepend("▁")
    library.normalizer = normalizers.Sequence([prepend, normalizers.Replace(" ", "▁")])
    space, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    library.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), strip])
    library.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return library


def _byte_level() -> Library:
    """As in Llama 3 and Qwen: bytes as letters, control tokens of both markings, runs of spaces."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(CORPUS * 5, trainer)
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|end|>"])
    library.add_tokens(["<think>", "</think>", AddedToken("        ", normalized=False)])
    return library


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    _llama().save(str(folder / "tokenizer.json"))
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True},
        "unk_token": "<unk>",
        "tokenizer_class": "LlamaTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    _byte_level().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def llama(llama_folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.open(llama_folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="session")
def byte_level(byte_folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.open(byte_folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="session", params=["llama", "byte_level"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found
