"""Readers of files that strangers write, each with a small seed and a way to change it."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mutations import mutate_bytes, mutate_json

from monolane import Engine, SamplingParams
from monolane.engine._prefix_file import read_prefixes, write_prefixes
from monolane.executor_api import KeptBytes
from monolane.model import Heads, parse_config, tensor_specs, write_checkpoint
from monolane.sources import find_model
from monolane.text import ChatTemplate, Tokenizer

VOCAB = 64
_DIGEST_BYTES = 32  # of a prefix file
CONFIGS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "tie_word_embeddings": False, "rope_scaling": None},
    {"model_type": "qwen2", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"model_type": "laneformer", "num_lanes": 2, "broadcast_delay": 1, "sliding_window": 8}
    | {"swa_layers": [0, 1]},
    {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    | {"moe_intermediate_size": 32, "mlp_only_layers": [], "norm_topk_prob": True},
    {"model_type": "gemma3_text", "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TOKENS = ["<unk>", "<s>", "</s>", "▁", *(chr(97 + i) for i in range(20)), "ab", "abc", "▁a"]
GREEDY = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
TEMPLATE = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}<s>{{ m.content | trim }}{%- else -%}"
    "{{ m['content'].split('x')[-1] }}{%- endif -%}{%- endfor -%}{{- 'a' * 3 -}}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of file: ``write`` makes the input of a number, ``read`` reads it."""

    write: Callable[[random.Random, Path], None]
    read: Callable[[Path], object]


def config_of(number: int) -> dict[str, Any]:
    return SIZES | CONFIGS[number % len(CONFIGS)]


def write_folder(folder: Path, raw: dict[str, Any]) -> None:
    """Write a random model in Hub layout."""
    (folder / "config.json").write_text(json.dumps(raw))
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(raw))
    tensors = [(x.name, rng.normal(scale=0.2, size=x.shape).astype(np.float32)) for x in specs]
    write_checkpoint(folder, tensors, max_shard_bytes=1 << 14)


def run(path: Path) -> object:
    """Load a model and draw two tokens."""
    with Engine.load(path, "cpu", context=16, workers=1) as engine:
        return engine.generate([1, 3], GREEDY).token_ids


def _write_config(rng: random.Random, folder: Path) -> None:
    raw = config_of(rng.randrange(len(CONFIGS)))
    write_folder(folder, raw)
    (folder / "config.json").write_text(mutate_json(rng, raw), encoding="utf-8")


def _write_index(rng: random.Random, folder: Path) -> None:
    write_folder(folder, config_of(0))
    path = folder / "model.safetensors.index.json"
    path.write_text(mutate_json(rng, json.loads(path.read_text())), encoding="utf-8")


def _write_safetensors(rng: random.Random, folder: Path) -> None:
    write_folder(folder, config_of(rng.randrange(len(CONFIGS))))
    path = rng.choice(sorted(folder.glob("*.safetensors")))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(rng, data, 8 + length))
        return
    header = mutate_json(rng, json.loads(data[8 : 8 + length])).encode("utf-8", "replace")
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def _text_of_gguf() -> dict[str, Any]:
    count = len(TOKENS)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.5] * count,
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * (count - 3)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(path: Path) -> None:
    """Write a random model of one layer as a GGUF file."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"block_count": 1, "context_length": 64, "embedding_length": 32}
    numbers |= {"feed_forward_length": 64, "attention.head_count": 4}
    for name, number in numbers.items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in _text_of_gguf().items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](name, value)  # type: ignore[operator]
    rng = np.random.default_rng(0)
    shapes = {f"blk.0.attn_{x}": (32, 32) for x in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{x}": (64, 32) for x in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (32, 64), "token_embd": (len(TOKENS), 32)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_gguf(rng: random.Random, folder: Path) -> None:
    path = folder / "model.gguf"
    write_gguf(path)
    data = path.read_bytes()
    path.write_bytes(mutate_bytes(rng, data, data.index(b"output_norm.weight") + 64))


def _read_gguf(folder: Path) -> object:
    with Engine.load(folder / "model.gguf", "cpu", context=16, workers=1) as engine:
        ids = engine.generate([1, 3], GREEDY).token_ids
        return ids, engine.prompt_ids([{"role": "user", "content": "abc"}])


_TEXT = {"Sequence": {"id": "A", "type_id": 0}}
_LLAMA = {
    "version": "1.0",
    "added_tokens": [
        {"id": i, "content": token, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for i, token in enumerate(TOKENS[:3])
    ],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "pre_tokenizer": None,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, _TEXT],
        "pair": [_TEXT],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    },
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(TOKENS)},
        "merges": [["a", "b"], ["ab", "c"], ["▁", "a"]],
    },
}
_SETTINGS = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}


def _write_tokenizer(rng: random.Random, folder: Path) -> None:
    data, settings = json.dumps(_LLAMA), json.dumps(_SETTINGS)
    if rng.random() < 0.85:
        data = mutate_json(rng, _LLAMA)
    else:
        settings = mutate_json(rng, _SETTINGS)
    (folder / "tokenizer.json").write_text(data, encoding="utf-8", errors="replace")
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8", errors="replace")


def _read_tokenizer(folder: Path) -> object:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer is not None
    ids = tokenizer.encode("abc b </s>ab\u00e9", parse_special=True)
    known = [i for i in ids if i in tokenizer.vocabulary().values()]
    return tokenizer.decode(known), tokenizer.encode("</s> abc")


def _write_template(rng: random.Random, folder: Path) -> None:
    text = mutate_bytes(rng, TEMPLATE.encode(), len(TEMPLATE))
    if rng.random() < 0.2:
        text = text * rng.choice((10, 1000))
    (folder / "chat_template.jinja").write_bytes(text)


def _read_template(folder: Path) -> object:
    template = ChatTemplate.open(folder)
    return template.render(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]
    )


def _write_heads(rng: random.Random, folder: Path) -> None:
    gen = np.random.default_rng(0)
    shapes = {"gate": (64, 64), "up": (64, 64), "down": (32, 64), "head": (16, 32)}
    made = {n: gen.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    Heads(**made, tokens=np.arange(16, dtype=np.int32), vocab_size=VOCAB).write(folder)
    if rng.random() < 0.5:
        path = folder / "config.json"
        path.write_text(mutate_json(rng, json.loads(path.read_text())), encoding="utf-8")
        return
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(mutate_bytes(rng, data, 8 + int.from_bytes(data[:8], "little")))


def _write_prefixes(rng: random.Random, folder: Path) -> None:
    path = folder / "prefixes"
    rows = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    node = ("", np.arange(3, dtype=np.int32), KeptBytes(rows, None))
    write_prefixes(path, "binding", [node] * 3)
    data = path.read_bytes()
    found = mutate_bytes(rng, data[:-_DIGEST_BYTES], len(data))
    # With a checksum that is right, or nothing behind it would be looked at.
    path.write_bytes(found + hashlib.sha256(found).digest())


def _write_demo(rng: random.Random, folder: Path) -> None:
    """The packaged model with one of its JSON files changed."""
    shutil.copytree(find_model("demo"), folder, dirs_exist_ok=True)
    names = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
    path = folder / rng.choice((*names, "config.json"))
    path.write_text(mutate_json(rng, json.loads(path.read_text())), encoding="utf-8")


def _read_demo(folder: Path) -> object:
    with Engine.load(folder, "cpu", context=16, workers=1) as engine:
        chat = engine.prompt_ids([{"role": "user", "content": "x"}])
        return engine.generate("def", GREEDY).text, chat


CASES = {
    "gguf": Case(_write_gguf, _read_gguf),
    "safetensors": Case(_write_safetensors, run),
    "index": Case(_write_index, run),
    "config": Case(_write_config, run),
    "tokenizer": Case(_write_tokenizer, _read_tokenizer),
    "template": Case(_write_template, _read_template),
    "heads": Case(_write_heads, Heads.open),
    "prefixes": Case(_write_prefixes, lambda folder: read_prefixes(folder / "prefixes", "binding")),
    "settings": Case(_write_demo, _read_demo),
}
