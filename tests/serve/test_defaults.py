"""How to draw where nobody says: the model's files, other files, options, and requests first."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from monolane import Engine, SamplingParams
from monolane.cli import app
from monolane.cli._defaults import read_defaults, server_defaults, terminal_defaults
from monolane.engine import SamplingDefaults
from monolane.errors import ConfigError, RequestError
from monolane.serve._openai.body import ChatRequest
from monolane.sources import _packaged as packaged
from monolane.sources import find_model

SAID = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.05,
    "max_new_tokens": 7,
}
READ = SamplingDefaults(
    temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.05, max_tokens=7
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the demo with a generation_config.json that says how to draw."""
    folder = tmp_path / "model"
    shutil.copytree(find_model("demo"), folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | SAID))
    return folder


def test_a_folder_says_how_to_draw(folder: Path) -> None:
    with Engine.load(folder) as engine:
        assert engine.defaults == READ
    with Engine.load("demo") as engine:
        assert engine.defaults == SamplingDefaults()


def test_gguf_metadata_say_how_to_draw() -> None:
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "general.sampling.penalty_repeat": 1.0,
    }
    found = SamplingDefaults.of_gguf(metadata, "x.gguf")
    assert found == SamplingDefaults(temperature=0.5, top_k=40, repetition_penalty=1)


def test_a_packaged_model_has_its_own(llama_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its file lies is nobody's business; another name or another size is another model."""
    own = packaged.PACKAGED["smollm2"]
    assert own.defaults == {"temperature": 0.2, "top_p": 0.9}

    def drawn(**changes: Any) -> SamplingDefaults:
        found = {"member": f"in/{llama_gguf.name}", "file_bytes": llama_gguf.stat().st_size}
        monkeypatch.setitem(packaged.PACKAGED, "smollm2", replace(own, **found | changes))
        with Engine.load(llama_gguf) as engine:
            return engine.defaults

    assert drawn() == SamplingDefaults(**own.defaults)
    assert drawn(member="in/other.gguf") == drawn(file_bytes=1) == SamplingDefaults()
    monkeypatch.setattr(SamplingDefaults, "of_gguf", lambda *_: READ)
    assert drawn() == READ  # what the file says goes first


@pytest.mark.parametrize("value", [-1, "hot", [0.5]])
def test_wrong_values_are_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"file: temperature: expected a number.*mend the file"):
        SamplingDefaults.of_config({"temperature": value}, "file")


def test_a_request_goes_first() -> None:
    def drawn(**fields: Any) -> Any:
        return ChatRequest(messages=[{"role": "user", "content": "x"}], **fields).asked(READ)

    asked = drawn()
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
    assert (sampling.min_p, sampling.repetition_penalty, asked.max_tokens) == (0.01, 1.05, 7)
    asked = drawn(temperature=0, top_k=-1, top_p=1, min_p=0, repeat_penalty=1, max_tokens=100)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 0, 1)
    assert (sampling.min_p, sampling.repetition_penalty, asked.max_tokens) == (0, 1, 7)
    assert drawn(max_tokens=3).max_tokens == 3
    seeded = ChatRequest(messages=[{"role": "user", "content": "x"}]).asked(
        SamplingDefaults(seed=0)
    )
    assert seeded.sampling.seed == 0


def test_options_go_before_files(folder: Path) -> None:
    assert read_defaults("auto") == read_defaults("none") == SamplingDefaults()
    assert read_defaults(str(folder)) == read_defaults(str(folder / "generation_config.json"))
    given = server_defaults(str(folder), '{"top_k": 5}', 3)
    assert given == SamplingDefaults(top_k=5, seed=3).over(READ)
    with pytest.raises(RequestError, match="expected a JSON object"):
        server_defaults("auto", "[1]", None)
    with pytest.raises(ConfigError, match="--generation-config: expected auto"):
        read_defaults(str(folder / "nothing"))
    options = {"temperature": None, "top_k": 1, "max_tokens": 64}
    assert terminal_defaults(READ, "auto", **options) == READ.said() | {"top_k": 1}
    assert terminal_defaults(READ, "none", **options) == {
        "temperature": 0.7,
        "top_k": 1,
        "top_p": 1.0,
        "min_p": 0.05,
        "repetition_penalty": 1.0,
        "max_tokens": 64,
    }


def test_the_server_takes_them(folder: Path, start: Any) -> None:
    override = json.dumps({"min_p": 0.2})
    server = start(
        *("--model", str(folder), "--override-generation-config", override),
        *("--seed", "11", "--any-model"),
    ).wait_ready()
    body = {"prompt": "def f(x):", "ignore_eos": True}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        told = client.post("/completion", json=body).json()
        settings = told["generation_settings"]
        assert (settings["temperature"], settings["top_k"], settings["min_p"]) == (0.6, 20, 0.2)
        assert (settings["seed"], settings["n_predict"], told["tokens_predicted"]) == (11, 7, 7)
        assert client.post("/completion", json=body).json()["content"] == told["content"]
        params = client.get("/props").json()["default_generation_settings"]["params"]
        assert {key: params[key] for key in settings if key in ("temperature", "seed")} == {
            "temperature": 0.6,
            "seed": 11,
        }
        sampling = client.get("/v1/models").json()["data"][0]["monolane"]["sampling"]
        assert sampling == replace(READ, min_p=0.2, seed=11).said()
        reply = client.post("/v1/completions", json={**body, "model": "whatever"})
        assert reply.json()["model"] == str(folder)


def test_the_server_never_draws_what_is_suppressed(folder: Path, start: Any) -> None:
    body = {"prompt": "def f(x):", "temperature": 0, "ignore_eos": True, "return_tokens": True}
    with Engine.load(folder) as engine:
        drawn = engine.generate(body["prompt"], SamplingParams(ignore_eos=True, max_tokens=7))
    path = folder / "generation_config.json"
    banned = {"suppress_tokens": [drawn.token_ids[0]]}
    path.write_text(json.dumps(json.loads(path.read_text()) | banned))
    server = start("--model", str(folder), "--generation-config", "none").wait_ready()
    with httpx.Client(base_url=server.url, timeout=120) as client:
        told = client.post("/completion", json={**body, "n_predict": 7}).json()["tokens"]
    assert len(told) == 7
    assert drawn.token_ids[0] not in told


def test_the_command_line_takes_them(folder: Path) -> None:
    words = ["generate", "x = ", "--model", str(folder), "--ignore-eos", "--json"]
    result = CliRunner().invoke(app, words)
    assert len(json.loads(result.stdout)["token_ids"]) == 7
    result = CliRunner().invoke(app, [*words, "--generation-config", "none", "-n", "9"])
    assert len(json.loads(result.stdout)["token_ids"]) == 9
