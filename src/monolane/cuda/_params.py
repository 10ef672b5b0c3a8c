"""The structures that host and kernel hand to each other: one list of fields makes both sides."""

import numpy as np

Field = tuple[str, str, str]  # name, C type, what it is

_NUMPY = {"u32": "<u4", "i32": "<i4", "f32": "<f4", "u64": "<u8"}

# What one slot does in an epoch; see monolane.engine.Advance.
ADVANCE: tuple[Field, ...] = (
    ("slot", "u32", "of the cache"),
    ("tokens_begin", "u32", "in Params.tokens"),
    ("tokens_count", "u32", ""),
    ("budget", "u32", "tokens to draw at most"),
    ("stops_begin", "u32", "in Params.stops"),
    ("stops_count", "u32", ""),
    ("seed_low", "u32", ""),
    ("seed_high", "u32", ""),
    ("temperature", "f32", "0: the largest logit"),
    ("top_k", "u32", "0: all"),
    ("top_p", "f32", ""),
    ("min_p", "f32", ""),
    ("all_logits", "u32", "1: the logits of every row go to Params.logits; nothing is drawn"),
    ("record_logits", "u32", "1: the logits that each token is drawn from go to Params.logits"),
    ("biases_begin", "u32", "in Params.biases"),
    ("biases_count", "u32", ""),
    ("guided", "u32", "1: every draw waits for its guide, in Params.guides"),
    ("first_guide", "u32", "stamp of the guide of the first draw; the next one's is one more"),
)

# What is added to the logit of a token, which an advance names once, in ascending order.
BIAS: tuple[Field, ...] = (("token", "u32", ""), ("value", "f32", "-infinity: banned"))

# How far a slot has come; kept from launch to launch.
PROGRESS: tuple[Field, ...] = (
    ("length", "u32", "tokens in the slot"),
    ("fed", "u32", "of the advance's tokens"),
    ("next", "u32", "the token to feed once they all have been"),
    ("drawn", "u32", ""),
    ("done", "u32", ""),
)

# Handed from launch to launch of an epoch, and to the host at its end.
EPOCH: tuple[Field, ...] = (
    ("pass_number", "u32", "of the next pass, counted since the words were cleared"),
    ("events", "u32", "tokens sent to the host since the epoch began"),
    ("logit_rows", "u32", "rows written to Params.logits since the epoch began"),
    ("over", "u32", "1: nothing is left to do, or the host asked for the end"),
    ("syncs", "u32", "of a lane's blocks, since the words were cleared; wide passes only"),
)

PARAMS: tuple[Field, ...] = (
    ("weights", "const u8*", "[W][RUN_BYTES] tiles in the order in which a block reads them"),
    ("embedding", "const u16*", "[V][D]"),
    ("attention_norm", "const f32*", "[N][L or 1][D]"),
    ("mlp_norm", "const f32*", "[N][L or 1][D]"),
    ("final_norm", "const f32*", "[L or 1][D]"),
    ("qkv_bias", "const f32*", "[N][L][(H + 2 K) / L * h], or null"),
    ("rotary", "const f32*", "[context][h / 2][2]: cosine and sine"),
    ("row_scales", "const f32*", "[W][SCALE_ROWS] of 8-bit weights, or null"),
    ("shares", "const Share*", "[tables][W]: Q K V O GATE DOWN HEAD ATTEND GATHER"),
    ("cache", "u8*", "[slots][KV_BYTES]"),
    ("stream_words", "Word*", "[2][L][T][D]: residual streams"),
    ("square_words", "Word*", "[2][L][T][B]: sums of squares of each block's rows of them"),
    ("qkv_words", "Word*", "[L][T][(H + 2 K) / L * h]"),
    ("partial_words", "Word*", "[L][S][T][H / L][h + 2, even]: sums, maximum, total"),
    ("hidden_words", "Word*", "[L][T][F / L]"),
    ("raw_words", "Word*", "[attention slots, then MLP slots][L][T][D]: outputs that others read"),
    ("joined_words", "Word*", "[L][T][D]: streams for a head that reads all lanes"),
    ("candidate_words", "Word*", "[2][T][W][2]: key and token"),
    ("control_words", "Word*", "[2]: the host's wish to end, as block 0 saw it"),
    ("logit_words", "Word*", "[T][V]: where one block must see all of a row's logits"),
    ("decision_words", "Word*", "[2][T]: its choice"),
    ("verdict_words", "Word*", "[T]: what block 0 found where a row's guide should be"),
    ("lane_counters", "u32*", "[L][32]: arrivals at a lane's syncs, a cache line each"),
    ("activation_rows", "u8*", "[2][L][T][ACTIVATION_STRIDE]: activations of a wide pass"),
    ("own_streams", "f32*", "[W][T][OWN_ROWS]: a block's rows of the stream in a wide pass"),
    ("advances", "const Advance*", "[advance_count]"),
    ("progress_in", "const Progress*", "[advance_count]"),
    ("progress_out", "Progress*", "[advance_count]"),
    ("epoch_in", "const Epoch*", ""),
    ("epoch_out", "Epoch*", ""),
    ("tokens", "const u32*", ""),
    ("stops", "const u32*", ""),
    ("biases", "const Bias*", ""),
    (
        "guides",
        "const Word*",
        "pinned; [T][1 + MASK_WORDS] of each advance: Verdict, mask; or null",
    ),
    ("events", "Word*", "[EVENTS][2] pinned: token and advance, stamped with their number + 1"),
    ("control", "const u32*", "pinned; not 0: end within one pass"),
    ("fault", "u32*", "[8] wait, block, SM, detail of the first wait that starved; 0: none"),
    ("logits", "f32*", "[rows][V], or null"),
    ("trace", "u64*", "[TRACE_PASSES][phases][W][3] ns: arrived, begun, ended; or null"),
    ("watchdog_ns", "u64", "patience of a wait"),
    ("guide_patience_ns", "u64", "how long a pass waits for a guide before its row is given back"),
    ("advance_count", "u32", ""),
    ("handover", "u32", "end when a pass would have at most as many rows; 0: never"),
)


def dtype(fields: tuple[Field, ...]) -> np.dtype[np.void]:
    """Return the structure as NumPy sees it; pointers are addresses."""
    return np.dtype([(name, _NUMPY.get(kind, "<u8")) for name, kind, _ in fields], align=True)


def c_struct(name: str, fields: tuple[Field, ...]) -> str:
    """Return the structure as the kernel sees it, with its size checked."""
    lines = [f"struct {name} {{"]
    for field, kind, meaning in fields:
        lines.append(f"  {kind} {field};" + (f"  // {meaning}" if meaning else ""))
    lines += ["};", f"static_assert(sizeof({name}) == {dtype(fields).itemsize});", ""]
    return "\n".join(lines)


STRUCTS = {
    "Bias": BIAS,
    "Advance": ADVANCE,
    "Progress": PROGRESS,
    "Epoch": EPOCH,
    "Params": PARAMS,
}
BIAS_DTYPE, ADVANCE_DTYPE, PROGRESS_DTYPE = dtype(BIAS), dtype(ADVANCE), dtype(PROGRESS)
EPOCH_DTYPE, PARAMS_DTYPE = dtype(EPOCH), dtype(PARAMS)
