"""The structs that host and kernel hand to each other, described once for both."""

from monolane import executor_api
from monolane._structs import Field, Struct

# What one slot does in a launch: the request's own fields, and what only the kernel knows.
ADVANCE = Struct(
    "Advance",
    (
        *executor_api.ADVANCE.fields,
        Field("all_logits", "u32", "1: every row's go to Params.logits, and nothing is drawn"),
        Field("first_guide", "u32", "stamp of the first draw's guide; the next one's is one more"),
        Field("seen", "u32*", "[V] 1 + times drawn, 0: not in the sequence; null: no penalties"),
    ),
    parts=executor_api.ADVANCE.parts,
)

# How far a slot has come; kept from launch to launch.
PROGRESS = Struct(
    "Progress",
    (
        Field("length", "u32", "tokens in the slot"),
        Field("fed", "u32", "of the advance's tokens"),
        Field("next", "u32", "the token to feed once they all have been"),
        Field("drawn", "u32"),
        Field("done", "u32"),
    ),
)

# Handed from launch to launch of an epoch, and to the host at its end.
EPOCH = Struct(
    "Epoch",
    (
        Field("pass_number", "u32", "of the next pass, counted since the words were cleared"),
        Field("events", "u32", "tokens sent to the host since the epoch began"),
        Field("logit_rows", "u32", "rows written to Params.logits since the epoch began"),
        Field("over", "u32", "1: nothing is left to do, or the host asked for the end"),
        Field("syncs", "u32", "of a lane, since the words were cleared; wide only"),
    ),
)

PARAMS = Struct(
    "Params",
    (
        Field("weights", "const u8*", "[W][RUN_BYTES] tiles as a block reads them"),
        Field("embedding", "const u16*", "[V][D]"),
        Field("attention_norm", "const f32*", "[N][L or 1][D]"),
        Field("mlp_norm", "const f32*", "[N][L or 1][D]"),
        Field("after_norm", "const f32*", "[N][2][L or 1][D] of what modules add, or null"),
        Field("final_norm", "const f32*", "[L or 1][D]"),
        Field("qkv_bias", "const f32*", "[N][L][(H + 2 K) / L * h], or null"),
        Field("out_bias", "const f32*", "[N][D], or null"),
        Field("qk_norm", "const f32*", "[N][2][h], or of all heads [N][H + K][h]; or null"),
        Field("rotary", "const f32*", "[rotaries][context][h / 2][2]: cosine, sine, x amplitude"),
        Field("temperature", "const f32*", "[context]: factors of queries, or null"),
        Field("row_scales", "const f32*", "[W][SCALE_ROWS] of 8-bit weights, or null"),
        Field("shares", "const Share*", "[ways][tables][W]: see ShareTable"),
        Field("rounds", "const u8*", "[W][4 x ways + 1] of each product; read where blocks differ"),
        Field("cache", "u8*", "[slots][KV_BYTES]"),
        Field("stream_words", "Word*", "[2][L][T][D]: residual streams"),
        Field("square_words", "Word*", "[2][L][T][B]: squares of each block's rows"),
        Field("gained_words", "Word*", "[L][T][B]: squares of what is added to a block's rows"),
        Field("qkv_words", "Word*", "[L][T][(H + 2 K) / L * h]"),
        Field("head_square_words", "Word*", "[L][T][2][B]: of a block's rows of Q and of K"),
        Field("partial_words", "Word*", "[L][S][T][H / L][h + 2, even]: sums, maximum, total"),
        Field("merged_words", "Word*", "[L][T][H / L * h / 2]: two numbers of 16 bits each"),
        Field("hidden_words", "Word*", "[L][T][F / L]"),
        Field("raw_words", "Word*", "[attention slots, then MLP slots][L][T][D]: raw outputs"),
        Field("joined_words", "Word*", "[L][T][D]: streams for a head that reads all lanes"),
        Field("candidate_words", "Word*", "[2][T][W][2]: key and token"),
        Field("best_words", "Word*", "[2][T][devices][2]: of each one's candidates, if several"),
        Field("control_words", "Word*", "[2]: the host's wish to end, as block 0 saw it"),
        Field("logit_words", "Word*", "[T][V]: where one block must see all of a row's logits"),
        Field("decision_words", "Word*", "[2][T]: its choice"),
        Field("verdict_words", "Word*", "[T]: what block 0 found where a row's guide should be"),
        Field("alarm_word", "Word*", "[1] set by another device that gave up: its number"),
        Field("lane_counters", "u32*", "[L][32]: arrivals at a lane's syncs, a cache line each"),
        Field("activation_rows", "u8*", "[2][L][T][ACTIVATION_STRIDE] of a wide pass"),
        Field("own_streams", "f32*", "[W][T][OWN_ROWS]: of the stream, in a wide pass"),
        Field("own_gains", "f32*", "[W][T][OWN_ROWS]: what is added to them, where that is normed"),
        Field("totals", "f32*", "[W][T][TOTAL_ROWS]: sums of rows that are folded round by round"),
        Field("peers", "const i64*", "[devices]: bytes from a word to the same one there, or null"),
        Field("advances", "const Advance*", "[advance_count]"),
        Field("progress_in", "const Progress*", "[advance_count]"),
        Field("progress_out", "Progress*", "[advance_count]"),
        Field("epoch_in", "const Epoch*"),
        Field("epoch_out", "Epoch*"),
        Field("tokens", "const u32*"),
        Field("stops", "const u32*"),
        Field("biases", "const LogitBias*"),
        Field("guides", "const Word*", "[T][1 + MASK_WORDS] pinned: Verdict, mask; or null"),
        Field("events", "Word*", "[EVENTS][2] pinned: token, advance; stamp: number + 1"),
        Field("control", "const u32*", "pinned; not 0: end within one pass"),
        Field("fault", "u32*", "[8] of this device's first wait that starved; 0: none"),
        Field("logits", "f32*", "[rows][V], or null"),
        Field("trace", "u64*", "[TRACE_PASSES][steps][W][3] ns, or null"),
        Field("watchdog_ns", "u64", "patience of a wait"),
        Field("guide_patience_ns", "u64", "how long a pass waits for a row's guide"),
        Field("device", "u32", "number of this one among those that share the model"),
        Field("advance_count", "u32"),
        Field("handover", "u32", "end when a pass would have at most as many rows; 0: never"),
        Field("gains", "const u16*", "[2 N + 1][GAIN_LANES][D] scales of norms, or null"),
    ),
)


# In the order in which the kernel's header declares them.
STRUCTS = (executor_api.DRAW, executor_api.BIAS, ADVANCE, PROGRESS, EPOCH, PARAMS)

ADVANCE_DTYPE, PROGRESS_DTYPE, EPOCH_DTYPE = ADVANCE.dtype, PROGRESS.dtype, EPOCH.dtype
PARAMS_DTYPE, BIAS_DTYPE = PARAMS.dtype, executor_api.BIAS.dtype
