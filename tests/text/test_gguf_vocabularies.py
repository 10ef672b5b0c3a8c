"""Published vocabularies against the ids that llama.cpp expects of them.

They lie in the source package of llama-cpp-python, which is too large to fetch in a test:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz --wildcards '*/vendor/llama.cpp/models/*'
    export MONOLANE_VOCABULARIES=$PWD/llama_cpp_python-0.3.36/vendor/llama.cpp/models
    pytest tests/text/test_gguf_vocabularies.py

docs/gguf.md has the table of what comes out.
"""

import os
from pathlib import Path

import pytest

from monolane.errors import TextError
from monolane.model import GgufFile
from monolane.text import GgufText, Tokenizer

NAME = "MONOLANE_VOCABULARIES"
FOLDER = os.environ.get(NAME, "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason=f"{NAME} names no folder with ggml-vocab-*.gguf"),
]
MATCHING = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
    "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
REFUSED = {"bert-bge": "bert", "nomic-bert-moe": "t5"}
UNTOLD = ("aquila", "baichuan", "gpt-neox")  # no expected ids beside them


def tokenizer(path: Path) -> Tokenizer:
    text = GgufText.open(GgufFile(path).metadata, path)
    assert text is not None
    return Tokenizer.of_gguf(text)


def texts(path: Path) -> list[str]:
    whole = path.with_name(f"{path.name}.inp").read_bytes().decode()
    between = "\n__ggml_vocab_test__\n"
    return whole.removesuffix(between).split(between)


def test_every_vocabulary_is_in_a_list() -> None:
    there = {path.stem.removeprefix("ggml-vocab-") for path in Path(FOLDER).glob("*.gguf")}
    assert there == {*MATCHING, *REFUSED, *UNTOLD}


@pytest.mark.parametrize("name", MATCHING)
def test_ids_are_llama_cpps(name: str) -> None:
    path = Path(FOLDER) / f"ggml-vocab-{name}.gguf"
    found = tokenizer(path)
    wanted = path.with_name(f"{path.name}.out").read_text().splitlines()
    for text, ids in zip(texts(path), wanted, strict=True):
        assert found.encode(text, add_special_tokens=False) == [int(i) for i in ids.split()], text


@pytest.mark.parametrize("name", UNTOLD)
def test_those_without_expected_ids_give_their_texts_back(name: str) -> None:
    found = tokenizer(Path(FOLDER) / f"ggml-vocab-{name}.gguf")
    for text in texts(Path(FOLDER) / "ggml-vocab-llama-spm.gguf"):
        assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name: str) -> None:
    with pytest.raises(TextError, match=f"tokenizer.ggml.model: .* got '{REFUSED[name]}'"):
        tokenizer(Path(FOLDER) / f"ggml-vocab-{name}.gguf")
