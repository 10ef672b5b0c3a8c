"""Where each matrix of a dense decoder goes among the lanes; NumPy only, one tensor at a time.

Three things change. Heads and inner units are dealt out to the lanes in order. Llama turns the
pairs (x_i, x_i+E/2) of a head and a Laneformer (x_2i, x_2i+1), so the rows of queries and keys are
put in the other order: their products, the scores, are sums of the same terms. And a norm's scale,
which the lanes share, is given to each of them.

Shape suffixes: L lanes, D hidden, H query heads, K KV heads, E head width, X rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from monolane.errors import CheckpointError
from monolane.model import PendingTensor, Role, TensorSpec, tensor_specs
from monolane.tune._dense import Dense

Array = npt.NDArray[np.generic]

_NAMES = {
    Role.EMBEDDING: "model.embed_tokens.weight",
    Role.ATTENTION_NORM: "input_layernorm.weight",
    Role.Q: "self_attn.q_proj.weight",
    Role.K: "self_attn.k_proj.weight",
    Role.V: "self_attn.v_proj.weight",
    Role.O: "self_attn.o_proj.weight",
    Role.MLP_NORM: "post_attention_layernorm.weight",
    Role.GATE: "mlp.gate_proj.weight",
    Role.UP: "mlp.up_proj.weight",
    Role.DOWN: "mlp.down_proj.weight",
    Role.FINAL_NORM: "model.norm.weight",
    Role.HEAD: "lm_head.weight",
}


def lane_tensors(dense: Dense) -> Iterator[PendingTensor]:
    """Yield the Laneformer's tensors; CheckpointError if the source lacks one or has others."""
    specs = tensor_specs(dense.config)
    sources = {spec.name: _source(spec) for spec in specs}
    _check_names(dense, set(sources.values()))
    for spec in specs:
        array = dense.checkpoint[sources[spec.name]]
        if array.shape != (shape := _dense_shape(dense, spec.role)):
            raise CheckpointError(
                f"{dense.checkpoint.file_of(sources[spec.name])}: tensor {sources[spec.name]!r}: "
                f"expected shape {list(shape)}, as config.json says, got {list(array.shape)}"
            )
        yield PendingTensor(spec.name, array.dtype, spec.shape, _maker(dense, spec, array))


def interleaved(rows_XD: Array, head_dim: int) -> Array:
    """Order each head's rows for pairs (0, 1), (2, 3), ..., given in pairs (i, i + E/2)."""
    rows_H2eD = rows_XD.reshape(-1, 2, head_dim // 2, rows_XD.shape[-1])
    return rows_H2eD.swapaxes(1, 2).reshape(rows_XD.shape)


def _source(spec: TensorSpec) -> str:
    name = _NAMES[spec.role]
    return name if spec.layer is None else f"model.layers.{spec.layer}.{name}"


def _check_names(dense: Dense, wanted: set[str]) -> None:
    missing = sorted(wanted - set(dense.checkpoint))
    if missing:
        raise CheckpointError(
            f"{dense.folder}: tensor {missing[0]!r} is missing, with {len(missing) - 1} more; "
            "expected the names that Transformers gives a Llama"
        )
    known = wanted | {_NAMES[Role.HEAD]}  # a tied model may store its head all the same
    surplus = sorted(
        name
        for name in set(dense.checkpoint) - known
        # Zero biases, which have been looked at, and frequencies that old files store.
        if not name.endswith((".bias", "rotary_emb.inv_freq"))
    )
    if surplus:
        raise CheckpointError(
            f"{dense.folder}: tensor {surplus[0]!r}, with {len(surplus) - 1} more, has no place "
            "in a Laneformer; expected an ordinary Llama"
        )


def _dense_shape(dense: Dense, role: Role) -> tuple[int, ...]:
    c = dense.config
    d, kv_rows = c.hidden_size, dense.num_kv_heads * c.head_dim
    return {
        Role.EMBEDDING: (c.vocab_size, d),
        Role.HEAD: (c.vocab_size, d),
        Role.Q: (d, d),
        Role.O: (d, d),
        Role.K: (kv_rows, d),
        Role.V: (kv_rows, d),
        Role.GATE: (c.intermediate_size, d),
        Role.UP: (c.intermediate_size, d),
        Role.DOWN: (d, c.intermediate_size),
    }.get(role, (d,))


def _maker(dense: Dense, spec: TensorSpec, array: Array) -> Callable[[], Array]:
    c = dense.config
    copies = c.num_kv_heads // dense.num_kv_heads

    def make() -> Array:
        values = array
        if spec.role in (Role.Q, Role.K):
            values = interleaved(values, c.head_dim)
        if spec.role in (Role.K, Role.V) and copies > 1:
            heads_KED = values.reshape(dense.num_kv_heads, c.head_dim, -1)
            values = heads_KED.repeat(copies, axis=0)
        if spec.role in (Role.O, Role.DOWN):  # a lane owns columns: [D, X] -> [L, D, X / L]
            return values.reshape(c.hidden_size, c.num_lanes, -1).swapaxes(0, 1)
        if len(spec.shape) == 2 and values.ndim == 1:  # a scale for each lane
            return np.broadcast_to(values, spec.shape)
        return values.reshape(spec.shape)

    return make
