"""Small random Gemma 4 models and assistants, as Transformers makes, computes and saves them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
candidates = pytest.importorskip("transformers.generation.candidate_generator")
pytest.importorskip("transformers.models.gemma4_assistant")

V, WINDOW, CONTEXT = 99, 9, 420
SLIDING, FULL = "sliding_attention", "full_attention"
ROTARIES = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
    SLIDING: {"rope_type": "default", "rope_theta": 50.0},
}
SIZES: dict[str, Any] = {
    "hidden_size": 60,
    "intermediate_size": 74,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "vocab_size": V,
    "sliding_window": WINDOW,
    "rope_parameters": ROTARIES,
    "max_position_embeddings": 512,
}
ALIKE = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
MODELS: dict[str, dict[str, Any]] = {
    "values are keys": ALIKE | {"layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL]},
    "shared keys": {
        "layer_types": [SLIDING, SLIDING, FULL] * 2,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 10,
        "vocab_size_per_layer_input": V,
        "final_logit_softcapping": 3.0,
    },
    "unified": ALIKE
    | {"layer_types": [SLIDING, FULL, SLIDING, FULL], "model_type": "gemma4_unified_text"}
    | {"final_logit_softcapping": 3.0},
    "mixtures": ALIKE
    | {"layer_types": [SLIDING, FULL], "enable_moe_block": True, "num_experts": 7}
    | {"top_k_experts": 3, "moe_intermediate_size": 40},
}
OWN = {"hidden_size": 44, "intermediate_size": 58, "num_attention_heads": 4}
ORDERED = {"use_ordered_embeddings": True, "num_centroids": 11, "centroid_intermediate_top_k": 3}
# What a model has, of which kinds its assistant's layers are, and what head that has.
Case = tuple[dict[str, Any], list[str], dict[str, Any]]
CASES: dict[str, Case] = {
    "values are keys, ordered": (
        MODELS["values are keys"],
        [SLIDING, FULL, SLIDING, FULL],
        ORDERED,
    ),
    "values are keys": (MODELS["values are keys"], [SLIDING, SLIDING, SLIDING, FULL], {}),
    "shared keys": (MODELS["shared keys"], [SLIDING, FULL], {}),
    "shared keys, ordered": (MODELS["shared keys"], [FULL, FULL], ORDERED),
    "mixtures": (MODELS["mixtures"], [FULL], {}),
    "unified": (MODELS["unified"], [SLIDING, FULL, SLIDING], ORDERED),
}


def shaken(model: Any) -> Any:
    """Return a model whose every number is random, so that each shows in what it drafts."""
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith(("scalar", "router.scale", "expert_scale")):
                x += 0.3 * torch.randn_like(x)
            elif x.dtype.is_floating_point and "inv_freq" not in name and x.ndim > 1:
                x.normal_(0.0, 0.25)
            elif name.endswith("token_ordering"):
                x.copy_(torch.randperm(len(x)))
    return model.eval()


def make_model(changes: dict[str, Any], **sizes: Any) -> Any:
    fields = json.loads(json.dumps(SIZES | sizes | changes))
    name, fields = named(fields)
    config = getattr(transformers, f"{name}TextConfig")(
        **fields, num_hidden_layers=len(changes["layer_types"])
    )
    config._experts_implementation = "eager"
    return shaken(getattr(transformers, f"{name}ForCausalLM")(config))


def named(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return how the classes of a model's type begin, and its fields without what they lack."""
    if fields.pop("model_type", "gemma4_text") == "gemma4_text":
        return "Gemma4", fields
    return "Gemma4Unified", {name: x for name, x in fields.items() if "per_layer" not in name}


def make_assistant(
    model: dict[str, Any], kinds: list[str], changes: dict[str, Any], **sizes: Any
) -> Any:
    alike = {name: model[name] for name in (*ALIKE, "model_type") if name in model}
    fields = SIZES | sizes
    text = json.loads(json.dumps(fields | OWN | alike | {"layer_types": kinds}))
    kind = text.get("model_type", "gemma4_text")
    name, text = named(text)
    config = getattr(transformers, f"{name}AssistantConfig")(
        text_config={**text, "num_hidden_layers": len(kinds), "model_type": kind},
        backbone_hidden_size=fields["hidden_size"],
        **changes,
    )
    return shaken(getattr(transformers, f"{name}AssistantForCausalLM")(config))


@dataclass(frozen=True)
class Pair:
    """A model and its assistant, in memory and in folders."""

    model: Any
    assistant: Any
    folder: Path
    draft: Path

    def candidates(self, ids: Sequence[int], count: int, seen: int = CONTEXT) -> list[int]:
        """Return what Transformers drafts behind tokens, the last of which was just drawn.

        ``seen``: of layers with a window so many keys are there, the newest ones.
        """
        given = torch.tensor([list(ids)])
        with torch.no_grad():
            outputs = self.model(
                given[:, :-1],
                output_hidden_states=True,
                return_shared_kv_states=True,
                use_cache=False,
            )
        kept = outputs.shared_kv_states
        kept[SLIDING] = tuple(x[:, :, -seen:] for x in kept[SLIDING])
        generator = candidates.SinglePositionMultiTokenCandidateGenerator(
            self.assistant,
            self.model.get_input_embeddings(),
            transformers.GenerationConfig(max_length=10_000),
        )
        generator.num_assistant_tokens = count
        mask = torch.ones_like(given)
        found, _ = generator.get_candidates(
            given, {"attention_mask": mask}, outputs, is_first_iteration=False, n_last_matches=0
        )
        drafted: list[int] = found[0, len(ids) :].tolist()
        assert len(drafted) == count
        return drafted


def make_pair(case: Case, folder: Path, **sizes: Any) -> Pair:
    torch.manual_seed(7)
    changes, kinds, head = case
    model = make_model(changes, **sizes)
    assistant = make_assistant(changes, kinds, head, **sizes)
    model.save_pretrained(folder / "model")
    assistant.save_pretrained(folder / "draft")
    return Pair(model, assistant, folder / "model", folder / "draft")
