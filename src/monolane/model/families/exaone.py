"""EXAONE 3 and 3.5: a Llama with names of its own, of fields and of tensors."""

from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._gguf import GgufSpelling
from monolane.model.families._rotary import read_rotary
from monolane.model.families.llama import DENSE, LLAMA, render_as
from monolane.ops import Role

# What published files say, and what Transformers may write.
_SPELLED = {
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
# What Transformers takes where the fields are not there.
_THETA, _KV_HEADS, _NORM_EPS = 5e5, 8, 1e-5
_LAYER = "transformer.h.{i}."
_NAMES = {
    Role.EMBEDDING: "transformer.wte.weight",
    Role.ATTENTION_NORM: _LAYER + "ln_1.weight",
    Role.Q: _LAYER + "attn.attention.q_proj.weight",
    Role.K: _LAYER + "attn.attention.k_proj.weight",
    Role.V: _LAYER + "attn.attention.v_proj.weight",
    Role.O: _LAYER + "attn.attention.out_proj.weight",
    Role.MLP_NORM: _LAYER + "ln_2.weight",
    Role.GATE: _LAYER + "mlp.c_fc_0.weight",
    Role.UP: _LAYER + "mlp.c_fc_1.weight",
    Role.DOWN: _LAYER + "mlp.c_proj.weight",
    Role.FINAL_NORM: "transformer.ln_f.weight",
    Role.HEAD: "lm_head.weight",
}


def _view(fields: Fields) -> Fields:
    called = {_SPELLED.get(name, name): x for name, x in fields.raw.items() if x is not None}
    spelled = {ours: name for name, ours in _SPELLED.items() if fields.has(name)}
    return Fields(called, fields.source, {**spelled, **fields.spelled})


def _render(config: ModelConfig) -> dict[str, Any]:
    said = render_as("Exaone")(config)
    return {next((x for x, y in _SPELLED.items() if y == k), k): v for k, v in said.items()}


EXAONE = replace(
    LLAMA,
    name="exaone",
    model_types=("exaone",),
    fields=DENSE
    | {
        "num_kv_heads": lambda f: f.size("num_key_value_heads", _KV_HEADS),
        "rotary": lambda f: read_rotary(f, "half", _THETA),
        "norm_eps": lambda f: f.number("rms_norm_eps", _NORM_EPS),
    },
    fixed={**LLAMA.fixed, "attention_bias": (False, "this family's files have no biases")},
    names=lambda config: _NAMES,
    render=_render,
    view=_view,
    gguf=GgufSpelling(
        architecture="exaone",
        style="half",
        # Of published folders newer converters say the norms' epsilon by the other of two names.
        optional={"attention.layer_norm_epsilon": "rms_norm_eps"},
    ),
)
