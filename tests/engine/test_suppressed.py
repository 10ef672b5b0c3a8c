"""Tokens that a model's files say are never drawn, whatever a request says."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monolane import Engine, SamplingParams
from monolane._draw import Draw
from monolane.errors import ConfigError, TextError
from monolane.sources import unpack_gguf

from .test_dense import write

torch = pytest.importorskip("torch")

PROMPT = [5, 6, 7, 8]
KEY = "tokenizer.ggml.suppress_tokens"


def greedy(folder: Path, backend: str = "cpu", **params: Any) -> list[int]:
    """Return what an engine draws behind the prompt, past the end of the text (id 2)."""
    params["logit_bias"] = {2: -math.inf} | params.get("logit_bias", {})
    with Engine.load(folder, backend, "float32", context=64) as engine:
        return list(engine.generate(PROMPT, SamplingParams(max_tokens=20, **params)).token_ids)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_folder_s_are_those_of_transformers(backend: str, tmp_path: Path) -> None:
    """A bias does not bring one back; ids of no token say nothing, there as here."""
    model = write(tmp_path)

    def theirs() -> list[int]:
        ids = torch.tensor([PROMPT])
        length = {"max_new_tokens": 20, "min_new_tokens": 20}
        whole: list[int] = model.generate(ids, do_sample=False, **length)[0].tolist()
        return whole[len(PROMPT) :]

    plain = theirs()
    assert greedy(tmp_path, backend) == plain
    banned = [plain[0], plain[-1], -1, 4000]
    model.generation_config.suppress_tokens = banned
    model.generation_config.save_pretrained(tmp_path)
    wanted = theirs()
    assert not {*banned} & {*wanted}
    assert greedy(tmp_path, backend) == wanted
    assert greedy(tmp_path, backend, logit_bias={plain[0]: 100.0}) == wanted


def test_a_draw_without_tokens_is_the_draw_itself() -> None:
    draw = Draw(logit_bias=((3, 1.0), (7, -2.0)))
    assert draw.without(frozenset()) is draw
    assert draw.without({7, 5}).logit_bias == ((3, 1.0), (5, -math.inf), (7, -math.inf))


@pytest.mark.parametrize("wrong", ["3", 3, [1.5], ["3"], [True], {"3": 1}])
def test_what_is_no_list_of_ids_is_refused(wrong: Any, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"suppress_tokens": wrong}))
    with pytest.raises(ConfigError, match=r"generation_config.json: suppress_tokens: expected tok"):
        Engine.load(tmp_path)


def test_what_is_not_honoured_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"begin_suppress_tokens": [3]}')
    Engine.load(tmp_path).close()
    assert "generation_config.json: begin_suppress_tokens is ignored" in caplog.text


def test_a_gguf_file_s_and_of_the_folder_that_it_becomes(
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Callable[..., Path],
    tmp_path: Path,
) -> None:
    fields, arrays = tiny_llama
    plain = greedy(write_gguf(tmp_path / "plain.gguf", fields, arrays))
    banned = sorted({plain[0], plain[-1]})
    path = write_gguf(tmp_path / "x.gguf", fields | {KEY: [*banned, -1, 4000]}, arrays)
    found = greedy(path)
    assert not {*banned} & {*found}
    unpack_gguf(path, tmp_path / "out")
    said = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert said == {"eos_token_id": [2], "suppress_tokens": banned}
    assert greedy(tmp_path / "out") == found
    path = write_gguf(tmp_path / "y.gguf", fields | {KEY: ["a"]}, arrays)
    with pytest.raises(TextError, match=rf"{KEY}: expected token ids, got"):
        Engine.load(path)
