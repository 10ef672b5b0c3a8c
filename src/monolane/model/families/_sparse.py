"""What families have in common whose mixtures are as DeepSeek-V3's: layers, names, fields.

Dense layers come first. Experts are chosen by sigmoids with a correction, out of groups by the two
best of each; an MLP that all tokens share is beside them.
"""

from typing import Any

from monolane.model._fields import Fields
from monolane.model.families._family import layer_count
from monolane.model.families._gguf import AHEAD
from monolane.ops import Experts, Role

SPARSE, DENSE = "sparse", "dense"
_MLP = "model.layers.{i}.mlp."
ROUTED = {
    Role.ROUTER: _MLP + "gate.weight",
    Role.ROUTER_CORRECTION: _MLP + "gate.e_score_correction_bias",
    Role.EXPERT_GATE: _MLP + "experts.{e}.gate_proj.weight",
    Role.EXPERT_UP: _MLP + "experts.{e}.up_proj.weight",
    Role.EXPERT_DOWN: _MLP + "experts.{e}.down_proj.weight",
    Role.SHARED_GATE: _MLP + "shared_experts.gate_proj.weight",
    Role.SHARED_UP: _MLP + "shared_experts.up_proj.weight",
    Role.SHARED_DOWN: _MLP + "shared_experts.down_proj.weight",
}
# Of files that have one tensor for all experts of a layer; see ``Family.merged``.
MERGED = {
    Role.EXPERT_GATE: _MLP + "experts.gate_up_proj",
    Role.EXPERT_UP: _MLP + "experts.gate_up_proj",
    Role.EXPERT_DOWN: _MLP + "experts.down_proj",
}


def read_sparse(fields: Fields, dense: int = 1) -> list[bool]:
    """Tell of each layer whether it is a mixture, as ``mlp_layer_types`` says.

    Without that field all are from layer ``first_k_dense_replace`` on, by default from ``dense``.
    """
    count, kinds = layer_count(fields), fields.raw.get("mlp_layer_types")
    if kinds is None:
        first = fields.size("first_k_dense_replace", dense, minimum=0)
        return [i >= first for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (SPARSE, DENSE) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of MLPs, one a layer: {SPARSE!r} or {DENSE!r}"
        raise fields.fault("mlp_layer_types", expected)
    return [kind == SPARSE for kind in kinds]


def read_experts(
    fields: Fields, count: int, shared: str, *, chosen: int, inner: int, scale: float
) -> Experts:
    """Read the sizes of ``count`` experts; ``shared`` names the field of how many all tokens share.

    ``chosen``, ``inner`` and ``scale`` are taken where fields are not there.
    """
    width, groups = fields.size("moe_intermediate_size", inner), fields.size("n_group", 1)
    return Experts(
        count=count,
        chosen=fields.size("num_experts_per_tok", chosen),
        inner=width,
        normalised=fields.flag("norm_topk_prob", True),
        scores="sigmoid",
        corrected=True,
        groups=groups,
        chosen_groups=fields.size("topk_group", 1),
        group_best=min(2, count // groups),
        scale=fields.number("routed_scaling_factor", scale),
        shared=width * fields.size(shared, 1, minimum=0),
    )


def render_experts(mixture: Experts | None, count: str, shared: str) -> dict[str, Any]:
    """Write the sizes of experts; ``count`` and ``shared`` name the fields of how many there are.

    Nothing where there are none.
    """
    if mixture is None:
        return {}
    return {
        count: mixture.count,
        "num_experts_per_tok": mixture.chosen,
        "moe_intermediate_size": mixture.inner,
        shared: mixture.shared // mixture.inner,
        "n_group": mixture.groups,
        "topk_group": mixture.chosen_groups,
        "norm_topk_prob": mixture.normalised,
        "routed_scaling_factor": mixture.scale,
    }


def read_gguf_blocks(fields: Fields) -> dict[str, Any]:
    """Return how many layers a GGUF file has, without those that predict further ahead."""
    blocks, ahead = layer_count(fields), fields.size(AHEAD, 0)
    if ahead >= blocks:
        raise fields.fault(AHEAD, f"fewer than all {blocks} blocks")
    return {"num_hidden_layers": blocks - ahead}


def read_gguf_sigmoids(fields: Fields) -> dict[str, Any]:
    """Return what fields mean that a GGUF file with such experts leaves out."""
    fields.fixed("expert_gating_func", 2, "experts of this family are chosen by sigmoids")
    return read_gguf_blocks(fields) | {
        "first_k_dense_replace": fields.size("first_k_dense_replace", 0, minimum=0),
        "norm_topk_prob": fields.flag("norm_topk_prob", False),
    }
