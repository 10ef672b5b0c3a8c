"""GGUF files of random weights in the shape of a Qwen3.5, in the mixes that llama-quantize makes.

As _gguf.py makes them: sizes are real and weights are random, so that speeds are those of a real
model's and texts are not. Which type each tensor has in a mix is what the peer's own
``llama-quantize --dry-run`` says of this model.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, repeat
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from _gguf import add_words, file_type, random_rows
from gguf import GGMLQuantizationType as Kind

_VERSION = 1  # of what is written below: a new one makes new files
_TAPS, _INTERVAL = 4, 4  # of the convolutions; every fourth layer attends
_DECAY = -0.05  # of a state, near none, as trained ones are
Sizes = tuple[int, ...]  # of a tensor, columns last


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Sizes of a Qwen3.5; with experts, of a mixture, each of whose experts is ``inner`` wide."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    value_heads: int  # of the delta rule
    vocab: int = 248_320
    key_heads: int = 16
    state: int = 128  # of a head of the delta rule
    head: int = 256
    experts: int = 0
    chosen: int = 0
    tied: bool = False
    embedding: float = 1.0  # times as large as other weights

    @property
    def architecture(self) -> str:
        """What llama.cpp calls a model of such sizes."""
        return "qwen35moe" if self.experts else "qwen35"


HYBRIDS = {
    "qwen3.5-2b": Hybrid(24, 2048, 6144, 8, 2, 16, tied=True),
    # Eight of the layers of a 35B-A3B, with all of its experts: 7.6 B, 1.2 B for a token.
    "qwen3.5-35b-a3b-8": Hybrid(8, 2048, 512, 16, 2, 32, experts=256, chosen=8),
    # A fifth of the layers and of the vocabulary, so that the head takes the part of a pass that it
    # takes in the whole model. Embeddings outweigh what layers add, so that tokens choose experts
    # apart: the worst case of a pass of several rows.
    "qwen3.5-35b-a3b-fifth": Hybrid(
        8, 2048, 512, 16, 2, 32, vocab=49_664, experts=256, chosen=8, embedding=64.0
    ),
    "qwen3.5-tiny": Hybrid(4, 256, 512, 2, 1, 4, vocab=512, key_heads=2, tied=True),
}


def random_hybrid(home: Path, shape: str, mix: str, quantize: Path) -> Path:
    """Return the file of a shape of HYBRIDS in a mix of `quantize`, written if it is not there."""
    path = home / f"{shape}-{mix}-v{_VERSION}.gguf"
    if path.is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    sizes = HYBRIDS[shape]
    with tempfile.TemporaryDirectory(dir=home) as name:
        header, aside = Path(name) / "header.gguf", Path(name) / "model.gguf"
        written = [(tensor, _written(tensor, shape), shape) for tensor, shape in _tensors(sizes)]
        _write(header, sizes, "BF16", {tensor: kind for tensor, kind, _ in written}, hole=True)
        _write(aside, sizes, mix, _asked(quantize, header, mix))
        aside.replace(path)
    return path


def header_of(path: Path, shape: str, mix: str, types: Mapping[str, str]) -> Path:
    """Write a file of these types without its data, of which a config and a plan can be made."""
    sizes, left = HYBRIDS[shape], {name: _spread(runs) for name, runs in types.items()}
    kinds = {tensor: next(left[_place(tensor)]) for tensor, _ in _tensors(sizes)}
    _write(path, sizes, mix, kinds, hole=True)
    return path


def types_of(path: Path) -> dict[str, str]:
    """Return the types of a file's tensors by name, those of a layer in the order of the layers.

    As in ``{"ffn_down.weight": "Q6_K*3 Q4_K*2 Q6_K*1"}``, for a results file.
    """
    found: dict[str, list[str]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        found.setdefault(_place(tensor.name), []).append(tensor.tensor_type.name)
    return {
        name: " ".join(f"{kind}*{len(list(run))}" for kind, run in groupby(kinds))
        for name, kinds in found.items()
    }


def _place(tensor: str) -> str:
    """Return a tensor's name without its layer."""
    return re.sub(r"^blk\.\d+\.", "", tensor)


def _spread(runs: str) -> Iterator[Kind]:
    for run in runs.split():
        kind, _, count = run.partition("*")
        yield from repeat(Kind[kind], int(count))


def _written(name: str, shape: Sizes) -> Kind:
    """Return the type of a tensor as llama.cpp's converter writes it."""
    single = len(shape) == 1 or name.endswith(("norm.weight", "conv1d.weight", "gate_inp.weight"))
    return Kind.F32 if single else Kind.BF16


_ROW = re.compile(r"\[ *\d+/ *\d+\] (\S+) +- .*?type = +(\w+), size = .*?(?:\((\w+)\))?")


def _asked(quantize: Path, header: Path, mix: str) -> dict[str, Kind]:
    """Return the type that llama-quantize would give each tensor."""
    command = [str(quantize), "--dry-run", str(header), mix]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = map(_ROW.fullmatch, map(str.strip, (done.stdout + done.stderr).splitlines()))
    found = {row[1]: Kind[(row[3] or row[2]).upper()] for row in rows if row is not None}
    if done.returncode or not found:
        last = (done.stderr or done.stdout).strip()[-300:]
        raise ValueError(f"{quantize}: expected the types of a {mix}, got {last}")
    return found


def _write(
    path: Path, sizes: Hybrid, mix: str, kinds: Mapping[str, Kind], hole: bool = False
) -> None:
    """Write a file; with a hole in place of its data if it is only to be looked at."""
    writer = gguf.GGUFWriter(path, sizes.architecture, use_temp_file=False)
    _add_fields(writer, sizes)
    writer.add_file_type(file_type(mix))
    add_words(writer, sizes.vocab)
    if hole:
        end, decays = 0, []
        for name, shape in _tensors(sizes):
            if name.endswith("ssm_a"):  # whose sign is looked at when a file is opened
                decays.append((end, np.full(shape, _DECAY, np.float32).tobytes()))
            dtype = np.dtype(np.float32 if kinds[name] is Kind.F32 else np.float16)
            size = prod(shape) * dtype.itemsize
            writer.add_tensor_info(name, shape, dtype, size, raw_dtype=kinds[name])
            end += -(-size // 32) * 32
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        begin = -(-path.stat().st_size // 32) * 32
        os.truncate(path, begin + end)
        with path.open("r+b") as file:
            for at, values in decays:
                file.seek(begin + at)
                file.write(values)
        return
    rng = np.random.default_rng(0)
    rows: dict[tuple[Kind, int, float], npt.NDArray[Any]] = {}
    for name, shape in _tensors(sizes):
        kind = kinds[name]
        if len(shape) == 1:
            value = _DECAY if name.endswith("ssm_a") else 1.0  # all else is a scale
            writer.add_tensor(name, np.full(shape, value, np.float32))
            continue
        times = sizes.embedding if name == "token_embd.weight" else 1.0
        if (kind, shape[-1], times) not in rows:
            rows[kind, shape[-1], times] = random_rows(kind, shape[-1], rng, times)
        block = rows[kind, shape[-1], times]
        stored = np.resize(block, (*shape[:-1], block.shape[1]))
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(writer: Any, sizes: Hybrid) -> None:
    writer.add_block_count(sizes.layers)
    writer.add_context_length(32_768)
    writer.add_embedding_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head)
    writer.add_value_length(sizes.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(sizes.head // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(_TAPS)
    writer.add_ssm_state_size(sizes.state)
    writer.add_ssm_group_count(sizes.key_heads)
    writer.add_ssm_time_step_rank(sizes.value_heads)
    writer.add_ssm_inner_size(sizes.value_heads * sizes.state)
    writer.add_full_attention_interval(_INTERVAL)
    writer.add_vocab_size(sizes.vocab)
    if sizes.experts:
        writer.add_expert_count(sizes.experts)
        writer.add_expert_used_count(sizes.chosen)
        writer.add_expert_feed_forward_length(sizes.inner)
        writer.add_expert_shared_feed_forward_length(sizes.inner)
    else:
        writer.add_feed_forward_length(sizes.inner)


def _tensors(sizes: Hybrid) -> Iterator[tuple[str, Sizes]]:
    d, vocab = sizes.hidden, sizes.vocab
    yield "token_embd.weight", (vocab, d)
    yield "output_norm.weight", (d,)
    if not sizes.tied:
        yield "output.weight", (vocab, d)
    for i in range(sizes.layers):
        layer: dict[str, Sizes] = {"attn_norm.weight": (d,), "post_attention_norm.weight": (d,)}
        layer |= _attention(sizes) if (i + 1) % _INTERVAL == 0 else _delta(sizes)
        layer |= _experts(sizes) if sizes.experts else _mlp(sizes)
        yield from ((f"blk.{i}.{name}", shape) for name, shape in layer.items())


def _attention(sizes: Hybrid) -> dict[str, Sizes]:
    q, kv = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    return {
        "attn_q.weight": (2 * q, sizes.hidden),  # and the gate
        "attn_k.weight": (kv, sizes.hidden),
        "attn_v.weight": (kv, sizes.hidden),
        "attn_output.weight": (sizes.hidden, q),
        "attn_q_norm.weight": (sizes.head,),
        "attn_k_norm.weight": (sizes.head,),
    }


def _delta(sizes: Hybrid) -> dict[str, Sizes]:
    keys, values = sizes.key_heads * sizes.state, sizes.value_heads * sizes.state
    return {
        "attn_qkv.weight": (2 * keys + values, sizes.hidden),
        "attn_gate.weight": (values, sizes.hidden),
        "ssm_conv1d.weight": (2 * keys + values, _TAPS),
        "ssm_dt.bias": (sizes.value_heads,),
        "ssm_a": (sizes.value_heads,),
        "ssm_beta.weight": (sizes.value_heads, sizes.hidden),
        "ssm_alpha.weight": (sizes.value_heads, sizes.hidden),
        "ssm_norm.weight": (sizes.state,),
        "ssm_out.weight": (sizes.hidden, values),
    }


def _mlp(sizes: Hybrid) -> dict[str, Sizes]:
    return {
        "ffn_gate.weight": (sizes.inner, sizes.hidden),
        "ffn_up.weight": (sizes.inner, sizes.hidden),
        "ffn_down.weight": (sizes.hidden, sizes.inner),
    }


def _experts(sizes: Hybrid) -> dict[str, Sizes]:
    d, f, count = sizes.hidden, sizes.inner, sizes.experts
    return {
        "ffn_gate_inp.weight": (count, d),
        "ffn_gate_exps.weight": (count, f, d),
        "ffn_up_exps.weight": (count, f, d),
        "ffn_down_exps.weight": (count, d, f),
        "ffn_gate_inp_shexp.weight": (d,),
        "ffn_gate_shexp.weight": (f, d),
        "ffn_up_shexp.weight": (f, d),
        "ffn_down_shexp.weight": (d, f),
    }
