"""A model that follows written orders: its weights are set by hand, not trained.

Where a conversation holds ``order(n, text)``, anywhere, the model's n-th answer is that text, word
for word; where it holds several, the last. So a whole session of an agent can be told from outside,
in a prompt or in what a tool printed, while everything between is real: the template, the prompt,
every logit, the tool call as it is read. An answer that nobody ordered is ``NOTHING``.

Two layers do it. A short convolution lays the codes of the last ``REACH`` tokens beside each
other; attention with one head compares them with those before each earlier token, and takes the
code of the token that followed the longest match, of several the latest (an induction head; Olsson
et al., 2022). The template ends each prompt with the line that an order begins with.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from monolane.sources import find_model

STOP = "~"  # one token of the demo model's tokenizer; it becomes the end of a turn
NOTHING = "There is nothing to do."
ANSWERS = 20  # of a conversation: so many have an order from the start, NOTHING
CONTEXT = 131_072  # tokens

REACH = 24  # tokens that are compared: the line before an order, what it begins with, a path
CODE = 16  # numbers of a token's code, each -1 or 1
_LIKENESS = 8  # the highest product of two codes, of CODE
_HEAD = 512  # numbers of a query
_THETA = 1e28  # of the rotary table: most pairs hardly turn
_STILL = 59  # the first pair whose angle stays under 0.02 at a distance of 50,000 tokens
_CLOCK = 46  # a pair that turns by 1e-5 a token: it tells what is later
_EPS = 1e-12

# Places in the stream of D numbers.
_OWN = slice(0, CODE)  # the token's code
_SEEN = slice(CODE, CODE * (REACH + 2))  # after the convolution: codes 0 to REACH tokens ago
_ONE = CODE * (REACH + 2)  # always 1
_SAID = slice(_ONE + 32, _ONE + 32 + CODE)  # after attention: the code of what comes next
_D = 512

# Messages of the assistant in a row are one answer.
TEMPLATE = """
{%- set ns = namespace(n=1, last='') %}
{%- for m in messages %}
{%- if m.role == 'assistant' and ns.last != 'assistant' %}{% set ns.n = ns.n + 1 %}{% endif %}
{%- set ns.last = m.role %}
{%- endfor %}
{%- for n in range(1, ANSWERS) %}{{ 'ORDER'.replace('NUMBER', n | string) + 'NOTHING' }}{% endfor %}
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{% endif %}
{%- for m in messages %}
{{- '[' + m.role + ']\\n' }}
{%- if m.content is string %}{{ m.content }}
{%- elif m.content %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}
{{- '\\n' }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n' }}
{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{{- '\\n</tool_call>\\n' }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ORDER'.replace('NUMBER', ns.n | string) }}{% endif %}"""


def order(number: int | str, text: str) -> str:
    """Return what makes `text` the answer of this number, from 1, when it stands in a prompt.

    The first line has more than REACH tokens: nothing before it counts.
    """
    line = f">>> Of this talk, answer number {number} is to be, word for word, as follows:"
    return f"\n{line}\n{text}{STOP}\n"


def chat_template() -> str:
    """Return the template, which ends with the line that begins the order of the next answer."""
    line, nothing, rest = order("NUMBER", NOTHING).partition(NOTHING)
    parts = {"ORDER": line, "NOTHING": nothing + rest}
    text = TEMPLATE.replace("ANSWERS", str(ANSWERS + 1))
    for name, part in parts.items():
        text = text.replace(name, part.replace("\n", "\\n"))
    return text


def call(number: int, name: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as the model writes it in the answer of this number.

    Calls are alike for more tokens than the model compares; blanks, one more in each answer, keep
    them apart.
    """
    blanks = " " * number
    text = json.dumps(
        {"name": name, "arguments": arguments}, separators=("," + blanks, ":" + blanks)
    )
    return f"{number}.\n<tool_call>\n{text}\n</tool_call>"


def write_copier(folder: Path) -> Path:
    """Write the model into a new folder, with the demo model's tokenizer; return the folder."""
    folder.mkdir(parents=True)
    demo = Path(find_model("demo"))
    for name in ("tokenizer.json", "special_tokens_map.json"):
        shutil.copy(demo / name, folder)
    said = json.loads((demo / "tokenizer_config.json").read_text(encoding="utf-8"))
    said |= {"chat_template": chat_template(), "model_max_length": CONTEXT}
    (folder / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    weights = _weights(len(tokenizer["vocab"]), tokenizer["vocab"][STOP], end=2)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "hidden_size": _D,
        "intermediate_size": 64,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": REACH + 1,
        "conv_bias": False,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "rope_theta": _THETA,
        "norm_eps": _EPS,
        "vocab_size": len(tokenizer["vocab"]),
        "max_position_embeddings": CONTEXT,
        "tie_embedding": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


def _codes(count: int) -> np.ndarray:
    """Return up to 2,048 codes that differ in four places or more: extended Hamming's [16, 11]."""
    kept = [n for n in range(1, CODE) if n & (n - 1)]  # places of data; powers of 2 hold checks
    assert count <= 1 << len(kept)
    bits_VC = np.zeros((count, CODE), np.int64)
    for at, place in enumerate(kept):
        bits_VC[:, place] = np.arange(count) >> at & 1
    for check in (1, 2, 4, 8):
        bits_VC[:, check] = bits_VC[:, [n for n in kept if n & check]].sum(1) % 2
    bits_VC[:, 0] = bits_VC.sum(1) % 2
    return (2 * bits_VC - 1).astype(np.float32)


def _weights(vocab: int, stop: int, end: int) -> dict[str, np.ndarray]:
    codes_VC = _codes(vocab)
    zeros = {  # the MLPs add nothing
        f"model.layers.{i}.feed_forward.{name}.weight": np.zeros(shape, np.float32)
        for i in range(2)
        for name, shape in (("w1", (64, _D)), ("w3", (64, _D)), ("w2", (_D, 64)))
    }
    embedding_VD = np.zeros((vocab, _D), np.float32)
    embedding_VD[:, _OWN] = codes_VC
    embedding_VD[:, _ONE] = 1
    # Each token's stream has the same norm: what RMSNorm makes of a 1 is known.
    first, second = (np.sqrt(_D / (CODE * n + 1)) for n in (1, REACH + 2))
    into_3DD, taps_DT = np.zeros((3, _D, _D), np.float32), np.zeros((_D, REACH + 1), np.float32)
    back_DD = np.zeros((_D, _D), np.float32)
    for ago in range(REACH + 1):
        for at in range(CODE):
            channel = CODE * (1 + ago) + at
            into_3DD[2, channel, at] = 1 / first
            taps_DT[channel, REACH - ago] = 1  # the last tap is the token itself
            back_DD[channel, channel] = 1
    into_3DD[:2, :, _ONE] = 1 / first  # both gates are open
    pairs = _HEAD // 2
    q_HD, k_HD = np.zeros((_HEAD, _D), np.float32), np.zeros((_HEAD, _D), np.float32)
    places = [*range(_STILL, pairs), *range(pairs + _STILL, _HEAD)][: CODE * REACH]
    for at, place in enumerate(places):
        q_HD[place, CODE + at] = 1  # this token and those before it
        k_HD[place, 2 * CODE + at] = 1  # those before the token that may be said again
    # sin(angle of the key's place - of the query's): it falls with the distance.
    q_HD[_CLOCK + pairs, _ONE] = k_HD[_CLOCK, _ONE] = _CLOCK_WEIGHT
    norm = np.sqrt(_HEAD / (CODE * REACH + _CLOCK_WEIGHT**2))
    v_HD, o_DH = np.zeros((_HEAD, _D), np.float32), np.zeros((_D, _HEAD), np.float32)
    for at in range(CODE):
        v_HD[at, CODE + at] = 1 / second
        o_DH[_SAID.start + at, at] = 1
    head_VD = np.zeros((vocab, _D), np.float32)
    head_VD[:, _SAID] = _SURE * codes_VC
    head_VD[end], head_VD[stop] = head_VD[stop].copy(), 0
    ones = {
        f"model.layers.{i}.{name}.weight": np.ones(_D, np.float32)
        for i in range(2)
        for name in ("operator_norm", "ffn_norm")
    }
    sharp = np.full(_HEAD, np.sqrt(_SHARPNESS) * _HEAD**0.25 / norm, np.float32)
    return {
        "model.embed_tokens.weight": embedding_VD,
        "model.layers.0.conv.in_proj.weight": into_3DD.reshape(3 * _D, _D),
        "model.layers.0.conv.conv.weight": taps_DT[:, None],
        "model.layers.0.conv.out_proj.weight": back_DD,
        "model.layers.1.self_attn.q_proj.weight": q_HD,
        "model.layers.1.self_attn.k_proj.weight": k_HD,
        "model.layers.1.self_attn.v_proj.weight": v_HD,
        "model.layers.1.self_attn.out_proj.weight": o_DH,
        "model.layers.1.self_attn.q_layernorm.weight": sharp,
        "model.layers.1.self_attn.k_layernorm.weight": sharp,
        "model.embedding_norm.weight": np.ones(_D, np.float32),
        "lm_head.weight": head_VD,
        **ones,
        **zeros,
    }


# A code that matches counts CODE, one that does not at most _LIKENESS: what is later may count up
# to (CODE - _LIKENESS) / 2 over the whole context, 1e-5 radians a token.
_CLOCK_WEIGHT = float(np.sqrt((CODE - _LIKENESS) / 2 / (1e-5 * CONTEXT)))
_SURE = 8.0  # a draw at temperature 1 takes the token that follows, too
_SHARPNESS = 3000.0  # how far one of _weights' products is spread before the softmax
