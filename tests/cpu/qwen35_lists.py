"""Lists of the tensors in GGUF files of a 27B, Qwen3.5 to 3.8, and files of headers alone.

No list here was read from a published file. Sizes are those of Qwen3.5-27B; that 3.8's are the
same is taken for granted, as its architecture is. Names and shapes are what llama.cpp's converter
writes of it (architecture qwen35, with the layer that predicts further ahead). Types are what its
``llama-quantize --dry-run`` says it would write, told that there is an importance matrix: of a
header of this model, so by llama.cpp's own rules. Which files a set has, and what is in its mixes
named "UD", only the publishers know. Here are those that they usually have, and each mix is
composed: what a file of that size is made of, with attention, states and the ends of the MLPs in
other types.

    python tests/cpu/qwen35_lists.py path/to/llama-quantize     # writes the lists anew

What is written, qwen35_lists.txt.xz: lines of names and shapes, columns last; a line of types, a
letter each; a line for each file: its set, its name, and the types of its tensors in their order.
"""

import lzma
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import gguf
import numpy as np

LISTS = Path(__file__).with_name("qwen35_lists.txt.xz")
HIDDEN, INNER, LAYERS, AHEAD, VOCAB = 5120, 17408, 64, 1, 248320
HEADS, KV_HEADS, WIDTH = 24, 4, 256
KEY_HEADS, VALUE_HEADS, STATE, TAPS, INTERVAL = 16, 48, 128, 4, 4

# Of attention and states, of the first and last MLPs, and of what has few numbers.
_SMALL = ("ssm_alpha=q8_0", "ssm_beta=q8_0")
_EXACT = ("ssm_alpha=f32", "ssm_beta=f32")


def _more(attention: str, states: str, ends: str) -> tuple[str, ...]:
    return (
        f"attn_(q|k|v|output)\\.={attention}",
        f"(attn_qkv|attn_gate|ssm_out)={states}",
        f"blk\\.(0|1|2|3|60|61|62|63)\\.ffn_(down|up)={ends}",
    )


def _ends(embedding: str, output: str) -> tuple[str, ...]:
    return "--token-embedding-type", embedding, "--output-tensor-type", output


# Name of a file -> kind of mixture, tensors that are others, further options.
_Made = tuple[str, Sequence[str], Sequence[str]]
_PLAIN = [
    "BF16",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "IQ4_NL",
    "IQ4_XS",
    "Q3_K_M",
]
UD: dict[str, _Made] = {name: (name, (), ()) for name in _PLAIN} | {
    "UD-IQ1_S": ("IQ1_S", (*_SMALL, *_more("q4_k", "iq3_xxs", "iq2_s")), _ends("q4_k", "q5_k")),
    "UD-IQ1_M": ("IQ1_M", (*_SMALL, *_more("iq4_xs", "iq3_s", "iq2_xs")), _ends("q4_k", "q6_k")),
    "UD-IQ2_XXS": (
        "IQ2_XXS",
        (*_EXACT, *_more("q5_k", "iq4_xs", "iq3_xxs")),
        _ends("q4_k", "q6_k"),
    ),
    "UD-IQ2_M": ("IQ2_M", (*_EXACT, *_more("iq4_nl", "q4_k", "iq3_s")), _ends("q5_k", "q6_k")),
    "UD-IQ3_XXS": ("IQ3_XXS", (*_SMALL, *_more("q5_k", "q5_k", "iq4_xs")), _ends("q5_k", "q6_k")),
    "UD-Q2_K_XL": ("Q2_K", (*_EXACT, *_more("q5_k", "q6_k", "q3_k")), _ends("q4_k", "q6_k")),
    "UD-Q3_K_XL": ("Q3_K_M", (*_SMALL, *_more("q6_k", "q5_k", "q4_k")), _ends("q5_k", "q6_k")),
    "UD-Q4_K_XL": ("Q4_K_M", (*_EXACT, *_more("q8_0", "q8_0", "q5_k")), _ends("q6_k", "q8_0")),
    "UD-Q8_K_XL": ("Q8_0", (*_EXACT, *_more("bf16", "f16", "q8_0")), _ends("bf16", "bf16")),
}
_OTHERS = [
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q4_1",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "IQ4_NL",
    "IQ4_XS",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "IQ3_M",
    "IQ3_XS",
    "IQ3_XXS",
    "Q2_K",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
]
_LARGE = {"Q6_K_L": "Q6_K", "Q5_K_L": "Q5_K_M", "Q4_K_L": "Q4_K_M", "Q3_K_XL": "Q3_K_L"}
LARGE: dict[str, _Made] = {name: (name, (), ()) for name in _OTHERS} | {
    name: (kind, (), _ends("q8_0", "q8_0")) for name, kind in (_LARGE | {"Q2_K_L": "Q2_K"}).items()
}
SETS = {"with UD mixes": UD, "with L variants": LARGE}

Shape = tuple[int, ...]
Tensors = list[tuple[str, Shape, str]]  # name, shape with the columns last, type


@dataclass(frozen=True)
class Listed:
    """One file: which set it is of, its name, and its tensors in their order."""

    set: str
    name: str
    tensors: Tensors


def read_lists() -> list[Listed]:
    """Return the committed lists."""
    with lzma.open(LISTS, "rt") as file:
        lines = file.read().splitlines()
    at = lines.index("")
    shapes = [line.split(" ") for line in lines[:at]]
    types = dict(word.split("=") for word in lines[at + 1].split(" "))
    found = []
    for line in lines[at + 2 :]:
        kind, name, letters = line.split("\t")
        tensors = [
            (shape[0], tuple(map(int, shape[1:])), types[letter])
            for shape, letter in zip(shapes, letters, strict=True)
        ]
        found.append(Listed(kind, name, tensors))
    return found


def write_header(path: Path, tensors: Tensors) -> None:
    """Write a file whose data are a hole, so that it takes no room, but for ``ssm_a``: below 0."""
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_block_count(LAYERS + AHEAD)
    writer.add_context_length(262144)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(WIDTH)
    writer.add_value_length(WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(WIDTH // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(VALUE_HEADS * STATE)
    writer.add_full_attention_interval(INTERVAL)
    writer.add_nextn_predict_layers(AHEAD)
    end, decays = 0, []
    for name, shape, kind in tensors:
        number = gguf.GGMLQuantizationType[kind]
        block, size = gguf.GGML_QUANT_SIZES[number]
        *rows, columns = shape
        row = columns // block * size
        of_bytes = block > 1  # then the writer wants the shape of the bytes
        stored = (*rows, row) if of_bytes else shape
        dtype = np.dtype(np.uint8 if of_bytes else np.float16)
        writer.add_tensor_info(name, stored, dtype, prod(rows) * row, raw_dtype=number)
        if name.endswith("ssm_a"):
            decays.append((end, np.full(shape, -1, np.float32).tobytes()))
        end += -(-prod(rows) * row // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    begin = -(-path.stat().st_size // 32) * 32
    with path.open("r+b") as file:
        for at, data in decays:
            file.seek(begin + at)
            file.write(data)
        file.truncate(begin + end)


def _shapes() -> Iterator[tuple[str, Shape]]:
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS + AHEAD):
        layer: dict[str, Shape] = {
            "attn_norm.weight": (HIDDEN,),
            "post_attention_norm.weight": (HIDDEN,),
            "ffn_gate.weight": (INNER, HIDDEN),
            "ffn_up.weight": (INNER, HIDDEN),
            "ffn_down.weight": (HIDDEN, INNER),
        }
        if i >= LAYERS or (i + 1) % INTERVAL == 0:
            layer |= {
                "attn_q.weight": (2 * HEADS * WIDTH, HIDDEN),
                "attn_k.weight": (KV_HEADS * WIDTH, HIDDEN),
                "attn_v.weight": (KV_HEADS * WIDTH, HIDDEN),
                "attn_output.weight": (HIDDEN, HEADS * WIDTH),
                "attn_q_norm.weight": (WIDTH,),
                "attn_k_norm.weight": (WIDTH,),
            }
        else:
            layer |= {
                "attn_qkv.weight": (2 * keys + values, HIDDEN),
                "attn_gate.weight": (values, HIDDEN),
                "ssm_conv1d.weight": (2 * keys + values, TAPS),
                "ssm_dt.bias": (VALUE_HEADS,),
                "ssm_a": (VALUE_HEADS,),
                "ssm_beta.weight": (VALUE_HEADS, HIDDEN),
                "ssm_alpha.weight": (VALUE_HEADS, HIDDEN),
                "ssm_norm.weight": (STATE,),
                "ssm_out.weight": (HIDDEN, values),
            }
        if i >= LAYERS:
            layer |= {
                "nextn.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
                "nextn.enorm.weight": (HIDDEN,),
                "nextn.hnorm.weight": (HIDDEN,),
                "nextn.shared_head_norm.weight": (HIDDEN,),
            }
        yield from ((f"blk.{i}.{name}", shape) for name, shape in layer.items())


def _converted() -> Tensors:
    """Return the tensors as the converter writes them, in BF16."""
    single = ("_norm.weight", "norm.weight", "conv1d.weight")
    return [
        (name, shape, "F32" if len(shape) == 1 or name.endswith(single) else "BF16")
        for name, shape in _shapes()
    ]


_ROW = re.compile(
    r"\[ *\d+/ *\d+\] (\S+) +- \[([ \d,]+)\], type = +(\w+), size = .*?(?:\((\w+)\))?"
)


def _asked(program: str, folder: Path, made: _Made) -> Tensors:
    """Ask llama-quantize which type each tensor would get."""
    kind, others, options = made
    types = [word for other in others for word in ("--tensor-type", other)]
    command = [program, "--dry-run", "--imatrix", "matrix", *types, *options, "model.gguf", kind]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found: Tensors = []
    for line in (said.stdout + said.stderr).splitlines():
        if (row := _ROW.fullmatch(line.strip())) is not None:
            sizes = [int(size) for size in row[2].split(",")]
            while len(sizes) > 1 and sizes[-1] == 1:
                sizes.pop()
            found.append((row[1], tuple(sizes[::-1]), (row[4] or row[3]).upper()))
    return found


def _write_lists(program: str) -> None:
    lists = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_header(folder / "model.gguf", _converted())
        # An importance matrix of one tensor that there is not: only whether there is one counts.
        matrix = struct.pack("<ii", 1, 1) + b"-" + struct.pack("<iifii", 1, 1, 1.0, 1, 1) + b"-"
        (folder / "matrix").write_bytes(matrix)
        for kind, files in SETS.items():
            lists += [(kind, file, _asked(program, folder, made)) for file, made in files.items()]
    shapes = [(name, shape) for name, shape, _ in lists[0][2]]
    assert sorted(shapes) == sorted(_shapes())
    types = sorted({kind for *_, tensors in lists for *_, kind in tensors})
    letters = {kind: chr(ord("a") + i) for i, kind in enumerate(types)}
    lines = [" ".join((name, *map(str, shape))) for name, shape in shapes]
    lines += ["", " ".join(f"{letter}={kind}" for kind, letter in letters.items())]
    for kind, file, tensors in lists:
        assert [(name, shape) for name, shape, _ in tensors] == shapes
        lines.append("\t".join((kind, file, "".join(letters[x] for *_, x in tensors))))
    with lzma.open(LISTS, "wt", preset=9) as out:
        out.write("\n".join(lines))


if __name__ == "__main__":
    _write_lists(str(Path(sys.argv[1]).resolve()))
