"""Folders of small random models that chat as real ones do: a real template, and its tokens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from monolane.engine import Guide
from monolane.text._deepseek_v4 import TEMPLATE as DEEPSEEK_V4
from tests.random_models import write_random_model

TEMPLATES = Path(__file__).parents[1] / "text" / "templates"
CHATML = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MISTRAL = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]")
HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>")
DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")


@dataclass(frozen=True, slots=True)
class Family:
    """A template, the control tokens of its vocabulary, and the format of tool calls it shows."""

    file: str
    special: tuple[str, ...]  # tokens that a text leaves out
    plain: tuple[str, ...]  # control tokens that it shows
    format: str
    bos: str = "<s>"
    eos: str = "</s>"  # ends a turn
    own: str = ""  # the template, where it is ours and no file has it


FAMILIES = {
    "qwen2.5": Family("Qwen-Qwen2.5-7B-Instruct", CHATML, CALL, "hermes", eos=CHATML[1]),
    "qwen3": Family("Qwen-Qwen3-0.6B", CHATML, CALL + THINK, "hermes", eos=CHATML[1]),
    "qwen3-coder": Family("Qwen3-Coder", CHATML, CALL, "xml", eos=CHATML[1]),
    "qwen3.5": Family("Qwen3.5-4B", CHATML, CALL + THINK, "xml", eos=CHATML[1]),
    "hermes": Family(
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", CHATML, CALL, "hermes", eos=CHATML[1]
    ),
    "llama3.1": Family(
        "meta-llama-Llama-3.1-8B-Instruct",
        (*LLAMA, "<|python_tag|>"),
        (),
        "llama",
        *(LLAMA[0], LLAMA[3]),
    ),
    "llama3.2": Family(
        "meta-llama-Llama-3.2-3B-Instruct",
        (*LLAMA, "<|python_tag|>"),
        (),
        "llama",
        *(LLAMA[0], LLAMA[3]),
    ),
    "nemo": Family("mistralai-Mistral-Nemo-Instruct-2407", MISTRAL, (), "mistral"),
    "mistral-small": Family(
        "Mistral-Small-3.2-24B-Instruct-2506",
        (*MISTRAL, "[ARGS]", "[CALL_ID]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        (),
        "mistral-named",
    ),
    "gpt-oss": Family(
        "openai-gpt-oss-120b", HARMONY, (), "harmony", "<|startoftext|>", "<|return|>"
    ),
    "smollm2": Family("SmolLM2-135M-Instruct", CHATML, (), "smollm", eos=CHATML[1]),
    "smollm3": Family("HuggingFaceTB-SmolLM3-3B", CHATML, CALL + THINK, "generic", eos=CHATML[1]),
    "deepseek-r1": Family(
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", DEEPSEEK, THINK, "deepseek", eos=DEEPSEEK[2]
    ),
    "deepseek-v4": Family(
        "",
        DEEPSEEK,
        ("｜DSML｜", *THINK),
        "deepseek-v4",
        bos="<｜begin▁of▁sentence｜>",
        eos=DEEPSEEK[2],
        own=DEEPSEEK_V4,
    ),
}


def write_family(folder: Path, family: Family, **fields: Any) -> Path:
    """Write a folder of this family, with random weights, and return it.

    ``fields`` are for config.json, in place of those of a small Laneformer.
    """
    template = family.own or (TEMPLATES / f"{family.file}.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    named = {"bos_token": family.bos, "eos_token": family.eos, "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    library = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=list(dict.fromkeys(("<unk>", family.bos, family.eos, *family.special))),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([template], trainer)
    library.add_tokens([tokenizers.AddedToken(one, normalized=False) for one in family.plain])
    library.save(str(folder / "tokenizer.json"))
    ends = {
        "bos_token_id": library.token_to_id(family.bos),
        "eos_token_id": library.token_to_id(family.eos),
    }
    _write_weights(folder, ends | fields)
    return folder


def _write_weights(folder: Path, fields: dict[str, Any]) -> None:
    config: dict[str, Any] = {
        "model_type": "laneformer",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 496,
        "max_position_embeddings": 6000,
        "num_lanes": 2,
        "broadcast_delay": 1,
        "sliding_window": 16,
        "swa_layers": [0],
        "torch_dtype": "float32",
        **fields,
    }
    write_random_model(folder, config)


class Says:
    """A constraint that has a model say these tokens, and nothing else."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = tuple(ids)

    def step(self, token_id: int | None) -> Guide:
        """Return the only guide, which ends the answer behind its tokens."""
        assert token_id is None
        return Guide(None, self._ids)
