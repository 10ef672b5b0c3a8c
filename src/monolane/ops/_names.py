"""The names that operations share out: places of tensors, and buffers between phases."""

from enum import Enum, IntEnum, StrEnum
from typing import Self


class Kind(Enum):
    """What a tensor is to loaders, to quantising and to executors."""

    MATRIX = 0  # meets activations, and may be quantised
    # A matrix that quantising leaves in floats: groups of its columns in a file are not its own.
    FLOATS = 1
    # One that stays in the floats that it is stored in, whatever is asked of the others: it is
    # small, and what it decides is a jump, or lasts for all tokens behind.
    KEPT = 2
    LOOKUP = 3  # rows are looked up, one a token
    NORM = 4  # scales of a norm, to which the config's ``norm_offset`` is added
    VECTOR = 5  # few numbers, whatever their shape, read as float32


class Role(StrEnum):
    """Place of a tensor in the model, with its shape as executors see it (see ``lane_shape``)."""

    kind: Kind
    of_each: bool  # a layer has one for each expert

    def __new__(cls, value: str, kind: Kind, of_each: bool = False) -> Self:
        """Make a member, whose value is its name in files of ours."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.kind, member.of_each = kind, of_each
        return member

    EMBEDDING = "embedding", Kind.LOOKUP  # [V, D]
    ATTENTION_NORM = "attention_norm", Kind.NORM  # [L, D], or [1, D] where the lanes share it
    Q = "q", Kind.MATRIX  # [L, H*h/L, D]
    K = "k", Kind.MATRIX  # [L, K*h/L, D]
    V = "v", Kind.MATRIX  # [L, K*h/L, D]
    Q_BIAS = "q_bias", Kind.VECTOR  # [L, H*h/L]
    K_BIAS = "k_bias", Kind.VECTOR  # [L, K*h/L]
    V_BIAS = "v_bias", Kind.VECTOR  # [L, K*h/L]
    O = "o", Kind.MATRIX  # noqa: E741  [L, D, H*h/L]
    MLP_NORM = "mlp_norm", Kind.NORM  # as ATTENTION_NORM
    GATE = "gate", Kind.MATRIX  # [L, F/L, D]
    UP = "up", Kind.MATRIX  # [L, F/L, D]
    DOWN = "down", Kind.MATRIX  # [L, D, F/L]
    FINAL_NORM = "final_norm", Kind.NORM  # [L, D] or [1, D]
    HEAD = "head", Kind.MATRIX  # [L, V/L, D] if vocabulary-parallel, else [1, V, D] or [1, V, L*D]
    Q_NORM = "q_norm", Kind.NORM  # [1, h]; of all heads at once [1, H*h]; of a latent [1, Q]
    K_NORM = "k_norm", Kind.NORM  # [1, h] or [1, K*h]; of a latent [1, R]
    POST_ATTENTION_NORM = "post_attention_norm", Kind.NORM  # as ATTENTION_NORM
    POST_MLP_NORM = "post_mlp_norm", Kind.NORM  # as ATTENTION_NORM
    ROUTER = "router", Kind.KEPT  # [1, E, D], of a layer that is a mixture
    EXPERT_GATE = "expert_gate", Kind.MATRIX, True  # [1, X, D] of each expert
    EXPERT_UP = "expert_up", Kind.MATRIX, True  # [1, X, D] of each expert
    EXPERT_DOWN = "expert_down", Kind.MATRIX, True  # [1, D, X] of each expert
    SINKS = "sinks", Kind.VECTOR  # [L, H/L]
    O_BIAS = "o_bias", Kind.VECTOR  # [1, D]
    ROUTER_BIAS = "router_bias", Kind.VECTOR  # [1, E]
    EXPERT_GATE_BIAS = "expert_gate_bias", Kind.VECTOR  # [1, E, X]
    EXPERT_UP_BIAS = "expert_up_bias", Kind.VECTOR  # [1, E, X]
    EXPERT_DOWN_BIAS = "expert_down_bias", Kind.VECTOR  # [1, E, D]
    ROUTER_CORRECTION = "router_correction", Kind.VECTOR  # [1, E]
    SHARED_GATE = "shared_gate", Kind.MATRIX  # [1, Xs, D], Xs the width that all tokens share
    SHARED_UP = "shared_up", Kind.MATRIX  # [1, Xs, D]
    SHARED_DOWN = "shared_down", Kind.MATRIX  # [1, D, Xs]
    SHARED_EXPERT_GATE = "shared_expert_gate", Kind.VECTOR  # [1, D]: how much of it is added
    # Where attention is latent, see attention/latent.py. Q is there too, [1, H*h, Q or D].
    Q_DOWN = "q_down", Kind.MATRIX  # [1, Q, D]
    KV_DOWN = "kv_down", Kind.MATRIX  # [1, R + r, D]
    K_UP = "k_up", Kind.FLOATS  # [H, R, n]: of each head the matrix that is applied to its query
    V_UP = "v_up", Kind.FLOATS  # [H, v, R]
    # Of a layer with a gated delta rule, see delta/spec.py.
    DELTA_QKV = "delta_qkv", Kind.MATRIX  # [1, channels, D]: of all q, of all k, of all v
    DELTA_Z = "delta_z", Kind.MATRIX  # [1, U*d_v, D]
    DELTA_GATES = "delta_gates", Kind.KEPT  # [1, 2*U, D]: by key heads b of its values, then a
    DELTA_CONV = "delta_conv", Kind.VECTOR  # [1, channels, 1, C]: of all q, of all k, of all v
    DELTA_DECAY = "delta_decay", Kind.VECTOR  # [1, U]
    DELTA_STEP = "delta_step", Kind.VECTOR  # [1, U]
    DELTA_NORM = "delta_norm", Kind.VECTOR  # [1, d_v]; no offset is added to it
    DELTA_OUT = "delta_out", Kind.MATRIX  # [1, D, U*d_v]
    # Of a short convolution, see ops/conv/spec.py.
    CONV_IN = "conv_in", Kind.MATRIX  # [1, 3*C, D]
    CONV_TAPS = "conv_taps", Kind.VECTOR  # [1, C, 1, K]
    CONV_OUT = "conv_out", Kind.MATRIX  # [1, D, C]
    # Of Kimi's delta rule, see kda/spec.py; Q, K, V [1, U*d, D] and O [1, D, U*d] are there too.
    KDA_DECAY_DOWN = "kda_decay_down", Kind.KEPT  # [1, d, D]
    KDA_DECAY_UP = "kda_decay_up", Kind.KEPT  # [1, U*d, d]
    KDA_GATE_DOWN = "kda_gate_down", Kind.MATRIX  # [1, d, D]
    KDA_GATE_UP = "kda_gate_up", Kind.MATRIX  # [1, U*d, d]
    KDA_BETA = "kda_beta", Kind.KEPT  # [1, U, D]
    KDA_Q_CONV = "kda_q_conv", Kind.VECTOR  # [1, U*d, 1, C]
    KDA_K_CONV = "kda_k_conv", Kind.VECTOR  # the same
    KDA_V_CONV = "kda_v_conv", Kind.VECTOR  # the same
    KDA_DECAY = "kda_decay", Kind.VECTOR  # [1, 1, 1, U, 1]
    KDA_STEP = "kda_step", Kind.VECTOR  # [1, U*d]
    KDA_NORM = "kda_norm", Kind.VECTOR  # [1, d]; no offset is added to it
    # Of Mamba-2, see mamba/spec.py.
    MAMBA_IN = "mamba_in", Kind.MATRIX  # [1, H*p + channels + H, D]: z, u, b, c, t
    MAMBA_CONV = "mamba_conv", Kind.VECTOR  # [1, channels, 1, C]: of all u, of all b, of all c
    MAMBA_CONV_BIAS = "mamba_conv_bias", Kind.VECTOR  # [1, channels]
    MAMBA_DECAY = "mamba_decay", Kind.VECTOR  # [1, H]
    MAMBA_STEP = "mamba_step", Kind.VECTOR  # [1, H]
    MAMBA_SKIP = "mamba_skip", Kind.VECTOR  # [1, H]
    MAMBA_NORM = "mamba_norm", Kind.VECTOR  # [1, H*p]; no offset is added to it
    MAMBA_OUT = "mamba_out", Kind.MATRIX  # [1, D, H*p]
    # Of per-layer embeddings, see per_layer/spec.py; the first three are outside the layers.
    PER_LAYER_EMBEDDING = "per_layer_embedding", Kind.LOOKUP  # [V, N*P]
    PER_LAYER_PROJECTION = "per_layer_projection", Kind.MATRIX  # [1, N*P, D]
    PER_LAYER_NORM = "per_layer_norm", Kind.NORM  # [1, P]
    PER_LAYER_GATE = "per_layer_gate", Kind.MATRIX  # [1, P, D]
    PER_LAYER_OUT = "per_layer_out", Kind.MATRIX  # [1, D, P]
    LAYER_SCALE = "layer_scale", Kind.VECTOR  # [1, 1]: of the streams behind a layer
    ROUTER_NORM = "router_norm", Kind.VECTOR  # [1, D]: of the norm that the router alone reads by
    EXPERT_SCALES = "expert_scales", Kind.VECTOR  # [1, E]: of the weights of each
    # Of a layer's further modules, and of the sum of two.
    JOINT_NORM = "joint_norm", Kind.NORM  # as ATTENTION_NORM
    THIRD_NORM = "third_norm", Kind.NORM  # as ATTENTION_NORM
    POST_THIRD_NORM = "post_third_norm", Kind.NORM  # as ATTENTION_NORM
    FOURTH_NORM = "fourth_norm", Kind.NORM  # as ATTENTION_NORM
    POST_FOURTH_NORM = "post_fourth_norm", Kind.NORM  # as ATTENTION_NORM
    # Of several streams, see model/_altup.py; the last ones are outside the layers.
    ALTUP_NORM = "altup_norm", Kind.NORM  # [1, D]
    ALTUP_ROUTER = "altup_router", Kind.KEPT  # [1, A, D]
    ALTUP_PREDICT = "altup_predict", Kind.KEPT  # [1, A*A, A]
    ALTUP_CORRECT = "altup_correct", Kind.KEPT  # [1, A, A]
    ALTUP_SCALE = "altup_scale", Kind.VECTOR  # [1, D]
    ALTUP_IN_1 = "altup_in_1", Kind.MATRIX  # [1, D, D]
    ALTUP_IN_2 = "altup_in_2", Kind.MATRIX  # the same
    ALTUP_IN_3 = "altup_in_3", Kind.MATRIX  # the same
    ALTUP_OUT_1 = "altup_out_1", Kind.MATRIX  # the same
    ALTUP_OUT_2 = "altup_out_2", Kind.MATRIX  # the same
    ALTUP_OUT_3 = "altup_out_3", Kind.MATRIX  # the same
    # Of a learned residual, see laurel/spec.py.
    LAUREL_LEFT = "laurel_left", Kind.MATRIX  # [1, R, D]
    LAUREL_RIGHT = "laurel_right", Kind.MATRIX  # [1, D, R]
    LAUREL_NORM = "laurel_norm", Kind.NORM  # [1, D]
    # Of what a layer that predicts further ahead begins with, see ahead/spec.py.
    AHEAD_TOKEN_NORM = "ahead_token_norm", Kind.NORM  # [1, D]
    AHEAD_STATE_NORM = "ahead_state_norm", Kind.NORM  # [1, D]
    AHEAD_IN = "ahead_in", Kind.MATRIX  # [1, D, 2*D]
    # Of an index that chooses keys, see attention/index.py and compressed/spec.py.
    INDEX_Q = "index_q", Kind.KEPT  # [1, H*d, Q]
    INDEX_WEIGHTS = "index_weights", Kind.KEPT  # [1, H, D]
    INDEX_K = "index_k", Kind.KEPT  # [1, d, D]
    INDEX_NORM = "index_norm", Kind.VECTOR  # [1, d]; no offset is added to it
    INDEX_NORM_BIAS = "index_norm_bias", Kind.VECTOR  # [1, d]
    # Of compressed attention, see compressed/spec.py; Q_DOWN, Q, KV_DOWN, the norms of both, SINKS
    # and O are there too.
    O_DOWN = "o_down", Kind.MATRIX  # [1, g*R, H*h/g]: of each group of heads R rows
    COMPRESS_KV = "compress_kv", Kind.KEPT  # [1, s*h, D], s 2 where entries overlap, else 1
    COMPRESS_GATE = "compress_gate", Kind.KEPT  # the same
    COMPRESS_BIAS = "compress_bias", Kind.VECTOR  # [1, m, s*h]
    COMPRESS_NORM = "compress_norm", Kind.NORM  # [1, h]
    INDEX_KV = "index_kv", Kind.KEPT  # the same four of the index's keys, d in the place of h
    INDEX_GATE = "index_gate", Kind.KEPT
    INDEX_BIAS = "index_bias", Kind.VECTOR
    INDEX_KV_NORM = "index_kv_norm", Kind.NORM
    # The experts of each token, where these are told and not chosen.
    EXPERT_TABLE = "expert_table", Kind.VECTOR  # [1, V, k]: whole numbers
    # Of hyper-connections, see model/_hyper.py; the last three are outside the layers.
    HYPER_1 = "hyper_1", Kind.KEPT  # [1, (2 + A)*A, A*D], of what is before a layer's first module
    HYPER_1_BASE = "hyper_1_base", Kind.VECTOR  # [1, (2 + A)*A]
    HYPER_1_SCALE = "hyper_1_scale", Kind.VECTOR  # [1, 3]
    HYPER_2 = "hyper_2", Kind.KEPT  # the same three of its second
    HYPER_2_BASE = "hyper_2_base", Kind.VECTOR
    HYPER_2_SCALE = "hyper_2_scale", Kind.VECTOR
    HYPER_OUT = "hyper_out", Kind.KEPT  # [1, A, A*D]
    HYPER_OUT_BASE = "hyper_out_base", Kind.VECTOR  # [1, A]
    HYPER_OUT_SCALE = "hyper_out_scale", Kind.VECTOR  # [1, 1]
    # In files alone, see JOINED and PARTED.
    # [1, H*(n + v), R]: of each head the rows of K_UP, not turned, then of V_UP
    KV_UP = "kv_up", Kind.FLOATS
    # [1, channels + U*d_v, D]: of each key head q, k, its v, its z
    DELTA_IN = "delta_in", Kind.MATRIX
    QKV = "qkv", Kind.MATRIX  # [1, (H + 2K)*h, D]
    GATE_UP = "gate_up", Kind.MATRIX  # [1, 2*F, D]
    ALTUP_IN = "altup_in", Kind.MATRIX  # [1, (A-1)*D, D]: of all streams but the first
    ALTUP_OUT = "altup_out", Kind.MATRIX  # the same
    DELTA_BETA = "delta_beta", Kind.KEPT  # [1, U, D]: b of all value heads
    DELTA_ALPHA = "delta_alpha", Kind.KEPT  # [1, U, D]: a of all value heads


# Of these a layer has one for each expert.
EXPERT_ROLES = tuple(role for role in Role if role.of_each)

# Tensors of files that hold the rows of several roles: the first two in an order of their own, the
# others one behind the other.
JOINED: dict[Role, tuple[Role, ...]] = {
    Role.KV_UP: (Role.K_UP, Role.V_UP),
    Role.DELTA_IN: (Role.DELTA_QKV, Role.DELTA_Z),
    Role.QKV: (Role.Q, Role.K, Role.V),
    Role.GATE_UP: (Role.GATE, Role.UP),
    # Of as many streams as there are.
    Role.ALTUP_IN: (Role.ALTUP_IN_1, Role.ALTUP_IN_2, Role.ALTUP_IN_3),
    Role.ALTUP_OUT: (Role.ALTUP_OUT_1, Role.ALTUP_OUT_2, Role.ALTUP_OUT_3),
}
# The other way round: a role whose rows files have in several tensors.
PARTED: dict[Role, tuple[Role, ...]] = {Role.DELTA_GATES: (Role.DELTA_BETA, Role.DELTA_ALPHA)}
# Places of tensors in files that no executor reads.
FILE_ROLES = frozenset((*JOINED, *(part for parts in PARTED.values() for part in parts)))

Shapes = dict[Role, tuple[int, ...]]


class Buffer(IntEnum):
    """What workers share. Residual streams and normed activations are private to each worker."""

    TOKENS = 0  # the pass's tokens, where a leader lays it out
    QUERY = 1  # [L, T, H/L*h]
    KEY_VALUE = 2  # [N, L, context, K/L, h], twice, or once of latents; a slot is a layer
    ATTENTION = 3  # [L, S, T, H/L, h + 2]: sum of e*v, then peak and total, of each of S splits
    FIRST_OUTPUT = 4  # [slots, L, T, D], of a layer's first module
    # [L, T, F/L]; of a mixture [1, T, k*X + Xs], the chosen experts in ascending order
    HIDDEN = 5
    SECOND_OUTPUT = 6  # the same of its second
    STREAM = 7  # [L, T, D]
    LOGITS = 8  # [T, V], and candidates taken from them
    # [L, T, (H+K)/L*h]: products of Q, then of K, if NORM_QK norms them; [L, T, (H+2*K)/L*h]: those
    # of Q, K and V, if who attends norms and turns them
    UNNORMED = 9
    ROUTED = 10  # [1, T, E]: logits of a layer's router
    # [1, T, Q + R + r]: products of Q_DOWN, if there is one, then of KV_DOWN; or those of
    # KDA_DECAY_UP, then of KDA_GATE_UP
    LATENTS = 11
    HEADS = 12  # [1, T, H*v]: what OUT reads where attention is latent, and layers with states
    QUERY_GATE = 13  # [L, T, H/L*h]: what OUT multiplies by, before its sigmoid
    MIXED = 14  # [1, T, channels + U*d_v + 2U]: products of DELTA_QKV, DELTA_Z and DELTA_GATES
    # [N, G, numbers]: states of a key head's value heads, and the last inputs of their channels; a
    # slot is a layer
    STATE = 15
    THIRD_OUTPUT = 16  # as FIRST_OUTPUT, of a layer's third module
    FOURTH_OUTPUT = 17  # the same of its fourth
    PER_LAYER = 18  # [1, T, N*P]: what tokens have for each layer
    # [1, T, D]: what another model's head read of the tokens before these; laid out with TOKENS
    STATES = 19
    # [1, T, (A-1)*D]: products that streams begin with, then those that they end with
    ALTUP = 20
