"""Each operation of a decoder, written as its definition. Float32 throughout.

Shape legend: L lanes, T tokens of the pass, S cached tokens, D hidden, H query heads of a lane,
K KV heads of a lane, h head_dim, V vocabulary, R rows of a matrix.
"""

import numpy as np
import numpy.typing as npt

from monolane.model import Reduce

Floats = npt.NDArray[np.float32]


def rms_norm(x_LTD: Floats, scale_LD: Floats, eps: float) -> Floats:
    """Divide each stream by its root mean square and scale it; a scale [1, D] serves every lane."""
    mean_square = np.mean(x_LTD * x_LTD, axis=-1, keepdims=True)
    normed: Floats = x_LTD / np.sqrt(mean_square + np.float32(eps)) * scale_LD[:, None, :]
    return normed


def norm_stream(x_LTD: Floats, scale_LD: Floats, eps: float, centred: bool) -> Floats:
    """Norm streams; where ``centred`` by LayerNorm without a bias, which takes off the mean."""
    centre = x_LTD.mean(axis=-1, keepdims=True) if centred else np.float32(0)
    return rms_norm(x_LTD - centre, scale_LD, eps)


def linear(x_LTD: Floats, weight_LRD: Floats) -> Floats:
    """Apply each lane's matrix to its own stream: [L, T, R]."""
    product: Floats = np.matmul(x_LTD, weight_LRD.swapaxes(1, 2))
    return product


def rotate(
    x_LTHh: Floats,
    positions_T: npt.NDArray[np.int64],
    frequencies: Floats,
    style: str,
    amplitude: float = 1.0,
) -> Floats:
    """Turn each pair of a head by position * frequency, and stretch it by ``amplitude``.

    ``style`` says which elements pair up.
    """
    angle = positions_T.astype(np.float32)[:, None] * frequencies  # [T, h/2]
    cos, sin = (
        np.float32(amplitude) * f(angle)[:, None, :] for f in (np.cos, np.sin)
    )  # [T, 1, h/2]
    if style == "interleaved":
        first, second = x_LTHh[..., 0::2], x_LTHh[..., 1::2]
        pairs = [first * cos - second * sin, second * cos + first * sin]
        return np.stack(pairs, axis=-1).reshape(x_LTHh.shape)
    first, second = np.split(x_LTHh, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def cap_logits(logits: Floats, scale: float, cap: float | None) -> Floats:
    """Scale logits, or scores, and bend them so that none is beyond a cap: c tanh(x / c)."""
    scaled = logits if scale == 1 else logits * np.float32(scale)
    return scaled if cap is None else np.float32(cap) * np.tanh(scaled / np.float32(cap))


def attend(
    q_LTHh: Floats,
    k_LSKh: Floats,
    v_LSKh: Floats,
    first_position: int,
    window: int | None,
    scale: float | None = None,
    sinks_LH: Floats | None = None,
    cap: float | None = None,
    chunked: bool = False,
    seen_TS: npt.NDArray[np.bool_] | None = None,
) -> Floats:
    """Causal attention of T queries, from ``first_position`` on, over all S = first + T keys.

    Query i sees key j iff j <= i and, in a windowed layer, j > i - window; where windows are
    ``chunked``, iff i and j are of one chunk of so many positions. Scores are multiplied by
    ``scale``, by default 1 / sqrt(h), and capped where there is a ``cap``. A head's sink is one
    more score, of a key whose value is 0. Of keys that are not ``seen`` nothing is seen. Values may
    be of another width than keys. Returns [L, T, H*h], h that of values.
    """
    width, head_dim = q_LTHh.shape[1], q_LTHh.shape[3]
    query = np.arange(first_position, first_position + width)[:, None]
    key = np.arange(k_LSKh.shape[1])[None, :]
    hidden = key > query
    if window is not None:
        hidden |= key < query // window * window if chunked else key <= query - window
    if seen_TS is not None:
        hidden |= ~seen_TS
    factor = head_dim**-0.5 if scale is None else scale
    return attend_seen(q_LTHh, k_LSKh, v_LSKh, hidden, factor, sinks_LH, cap)


def attend_seen(
    q_LTHh: Floats,
    k_LSKh: Floats,
    v_LSKh: Floats,
    hidden_TS: npt.NDArray[np.bool_],
    scale: float,
    sinks_LH: Floats | None = None,
    cap: float | None = None,
) -> Floats:
    """The same of queries that see all keys but those that are ``hidden``."""
    lanes, width, heads, _ = q_LTHh.shape
    group = heads // k_LSKh.shape[2]  # query heads per KV head
    k_LSHh = np.repeat(k_LSKh, group, axis=2)
    v_LSHh = np.repeat(v_LSKh, group, axis=2)
    scores = np.einsum("lthc,lshc->lhts", q_LTHh, k_LSHh, optimize=True)
    scores *= np.float32(scale)
    scores = cap_logits(scores, 1.0, cap)
    scores[..., hidden_TS] = -np.inf
    if sinks_LH is not None:
        sinks = np.broadcast_to(sinks_LH[:, :, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    shares = softmax(scores)[..., : k_LSKh.shape[1]]
    out = np.einsum("lhts,lshc->lthc", shares, v_LSHh, optimize=True)
    joined: Floats = out.reshape(lanes, width, -1)
    return joined


def choose_keys(
    q_THd: Floats,
    k_Sd: Floats,
    weights_TH: Floats,
    hidden_TS: npt.NDArray[np.bool_],
    count: int,
) -> npt.NDArray[np.bool_]:
    """Return which keys an index chooses for each token, at most ``count``: [T, S].

    Those with the largest sums over its heads of weight * max(0, q . k / sqrt(d)), of equal ones
    the first; none that is ``hidden``.
    """
    scores_TSH = np.einsum("thd,sd->tsh", q_THd, k_Sd, optimize=True)
    positive = np.maximum(scores_TSH * np.float32(q_THd.shape[-1] ** -0.5), np.float32(0))
    scores_TS = np.einsum("tsh,th->ts", positive, weights_TH, optimize=True)
    scores_TS[hidden_TS] = -np.inf
    largest = np.argsort(-scores_TS, axis=-1, kind="stable")[:, :count]
    chosen_TS = np.zeros(scores_TS.shape, np.bool_)
    np.put_along_axis(chosen_TS, largest, True, axis=-1)
    chosen: npt.NDArray[np.bool_] = chosen_TS & ~hidden_TS
    return chosen


def softmax(x: Floats) -> Floats:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    normed: Floats = e / e.sum(axis=-1, keepdims=True)
    return normed


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), by the branch that cannot overflow."""
    e = np.exp(-np.abs(x))
    found: Floats = np.where(x >= 0, 1, e) / (1 + e)
    return found


def softplus(x: Floats) -> Floats:
    """ln(1 + exp(x)), which cannot overflow."""
    found: Floats = np.logaddexp(x, np.float32(0))
    return found


def silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu_tanh(x: Floats) -> Floats:
    """GELU by the formula with tanh (arXiv:1606.08415, section 2)."""
    bent: Floats = np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3))
    return np.float32(0.5) * x * (1 + bent)


def silu_gate(gate: Floats, up: Floats) -> Floats:
    """SwiGLU (arXiv:2002.05202)."""
    gated: Floats = silu(gate) * up
    return gated


def gelu_gate(gate: Floats, up: Floats) -> Floats:
    """The same by GELU's tanh formula."""
    gated: Floats = gelu_tanh(gate) * up
    return gated


def clamped_gate(gate: Floats, up: Floats) -> Floats:
    """GPT-OSS's: g * sigmoid(1.702 g) * (u + 1), g at most 7 and u from -7 to 7."""
    slope, limit = np.float32(1.702), np.float32(7)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    gated: Floats = silu(slope * gate) / slope * (up + np.float32(1))
    return gated


def relu_squared(up: Floats) -> Floats:
    """max(x, 0)^2 (arXiv:2109.08668), of an MLP without a gate."""
    positive = np.maximum(up, np.float32(0))
    squared: Floats = positive * positive
    return squared


# How gate and up of an MLP become what its last matrix reads, by the config's activation.
GATES = {"silu": silu_gate, "gelu_tanh": gelu_gate, "clamped_swiglu": clamped_gate}


def reduce(rule: Reduce, outputs: list[Floats]) -> Floats:
    """Return what the residual streams gain from a module's newest output, outputs[-1] [L, T, D].

    ``outputs`` holds that module's outputs of all layers so far, so the delayed rule finds those of
    ``delay`` layers before at outputs[-1 - delay].
    """
    own = outputs[-1]
    lanes = own.shape[0]
    if rule.delay is None:
        return own * np.float32(lanes**0.5)
    others_LL = 1 - np.eye(lanes, dtype=np.float32)
    others: Floats = np.einsum("lj,jtd->ltd", others_LL, outputs[-1 - rule.delay])
    return own + others
