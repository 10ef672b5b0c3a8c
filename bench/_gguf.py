"""A GGUF of random weights in the shape of a config, with the architecture "llama".

Not a Laneformer: llama.cpp has none. The same sizes make the same bytes and operations per token,
which is what a peer's speed depends on. Needs the `gguf` package of llama.cpp.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.model import ModelConfig

FORMATS = ("BF16", "Q8_0", "Q4_0")
_VERSION = 1  # of what is written below


def import_gguf(folder: Path | None) -> Any:
    """Return the gguf package, from llama.cpp's gguf-py folder if one is named."""
    if folder is not None:
        sys.path.insert(0, str(folder))
    try:
        import gguf
    except ImportError:
        raise SystemExit(
            "peers: expected the gguf package, which writes llama.cpp's model files: "
            "pip install gguf, or pass --gguf-py LLAMA_CPP/gguf-py"
        ) from None
    return gguf


def random_gguf(gguf: Any, home: Path, name: str, config: ModelConfig, dtype: str) -> Path:
    """Return the file of a shape in a format, written if it is not there."""
    path = home / f"{name}-{dtype}-v{_VERSION}.gguf"
    if path.is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(gguf, aside, config, dtype)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _write(gguf: Any, path: Path, config: ModelConfig, dtype: str) -> None:
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    _add_fields(writer, config)
    kind = gguf.GGMLQuantizationType[dtype]
    rng = np.random.default_rng(0)
    # One block of random rows, quantised once and repeated: seconds instead of minutes.
    blocks: dict[int, npt.NDArray[Any]] = {}
    for name, rows, columns in _matrices(config):
        if columns not in blocks:
            values = rng.standard_normal((256, columns), np.float32) * config.hidden_size**-0.5
            blocks[columns] = gguf.quants.quantize(values, kind)
        repeated = np.resize(blocks[columns], (rows, blocks[columns].shape[1]))
        writer.add_tensor(name, repeated, raw_dtype=kind)
    for name in _norms(config):
        writer.add_tensor(name, np.ones(config.hidden_size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(writer: Any, config: ModelConfig) -> None:
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rotary.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")


def _matrices(config: ModelConfig) -> Iterator[tuple[str, int, int]]:
    """Yield (name, rows, columns) of every matrix."""
    d, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "token_embd.weight", v, d
    yield "output.weight", v, d
    for i in range(config.num_layers):
        shapes = {"attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q)}
        shapes |= {"ffn_gate": (f, d), "ffn_up": (f, d), "ffn_down": (d, f)}
        for part, (rows, columns) in shapes.items():
            yield f"blk.{i}.{part}.weight", rows, columns


def _norms(config: ModelConfig) -> Iterator[str]:
    yield "output_norm.weight"
    for i in range(config.num_layers):
        yield f"blk.{i}.attn_norm.weight"
        yield f"blk.{i}.ffn_norm.weight"
