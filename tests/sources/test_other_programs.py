"""Models that Ollama, LM Studio and llama.cpp keep, in folders as they make them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from monolane.errors import ModelNotFoundError
from monolane.sources import find_model, models_on_disk
from monolane.sources._other_programs import find_elsewhere

MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and a Hub's cache that is empty."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MONOLANE_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def ollama(home: Path) -> Callable[..., Path]:
    """Puts a model into Ollama's store; gives its blob."""

    def put(
        name: str, tag: str, content: bytes, host: str = "registry.ollama.ai/library",
        base: str = ".ollama/models", kinds: tuple[str, ...] = (MODEL,),
    ) -> Path:  # fmt: skip
        digest = hashlib.sha256(content).hexdigest()
        blob = home / base / "blobs" / f"sha256-{digest}"
        manifest = home / base / "manifests" / host / name / tag
        for path in (blob, manifest):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        layers = [{"mediaType": x, "digest": f"sha256:{digest}"} for x in kinds]
        layers.append({"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"})
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        return blob

    return put


def names() -> dict[str, str]:
    return {x.name: x.keeper for x in models_on_disk() if x.keeper not in ("monolane", "Hub")}


def test_ollama_s_names(ollama: Callable[..., Path], llama_gguf: Path) -> None:
    whole = llama_gguf.read_bytes()
    blob = ollama("llama3.2", "3b", whole)
    latest = ollama("Tiny", "latest", whole + b"\0")
    theirs = ollama("tiny", "q4", whole + b"\1", host="registry.ollama.ai/somebody")
    hubs = ollama("some-GGUF", "Q8_0", whole + b"\2", host="hf.co/Org")
    assert find_model("llama3.2:3b") == blob
    assert find_model("tiny") == find_model("tiny:latest") == find_model("library/Tiny") == latest
    assert find_model("somebody/tiny:q4") == theirs
    assert find_model("hf.co/Org/some-GGUF:q8_0") == hubs
    assert find_model("Org/some-GGUF:Q8_0") == hubs
    assert names() == dict.fromkeys(
        ("llama3.2:3b", "Tiny:latest", "somebody/tiny:q4", "hf.co/Org/some-GGUF:Q8_0"), "Ollama"
    )
    with pytest.raises(ModelNotFoundError, match=r"Did you mean llama3.2:3b\?"):
        find_model("llama3.2")
    with pytest.raises(ModelNotFoundError, match=r"Did you mean llama3.2:3b\?"):
        find_model("lama3.2:3b")


def test_ollama_s_store_may_be_elsewhere(
    ollama: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    blob = ollama("a", "b", b"GGUF", base="other")
    assert find_elsewhere("a:b") is None
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "other"))
    assert find_model("a:b") == blob


def test_what_ollama_cannot_give(ollama: Callable[..., Path]) -> None:
    blob = ollama("a", "lora", b"GGUF1", kinds=(MODEL, ADAPTER))
    with pytest.raises(ModelNotFoundError, match="a:lora of Ollama: .* LoRA adapter beside it"):
        find_model("a:lora")
    ollama("a", "cloud", b"GGUF2", kinds=())
    with pytest.raises(ModelNotFoundError, match="a:cloud of Ollama: expected a layer with a GGUF"):
        find_model("a:cloud")
    ollama("a", "lost", b"GGUF3").unlink()
    with pytest.raises(ModelNotFoundError, match="not there; 'ollama pull a:lost' fetches it"):
        find_model("a:lost")
    damaged = blob.parents[1] / "manifests/registry.ollama.ai/library/a/lora"
    for text in ("", "[1]", "{" * 5000, '{"layers": [1, {"mediaType": 1}]}', "\xff"):
        damaged.write_text(text, encoding="latin-1")
        with pytest.raises(ModelNotFoundError, match="a:lora of Ollama: expected a layer"):
            find_model("a:lora")


@pytest.mark.parametrize("base", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studio_s_folder(base: str, home: Path, llama_gguf: Path, tiny_model: Path) -> None:
    folder = home / base / "org" / "some-GGUF"
    folder.mkdir(parents=True)
    for name in ("some-Q4_K_M.gguf", "some-Q8_0.gguf", "mmproj-some.gguf"):
        shutil.copy(llama_gguf, folder / name)
    shutil.copytree(tiny_model, folder.parent / "some-mlx")
    assert find_model("org/some-GGUF:Q4_K_M") == folder / "some-Q4_K_M.gguf"
    assert find_model("org/some-GGUF/some-Q8_0.gguf") == folder / "some-Q8_0.gguf"
    assert find_model("org/some-GGUF").parent == folder
    assert find_model("org/some-mlx") == folder.parent / "some-mlx"
    kept = ("org/some-GGUF:Q4_K_M", "org/some-GGUF:Q8_0", "org/some-mlx")
    assert names() == dict.fromkeys(kept, "LM Studio")
    with pytest.raises(ModelNotFoundError, match="MONOLANE_OFFLINE forbids downloads"):
        find_model("org/some-GGUF:Q5_0")  # it may be on the Hub


@pytest.mark.parametrize(
    ("variable", "below"),
    [("", ".cache/llama.cpp"), ("LLAMA_CACHE", ""), ("XDG_CACHE_HOME", "llama.cpp")],
)
def test_llama_cpp_s_cache(
    variable: str, below: str, home: Path, llama_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = home / "kept" / below if variable else home / below
    if variable:
        monkeypatch.setenv(variable, str(home / "kept"))
    base.mkdir(parents=True)
    for name in ("org_so_me-GGUF_so_me-Q4_K_M.gguf", "org_so_me-GGUF_BF16_so_me-BF16.gguf"):
        shutil.copy(llama_gguf, base / name)
    shutil.copy(llama_gguf, base / "by-address.gguf")
    (base / "org_so_me-GGUF_so_me-Q8_0.gguf.downloadInProgress").write_bytes(b"GGUF")
    (base / "manifest=org=so_me-GGUF=Q4_K_M.json").write_text("{}")
    q4, bf16 = (
        base / "org_so_me-GGUF_so_me-Q4_K_M.gguf",
        base / "org_so_me-GGUF_BF16_so_me-BF16.gguf",
    )
    assert find_model("org/so_me-GGUF:Q4_K_M") == find_model("org/so_me-GGUF") == q4
    assert find_model("org/so_me-GGUF/BF16/so_me-BF16.gguf") == bf16
    kept = ("org/so_me-GGUF:Q4_K_M", "org/so_me-GGUF:BF16", str(base / "by-address.gguf"))
    assert names() == dict.fromkeys(kept, "llama.cpp")
