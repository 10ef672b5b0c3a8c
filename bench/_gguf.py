"""GGUF files of random weights in the shape of a Llama or a Qwen3-MoE, in any type of llama.cpp's.

The sizes make the bytes and operations of a token, on which speed depends; what the weights say
does not. A vocabulary of random merges makes them files that every program takes text by. Needs the
`gguf` package of llama.cpp, which also says how large a type's blocks are.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

_VERSION = 3  # of what is written below: a new one makes new files
_ROWS = 256  # random rows of one width, repeated: seconds instead of minutes


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama; with experts, of a Qwen3-MoE, each of whose experts is ``inner`` wide."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    context: int = 8192
    experts: int = 0  # of each layer, of which ``chosen`` serve a token
    chosen: int = 0
    head_dim: int = 0  # 0: hidden / heads

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def architecture(self) -> str:
        """What llama.cpp calls a model of such sizes."""
        return "qwen3moe" if self.experts else "llama"


SHAPES = {
    "llama-1.7b": Shape(24, 2048, 8192, 32, 32, 49152),  # as SmolLM2 1.7B, its head not tied
    "llama-tiny": Shape(2, 256, 512, 8, 4, 512),
    # Six of the layers of a Qwen3-30B-A3B, with half of its experts: 2.0 B, 0.45 B for a token.
    "moe-2b": Shape(6, 2048, 768, 32, 4, 49152, experts=64, chosen=8, head_dim=128),
    # Twelve of its layers with all of its experts: 8.1 B, 1.0 B for a token.
    "moe-8b": Shape(12, 2048, 768, 32, 4, 151936, experts=128, chosen=8, head_dim=128),
    "moe-tiny": Shape(2, 256, 256, 4, 2, 512, experts=8, chosen=2, head_dim=64),
}
# Byte of a block's float16 scale, and of what is added to all of its numbers (negated in K types).
_SCALES = {
    Kind.Q8_0: (0, None), Kind.Q4_0: (0, None), Kind.Q4_1: (0, 2), Kind.Q5_0: (0, None),
    Kind.Q5_1: (0, 2), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208, None),
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108, None), Kind.IQ4_NL: (0, None), Kind.IQ4_XS: (0, None),
    Kind.IQ3_XXS: (0, None), Kind.IQ3_S: (0, None), Kind.IQ2_S: (0, None),
}  # fmt: skip
_PLAIN = {Kind.F32: np.float32, Kind.F16: np.float16, Kind.BF16: np.uint16}
# Half of the largest code: the minimum that puts the mean of random codes near zero.
_MIDDLE = {
    Kind.Q4_1: -7.5, Kind.Q5_1: -15.5, Kind.Q2_K: 1.5, Kind.Q4_K: 7.5, Kind.Q5_K: 15.5,
}  # fmt: skip
MIXES = ("Q4_K_M", "Q5_K_M", "MXFP4_MOE")
TYPES = (*MIXES, *(kind.name for kind in (*_PLAIN, *_SCALES)))


def random_gguf(home: Path, shape: str, kind: str) -> Path:
    """Return the file of a shape in a type of TYPES, written if it is not there."""
    path = home / f"{shape}-{kind}-v{_VERSION}.gguf"
    if path.is_file():
        return path
    home.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(aside, SHAPES[shape], kind)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def kind_of(mix: str, tensor: str, layer: int, layers: int) -> Kind:
    """Return the type of a matrix in a mix, as llama.cpp's src/llama-quant.cpp chooses it.

    Q4_K_M, Q5_K_M: the head, and values and down projections of the first and last eighth of the
    layers and of each third one between, have six bits. MXFP4_MOE: experts have MXFP4, all else 8
    bits.
    """
    if mix not in MIXES:
        return Kind[mix]
    if mix == "MXFP4_MOE":
        return Kind.MXFP4 if tensor.endswith("_exps") else Kind.Q8_0
    eighth = layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    six = tensor == "output" or (tensor in ("attn_v", "ffn_down", "ffn_down_exps") and more)
    return Kind.Q6_K if six else Kind[mix.removesuffix("_M")]


def random_rows(
    kind: Kind, columns: int, rng: np.random.Generator, times: float = 1.0
) -> npt.NDArray[Any]:
    """Return rows of random numbers with a mean near 0, a deviation of `times` columns**-0.5.

    Of MXFP4, whose scales are powers of two, of 0.7 to 1.4 times that.

    As a file holds them: [_ROWS, bytes of a row] of uint8, or floats [_ROWS, columns].
    """
    if kind in _PLAIN:
        values = rng.standard_normal((_ROWS, columns), np.float32) * times * columns**-0.5
        if kind is Kind.BF16:
            halves: npt.NDArray[Any] = gguf.quants.quantize(values, kind)
            return halves
        plain: npt.NDArray[Any] = values.astype(_PLAIN[kind])
        return plain
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (_ROWS * columns // per_block, size), np.uint8)
    _set_scale(blocks, kind, 1.0)
    spread = float(gguf.quants.dequantize(blocks, kind).std())
    _set_scale(blocks, kind, times * columns**-0.5 / spread)
    return blocks.reshape(_ROWS, -1)


def _set_scale(blocks: npt.NDArray[np.uint8], kind: Kind, scale: float) -> None:
    if kind is Kind.MXFP4:  # an exponent
        blocks[:, 0] = 127 + round(np.log2(scale))
        return
    at, minimum_at = _SCALES[kind]
    places = [(at, scale)]
    if minimum_at is not None:
        places.append((minimum_at, scale * _MIDDLE[kind]))
    for byte, value in places:
        blocks[:, byte : byte + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)


def file_type(mix: str) -> gguf.LlamaFileType:
    """Return what a file of a type calls itself; OpenVINO GenAI refuses a file that does not."""
    kinds = gguf.LlamaFileType.__members__
    names = (f"ALL_{mix}", f"MOSTLY_{mix}", f"MOSTLY_{mix}_S")
    return kinds[next(name for name in names if name in kinds)]


def _write(path: Path, shape: Shape, mix: str) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture, use_temp_file=False)
    writer.add_file_type(file_type(mix))
    _add_fields(writer, shape)
    add_words(writer, shape.vocab)
    rng = np.random.default_rng(0)
    made: dict[tuple[Kind, int], npt.NDArray[Any]] = {}
    for name, layer, rows, columns in _matrices(shape):
        kind = Kind.F32 if name == "ffn_gate_inp" else kind_of(mix, name, layer, shape.layers)
        if (kind, columns) not in made:
            made[kind, columns] = random_rows(kind, columns, rng)
        block = made[kind, columns]
        place = name if layer < 0 else f"blk.{layer}.{name}"
        of_experts = (shape.experts,) if name.endswith("_exps") else ()
        stored = np.resize(block, (*of_experts, rows, block.shape[1]))
        writer.add_tensor(f"{place}.weight", stored, raw_dtype=kind)
    for name, width in _norms(shape):
        writer.add_tensor(name, np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_fields(writer: Any, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)


def add_words(writer: Any, count: int) -> None:
    """Add a byte-level vocabulary: an end, the bytes, and random merges of what came before."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = range(256 - len(shown))  # bytes that GPT-2 shows as the characters from 256 on
    tokens = ["<|endoftext|>", *map(chr, shown), *(chr(256 + i) for i in others)]
    seen, merges, rng = set(tokens), [], random.Random(0)
    while len(tokens) < count:
        # Of letters mostly, and of short words: real vocabularies have some 7 bytes a token.
        left, right = (tokens[1 + int((len(tokens) - 1) * rng.random() ** 3)] for _ in range(2))
        if len(left + right) <= 16 and left + right not in seen:
            seen.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (count - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _matrices(shape: Shape) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, layer or -1, rows, columns) of every matrix, of experts' those of one."""
    d, f = shape.hidden, shape.inner
    q, kv = shape.head * shape.heads, shape.head * shape.kv_heads
    of = "_exps" if shape.experts else ""
    yield "token_embd", -1, shape.vocab, d
    yield "output", -1, shape.vocab, d
    for i in range(shape.layers):
        shapes = {"attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q)}
        shapes |= {f"ffn_gate{of}": (f, d), f"ffn_up{of}": (f, d), f"ffn_down{of}": (d, f)}
        if shape.experts:
            shapes["ffn_gate_inp"] = (shape.experts, d)
        for part, (rows, columns) in shapes.items():
            yield part, i, rows, columns


def _norms(shape: Shape) -> Iterator[tuple[str, int]]:
    """Yield name and width of every norm's scales."""
    yield "output_norm.weight", shape.hidden
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", shape.hidden
        yield f"blk.{i}.ffn_norm.weight", shape.hidden
        if shape.experts:
            yield f"blk.{i}.attn_q_norm.weight", shape.head
            yield f"blk.{i}.attn_k_norm.weight", shape.head
