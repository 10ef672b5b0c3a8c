// The plan of a pass as native executors read it. Generated: do not edit. To write it anew:
//   scripts/headers
// What it means is told in docs/plan.md.
//
// A plan is a PlanHeader, PlanModule[modules], PlanPhase[phases] and
// PlanShare[share_tables][workers]. Every worker runs
// all phases in order, each on its own share, and then counts it as finished. A wait of count c
// holds until the workers in question have finished c phases of this pass, that is, until their
// counters reach pass * phases + c; c <= 0 reaches back into the previous pass.
// Rows of a matrix are those of the group's lanes, lane after lane: row r is row r % rows of lane
// group * group_lanes + r / rows. Rows of a head that reads all lanes are numbered once. Of
// experts' matrices rows are one expert's: each has the same share of every expert, of the one
// lane. Rows of kKUp and kVUp are those of one head after the other. Units of kAttend are (lane of
// the group, KV head of the lane, split), the last running fastest; those of kGather are the
// elements (lane of the group, column), those of kNormQk the heads, of Q and then of K, of each
// lane of the group, and those of kDelta key heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/formats_abi.h"

namespace monolane {

constexpr int32_t kPlanSchema = 7;
constexpr int32_t kNoWait = INT32_MIN;
constexpr int32_t kNever = -1;  // the delay of lanes that never exchange
// Rows of a pass at most: of one that decodes, of one that only reads prompts, and of a
// mixture's that only reads prompts.
constexpr int32_t kPlanMaxWidth = 64;
constexpr int32_t kPlanPromptWidth = 96;
constexpr int32_t kPlanMixtureWidth = 256;
constexpr int32_t kPlanMaxMatrices = 6;
constexpr int32_t kPlanRotaries = 2;
// Streams of a token at most, of AltUp.
constexpr int32_t kPlanMaxStreams = 4;
constexpr int32_t kPlanMaxUpdates = 4;
constexpr int32_t kPlanBuffers = 21;
constexpr int32_t kWeightRoles = 130;
// Floats of a cache line: pieces of a worker's scratch begin at multiples.
constexpr int32_t kPlanScratchStep = 16;

enum class PhaseKind : int32_t {
  kEmbed = 0,
  kQkv = 1,
  kAttend = 2,
  kOut = 3,
  kGateUp = 4,
  kDown = 5,
  kGather = 6,
  kHead = 7,
  kChoose = 8,
  kNormQk = 9,
  kRoute = 10,
  kExpertGateUp = 11,
  kExpertDown = 12,
  kLatent = 13,
  kExpand = 14,
  kValues = 15,
  kDeltaIn = 16,
  kDelta = 17,
  kDeltaOut = 18,
  kConvIn = 19,
  kConv = 20,
  kConvOut = 21,
  kPerLayerInputs = 22,
  kPerLayerGate = 23,
  kPerLayerOut = 24,
  kKdaIn = 25,
  kKdaUp = 26,
  kKda = 27,
  kKdaOut = 28,
  kMambaIn = 29,
  kMamba = 30,
  kMambaOut = 31,
  kAhead = 32,
  kLaurelLeft = 33,
  kLaurelRight = 34,
  kLaurelNorm = 35,
  kSparseGateUp = 36,
  kSparseDown = 37,
  kAltupIn = 38,
  kAltupPredict = 39,
  kAltupCorrect = 40,
  kAltupOut = 41,
  kAltupMean = 42,
};

enum class PlanBuffer : int32_t {
  kNone = -1,
  kTokens = 0,
  kQuery = 1,
  kKeyValue = 2,
  kAttention = 3,
  kFirstOutput = 4,
  kHidden = 5,
  kSecondOutput = 6,
  kStream = 7,
  kLogits = 8,
  kUnnormed = 9,
  kRouted = 10,
  kLatents = 11,
  kHeads = 12,
  kQueryGate = 13,
  kMixed = 14,
  kState = 15,
  kThirdOutput = 16,
  kFourthOutput = 17,
  kPerLayer = 18,
  kStates = 19,
  kAltup = 20,
};

enum class WeightRole : int32_t {
  kNone = -1,
  kEmbedding = 0,
  kAttentionNorm = 1,
  kQ = 2,
  kK = 3,
  kV = 4,
  kQBias = 5,
  kKBias = 6,
  kVBias = 7,
  kO = 8,
  kMlpNorm = 9,
  kGate = 10,
  kUp = 11,
  kDown = 12,
  kFinalNorm = 13,
  kHead = 14,
  kQNorm = 15,
  kKNorm = 16,
  kPostAttentionNorm = 17,
  kPostMlpNorm = 18,
  kRouter = 19,
  kExpertGate = 20,
  kExpertUp = 21,
  kExpertDown = 22,
  kSinks = 23,
  kOBias = 24,
  kRouterBias = 25,
  kExpertGateBias = 26,
  kExpertUpBias = 27,
  kExpertDownBias = 28,
  kRouterCorrection = 29,
  kSharedGate = 30,
  kSharedUp = 31,
  kSharedDown = 32,
  kSharedExpertGate = 33,
  kQDown = 34,
  kKvDown = 35,
  kKUp = 36,
  kVUp = 37,
  kDeltaQkv = 38,
  kDeltaZ = 39,
  kDeltaGates = 40,
  kDeltaConv = 41,
  kDeltaDecay = 42,
  kDeltaStep = 43,
  kDeltaNorm = 44,
  kDeltaOut = 45,
  kConvIn = 46,
  kConvTaps = 47,
  kConvOut = 48,
  kKdaDecayDown = 49,
  kKdaDecayUp = 50,
  kKdaGateDown = 51,
  kKdaGateUp = 52,
  kKdaBeta = 53,
  kKdaQConv = 54,
  kKdaKConv = 55,
  kKdaVConv = 56,
  kKdaDecay = 57,
  kKdaStep = 58,
  kKdaNorm = 59,
  kMambaIn = 60,
  kMambaConv = 61,
  kMambaConvBias = 62,
  kMambaDecay = 63,
  kMambaStep = 64,
  kMambaSkip = 65,
  kMambaNorm = 66,
  kMambaOut = 67,
  kPerLayerEmbedding = 68,
  kPerLayerProjection = 69,
  kPerLayerNorm = 70,
  kPerLayerGate = 71,
  kPerLayerOut = 72,
  kLayerScale = 73,
  kRouterNorm = 74,
  kExpertScales = 75,
  kJointNorm = 76,
  kThirdNorm = 77,
  kPostThirdNorm = 78,
  kFourthNorm = 79,
  kPostFourthNorm = 80,
  kAltupNorm = 81,
  kAltupRouter = 82,
  kAltupPredict = 83,
  kAltupCorrect = 84,
  kAltupScale = 85,
  kAltupIn1 = 86,
  kAltupIn2 = 87,
  kAltupIn3 = 88,
  kAltupOut1 = 89,
  kAltupOut2 = 90,
  kAltupOut3 = 91,
  kLaurelLeft = 92,
  kLaurelRight = 93,
  kLaurelNorm = 94,
  kAheadTokenNorm = 95,
  kAheadStateNorm = 96,
  kAheadIn = 97,
  kIndexQ = 98,
  kIndexWeights = 99,
  kIndexK = 100,
  kIndexNorm = 101,
  kIndexNormBias = 102,
  kODown = 103,
  kCompressKv = 104,
  kCompressGate = 105,
  kCompressBias = 106,
  kCompressNorm = 107,
  kIndexKv = 108,
  kIndexGate = 109,
  kIndexBias = 110,
  kIndexKvNorm = 111,
  kExpertTable = 112,
  kHyper1 = 113,
  kHyper1Base = 114,
  kHyper1Scale = 115,
  kHyper2 = 116,
  kHyper2Base = 117,
  kHyper2Scale = 118,
  kHyperOut = 119,
  kHyperOutBase = 120,
  kHyperOutScale = 121,
  kKvUp = 122,
  kDeltaIn = 123,
  kQkv = 124,
  kGateUp = 125,
  kAltupIn = 126,
  kAltupOut = 127,
  kDeltaBeta = 128,
  kDeltaAlpha = 129,
};

enum class PlanHead : int32_t {
  kVocabParallel = 0,
  kMean = 1,
  kSum = 2,
  kConcat = 3,
};

enum class RotaryStyle : int32_t {
  kInterleaved = 0,
  kHalf = 1,
};

enum class PlanRotary : int32_t {
  kNone = -1,
  kMain = 0,
  kLocal = 1,
};

enum class QkNorm : int32_t {
  kNone = 0,
  kHead = 1,
  kAll = 2,
};

enum class GateActivation : int32_t {
  kSilu = 0,
  kGeluTanh = 1,
  kClampedSwiglu = 2,
  kReluSquared = 3,
};

enum class ExpertScores : int32_t {
  kSoftmax = 0,
  kSigmoid = 1,
  kSqrtsoftplus = 2,
};

// Where a layer's modules put their outputs, in their order.
constexpr PlanBuffer kPlanOutputs[] = {PlanBuffer::kFirstOutput, PlanBuffer::kSecondOutput,
                                       PlanBuffer::kThirdOutput, PlanBuffer::kFourthOutput};

// Whether a layer has one for each expert.
constexpr bool of_each(WeightRole role) {
  switch (role) {
    case WeightRole::kExpertGate:
    case WeightRole::kExpertUp:
    case WeightRole::kExpertDown:
      return true;
    default:
      return false;
  }
}

// X(member, name) for each kind of phase.
#define MONOLANE_PHASE_KINDS(X)        \
  X(kEmbed, embed)                     \
  X(kQkv, qkv)                         \
  X(kAttend, attend)                   \
  X(kOut, out)                         \
  X(kGateUp, gate_up)                  \
  X(kDown, down)                       \
  X(kGather, gather)                   \
  X(kHead, head)                       \
  X(kChoose, choose)                   \
  X(kNormQk, norm_qk)                  \
  X(kRoute, route)                     \
  X(kExpertGateUp, expert_gate_up)     \
  X(kExpertDown, expert_down)          \
  X(kLatent, latent)                   \
  X(kExpand, expand)                   \
  X(kValues, values)                   \
  X(kDeltaIn, delta_in)                \
  X(kDelta, delta)                     \
  X(kDeltaOut, delta_out)              \
  X(kConvIn, conv_in)                  \
  X(kConv, conv)                       \
  X(kConvOut, conv_out)                \
  X(kPerLayerInputs, per_layer_inputs) \
  X(kPerLayerGate, per_layer_gate)     \
  X(kPerLayerOut, per_layer_out)       \
  X(kKdaIn, kda_in)                    \
  X(kKdaUp, kda_up)                    \
  X(kKda, kda)                         \
  X(kKdaOut, kda_out)                  \
  X(kMambaIn, mamba_in)                \
  X(kMamba, mamba)                     \
  X(kMambaOut, mamba_out)              \
  X(kAhead, ahead)                     \
  X(kLaurelLeft, laurel_left)          \
  X(kLaurelRight, laurel_right)        \
  X(kLaurelNorm, laurel_norm)          \
  X(kSparseGateUp, sparse_gate_up)     \
  X(kSparseDown, sparse_down)          \
  X(kAltupIn, altup_in)                \
  X(kAltupPredict, altup_predict)      \
  X(kAltupCorrect, altup_correct)      \
  X(kAltupOut, altup_out)              \
  X(kAltupMean, altup_mean)

struct PlanShare {
  int32_t begin;  // first row
  int32_t end;    // one past the last; begin if there are none
};
static_assert(sizeof(PlanShare) == 8);
static_assert(offsetof(PlanShare, begin) == 0);
static_assert(offsetof(PlanShare, end) == 4);

struct PlanUpdate {
  int32_t module;      // whose outputs join the streams; -1 in unused entries
  int32_t delay;       // kNever, 0 (now) or layers
  int32_t own_slot;    // ring slot of the own lane's outputs
  int32_t other_slot;  // ring slot of the other lanes' outputs
};
static_assert(sizeof(PlanUpdate) == 16);
static_assert(offsetof(PlanUpdate, module) == 0);
static_assert(offsetof(PlanUpdate, delay) == 4);
static_assert(offsetof(PlanUpdate, own_slot) == 8);
static_assert(offsetof(PlanUpdate, other_slot) == 12);

struct PlanMatrix {
  WeightRole role;  // kNone in unused entries
  int32_t rows;     // of one lane
  int32_t columns;  // inputs of a row
  int32_t share;    // table of shares
};
static_assert(sizeof(PlanMatrix) == 16);
static_assert(offsetof(PlanMatrix, role) == 0);
static_assert(offsetof(PlanMatrix, rows) == 4);
static_assert(offsetof(PlanMatrix, columns) == 8);
static_assert(offsetof(PlanMatrix, share) == 12);

struct PlanPhase {
  PhaseKind kind;          // what to do
  int32_t layer;           // -1 outside the layers
  int32_t module;          // of which it is a phase; -1 outside the layers
  int32_t wait_group;      // kNoWait, or what all of the own group must have finished
  int32_t wait_all;        // kNoWait, or what all workers must have finished
  int32_t units;           // table of shares of work that is not rows; -1: none
  int32_t write_slot;      // ring slot that is written, of a module's last phase; else -1
  int32_t num_updates;     // used entries of `updates`
  PlanUpdate updates[4];   // what joins the streams first, in order
  int32_t num_matrices;    // used entries of `matrices`
  PlanMatrix matrices[6];  // used from the front
};
static_assert(sizeof(PlanPhase) == 196);
static_assert(offsetof(PlanPhase, kind) == 0);
static_assert(offsetof(PlanPhase, layer) == 4);
static_assert(offsetof(PlanPhase, module) == 8);
static_assert(offsetof(PlanPhase, wait_group) == 12);
static_assert(offsetof(PlanPhase, wait_all) == 16);
static_assert(offsetof(PlanPhase, units) == 20);
static_assert(offsetof(PlanPhase, write_slot) == 24);
static_assert(offsetof(PlanPhase, num_updates) == 28);
static_assert(offsetof(PlanPhase, updates) == 32);
static_assert(offsetof(PlanPhase, num_matrices) == 96);
static_assert(offsetof(PlanPhase, matrices) == 100);

struct PlanState {
  int32_t parts;    // each of one worker; 0: it keeps no state
  int32_t numbers;  // of a part's state; 0: it has inputs alone
  int32_t inputs;   // numbers of a token that its step in a part takes
  int32_t before;   // earlier tokens whose inputs a step reads
};
static_assert(sizeof(PlanState) == 16);
static_assert(offsetof(PlanState, parts) == 0);
static_assert(offsetof(PlanState, numbers) == 4);
static_assert(offsetof(PlanState, inputs) == 8);
static_assert(offsetof(PlanState, before) == 12);

struct PlanAhead {
  int32_t width;  // D, of a state
};
static_assert(sizeof(PlanAhead) == 4);
static_assert(offsetof(PlanAhead, width) == 0);

struct PlanAttention {
  int32_t heads;                // H, over all lanes
  int32_t kv_heads;             // K, over all lanes; 1 where latents are cached
  int32_t head_dim;             // h, of a cached key and a query that meets it; of latents R + r
  int32_t splits;               // S: parts into which the keys of a KV head are cut
  int32_t keys_of;              // the layer whose cached keys and values it reads; -1: its own
  int32_t window;               // keys visible to a query, itself included; 0: all
  int32_t chunked;              // 1: those of its own chunk of so many positions, up to it
  PlanRotary rotary;            // what turns queries and keys; kNone: nothing
  int32_t gate;                 // 1: of each head Q has rows of the query, then of a gate
  QkNorm qk_norm;               // what of Q and K is normed
  int32_t norm_turned;          // 1: heads are normed behind rotary, else before
  int32_t qk_unscaled;          // 1: the norm of Q and K has no scales
  int32_t value_norm;           // 1: each head's values are normed, without scales
  int32_t key_is_value;         // 1: values are the keys, neither normed nor turned
  int32_t at_once;              // tokens whose attention to a chunk of keys is asked for at once
  float scale;                  // of the scores
  float cap;                    // c: scores, scaled, become c tanh(score / c); 0: they stay
  float temperature;            // 0, or queries times 1 + it ln(1 + position / context)
  int32_t temperature_context;  // positions; the quotient is rounded down
  int32_t temperature_ahead;    // added to a position first
};
static_assert(sizeof(PlanAttention) == 80);
static_assert(offsetof(PlanAttention, heads) == 0);
static_assert(offsetof(PlanAttention, kv_heads) == 4);
static_assert(offsetof(PlanAttention, head_dim) == 8);
static_assert(offsetof(PlanAttention, splits) == 12);
static_assert(offsetof(PlanAttention, keys_of) == 16);
static_assert(offsetof(PlanAttention, window) == 20);
static_assert(offsetof(PlanAttention, chunked) == 24);
static_assert(offsetof(PlanAttention, rotary) == 28);
static_assert(offsetof(PlanAttention, gate) == 32);
static_assert(offsetof(PlanAttention, qk_norm) == 36);
static_assert(offsetof(PlanAttention, norm_turned) == 40);
static_assert(offsetof(PlanAttention, qk_unscaled) == 44);
static_assert(offsetof(PlanAttention, value_norm) == 48);
static_assert(offsetof(PlanAttention, key_is_value) == 52);
static_assert(offsetof(PlanAttention, at_once) == 56);
static_assert(offsetof(PlanAttention, scale) == 60);
static_assert(offsetof(PlanAttention, cap) == 64);
static_assert(offsetof(PlanAttention, temperature) == 68);
static_assert(offsetof(PlanAttention, temperature_context) == 72);
static_assert(offsetof(PlanAttention, temperature_ahead) == 76);

struct PlanLatent {
  int32_t rank;        // R: what of a cached key is its value; 0: values are cached
  int32_t query_rank;  // Q: what queries are made of; 0: of the stream
  float norm_eps;      // of the norms of latents
};
static_assert(sizeof(PlanLatent) == 12);
static_assert(offsetof(PlanLatent, rank) == 0);
static_assert(offsetof(PlanLatent, query_rank) == 4);
static_assert(offsetof(PlanLatent, norm_eps) == 8);

struct PlanConv {
  int32_t channels;  // C
  int32_t taps;      // K: tokens over which a channel is summed
  int32_t parts;     // into which channels are cut, each of one worker
};
static_assert(sizeof(PlanConv) == 12);
static_assert(offsetof(PlanConv, channels) == 0);
static_assert(offsetof(PlanConv, taps) == 4);
static_assert(offsetof(PlanConv, parts) == 8);

struct PlanDelta {
  int32_t key_heads;    // G
  int32_t value_heads;  // U
  int32_t key;          // d_k: width of its queries and keys
  int32_t value;        // d_v: width of its values
  int32_t kernel;       // C: tokens over which its channels are summed
  int32_t tiled;        // 1: value heads lie first of each key head, then second, ...
};
static_assert(sizeof(PlanDelta) == 24);
static_assert(offsetof(PlanDelta, key_heads) == 0);
static_assert(offsetof(PlanDelta, value_heads) == 4);
static_assert(offsetof(PlanDelta, key) == 8);
static_assert(offsetof(PlanDelta, value) == 12);
static_assert(offsetof(PlanDelta, kernel) == 16);
static_assert(offsetof(PlanDelta, tiled) == 20);

struct PlanExperts {
  int32_t count;              // E
  int32_t chosen;             // k: experts of a token
  int32_t inner;              // X: inner width of an expert
  int32_t shared;             // Xs: inner width of what all tokens share; 0: nothing
  GateActivation activation;  // of the gate
  ExpertScores scores;        // what experts are chosen and weighted by
  int32_t normalised;         // 1: the weights of the chosen add up to 1
  int32_t groups;             // of consecutive experts
  int32_t chosen_groups;      // of which alone a token's experts are chosen
  int32_t group_best;         // experts whose scores, added up, count for their group
  float scale;                // of the weights of the chosen
  int32_t router_norm;        // 1: the router reads by a norm of its own
  int32_t weigh_inputs;       // 1: weights are of what experts read, not of what they say
};
static_assert(sizeof(PlanExperts) == 52);
static_assert(offsetof(PlanExperts, count) == 0);
static_assert(offsetof(PlanExperts, chosen) == 4);
static_assert(offsetof(PlanExperts, inner) == 8);
static_assert(offsetof(PlanExperts, shared) == 12);
static_assert(offsetof(PlanExperts, activation) == 16);
static_assert(offsetof(PlanExperts, scores) == 20);
static_assert(offsetof(PlanExperts, normalised) == 24);
static_assert(offsetof(PlanExperts, groups) == 28);
static_assert(offsetof(PlanExperts, chosen_groups) == 32);
static_assert(offsetof(PlanExperts, group_best) == 36);
static_assert(offsetof(PlanExperts, scale) == 40);
static_assert(offsetof(PlanExperts, router_norm) == 44);
static_assert(offsetof(PlanExperts, weigh_inputs) == 48);

struct PlanKda {
  int32_t heads;   // U
  int32_t width;   // d: of a head's query, key and value
  int32_t kernel;  // C: tokens over which its channels are summed
};
static_assert(sizeof(PlanKda) == 12);
static_assert(offsetof(PlanKda, heads) == 0);
static_assert(offsetof(PlanKda, width) == 4);
static_assert(offsetof(PlanKda, kernel) == 8);

struct PlanLaurel {
  int32_t rank;  // R
};
static_assert(sizeof(PlanLaurel) == 4);
static_assert(offsetof(PlanLaurel, rank) == 0);

struct PlanMamba {
  int32_t heads;      // H
  int32_t head;       // p: width of a head
  int32_t groups;     // G: of consecutive heads, which share b and c, and are normed by one
  int32_t state;      // n: width of b and c
  int32_t kernel;     // C: tokens over which its channels are summed
  int32_t together;   // heads of a part, all of one group
  int32_t normed;     // 1: what the last matrix reads is normed
  float gate_scale;   // of z
  float input_scale;  // of u
  float write_scale;  // of b
  float read_scale;   // of c
  float step_scale;   // of t
};
static_assert(sizeof(PlanMamba) == 48);
static_assert(offsetof(PlanMamba, heads) == 0);
static_assert(offsetof(PlanMamba, head) == 4);
static_assert(offsetof(PlanMamba, groups) == 8);
static_assert(offsetof(PlanMamba, state) == 12);
static_assert(offsetof(PlanMamba, kernel) == 16);
static_assert(offsetof(PlanMamba, together) == 20);
static_assert(offsetof(PlanMamba, normed) == 24);
static_assert(offsetof(PlanMamba, gate_scale) == 28);
static_assert(offsetof(PlanMamba, input_scale) == 32);
static_assert(offsetof(PlanMamba, write_scale) == 36);
static_assert(offsetof(PlanMamba, read_scale) == 40);
static_assert(offsetof(PlanMamba, step_scale) == 44);

struct PlanMlp {
  int32_t inner;              // F, over all lanes
  GateActivation activation;  // of the gate
  float gate_scale;           // of what the gate's matrix makes
};
static_assert(sizeof(PlanMlp) == 12);
static_assert(offsetof(PlanMlp, inner) == 0);
static_assert(offsetof(PlanMlp, activation) == 4);
static_assert(offsetof(PlanMlp, gate_scale) == 8);

struct PlanPerLayer {
  int32_t inner;              // P: numbers of a token for one layer
  int32_t layers;             // N: layers that the table has numbers for
  int32_t rows;               // of the table; tokens beyond read the first
  GateActivation activation;  // of the gate
};
static_assert(sizeof(PlanPerLayer) == 16);
static_assert(offsetof(PlanPerLayer, inner) == 0);
static_assert(offsetof(PlanPerLayer, layers) == 4);
static_assert(offsetof(PlanPerLayer, rows) == 8);
static_assert(offsetof(PlanPerLayer, activation) == 12);

struct PlanSparseMlp {
  int32_t inner;              // F
  float deviations;           // z: by so many a number must be above the mean
  GateActivation activation;  // of the gate
};
static_assert(sizeof(PlanSparseMlp) == 12);
static_assert(offsetof(PlanSparseMlp, inner) == 0);
static_assert(offsetof(PlanSparseMlp, deviations) == 4);
static_assert(offsetof(PlanSparseMlp, activation) == 8);

struct PlanModule {
  int32_t layer;            // whose module
  PlanBuffer output;        // where its outputs go, which join the streams
  WeightRole norm;          // scale of the norm of what it reads; kNone: none
  WeightRole post_norm;     // scale of that of what a stream gains; kNone: none
  int32_t held;             // 1: what it says joins the streams with what the next module says
  WeightRole joint_norm;    // scale of the norm of these two's sum; kNone: none
  int32_t replaces;         // 1: the streams begin anew with what it says
  float scale;              // of what a stream gains from it, behind the norms
  WeightRole stream_scale;  // of the streams behind it; kNone: none
  float stream_factor;      // of the streams behind it
  int32_t aside;            // 1: what it says joins all streams of AltUp but the first
  int32_t scratch;          // floats that a worker needs of its own for its phases
  PlanState state;          // what a sequence keeps of it in a fixed size
  PlanAhead ahead;
  PlanAttention attention;
  PlanLatent latent;
  PlanConv conv;
  PlanDelta delta;
  PlanExperts experts;
  PlanKda kda;
  PlanLaurel laurel;
  PlanMamba mamba;
  PlanMlp mlp;
  PlanPerLayer per_layer;
  PlanSparseMlp sparse_mlp;
};
static_assert(sizeof(PlanModule) == 352);
static_assert(offsetof(PlanModule, layer) == 0);
static_assert(offsetof(PlanModule, output) == 4);
static_assert(offsetof(PlanModule, norm) == 8);
static_assert(offsetof(PlanModule, post_norm) == 12);
static_assert(offsetof(PlanModule, held) == 16);
static_assert(offsetof(PlanModule, joint_norm) == 20);
static_assert(offsetof(PlanModule, replaces) == 24);
static_assert(offsetof(PlanModule, scale) == 28);
static_assert(offsetof(PlanModule, stream_scale) == 32);
static_assert(offsetof(PlanModule, stream_factor) == 36);
static_assert(offsetof(PlanModule, aside) == 40);
static_assert(offsetof(PlanModule, scratch) == 44);
static_assert(offsetof(PlanModule, state) == 48);
static_assert(offsetof(PlanModule, ahead) == 64);
static_assert(offsetof(PlanModule, attention) == 68);
static_assert(offsetof(PlanModule, latent) == 148);
static_assert(offsetof(PlanModule, conv) == 160);
static_assert(offsetof(PlanModule, delta) == 172);
static_assert(offsetof(PlanModule, experts) == 196);
static_assert(offsetof(PlanModule, kda) == 248);
static_assert(offsetof(PlanModule, laurel) == 260);
static_assert(offsetof(PlanModule, mamba) == 264);
static_assert(offsetof(PlanModule, mlp) == 312);
static_assert(offsetof(PlanModule, per_layer) == 324);
static_assert(offsetof(PlanModule, sparse_mlp) == 340);

struct PlanRotaryTable {
  int32_t dim;        // numbers of a head that turn; of a latent the last, else the first
  RotaryStyle style;  // which of them turn together
  float amplitude;    // of cosine and sine
};
static_assert(sizeof(PlanRotaryTable) == 12);
static_assert(offsetof(PlanRotaryTable, dim) == 0);
static_assert(offsetof(PlanRotaryTable, style) == 4);
static_assert(offsetof(PlanRotaryTable, amplitude) == 8);

struct PlanHeader {
  int32_t schema;               // kPlanSchema
  int32_t phases;               // P: length of the array of phases
  int32_t modules;              // M: length of the array of modules
  int32_t share_tables;         // number of tables of shares, each of `workers` entries
  int32_t workers;              // W, of all devices
  int32_t groups;               // G; group = worker / group_workers
  int32_t group_workers;        // W / G
  int32_t group_lanes;          // L / G; the group's lanes begin at group * group_lanes
  int32_t lanes;                // L
  int32_t layers;               // N
  int32_t hidden;               // D
  int32_t streams;              // A: of a token; several with AltUp, else 1
  int32_t vocab;                // V
  int32_t max_width;            // T: token positions of a pass at most
  int32_t context;              // tokens that a sequence may hold
  int32_t chunk;                // keys: split s takes the chunks c with c % S == s
  Format format;                // of the matrices
  PlanHead head;                // how the lanes' streams become logits
  int32_t norm_per_lane;        // 1: norm scales are [L, D]; 0: [1, D]
  int32_t final_norm_per_lane;  // the same of the last norm
  int32_t leader;               // 1: worker 0 chooses tokens; 0: every worker does, alike
  float norm_eps;               // of every norm
  int32_t norm_centred;         // 1: norms of streams take off the mean first
  float embedding_scale;        // of embedded tokens
  float logit_scale;            // of logits
  float logit_cap;              // c: logits become c tanh(logit / c); 0: they do not
  PlanRotaryTable rotaries[2];  // by PlanRotary
  float read[64];               // by rows: weights that a pass reads, beside those of one
  int32_t slots[21];            // of each buffer: rings and caches have several
  int64_t sizes[21];            // of each buffer: floats of a slot, at most
};
static_assert(sizeof(PlanHeader) == 640);
static_assert(offsetof(PlanHeader, schema) == 0);
static_assert(offsetof(PlanHeader, phases) == 4);
static_assert(offsetof(PlanHeader, modules) == 8);
static_assert(offsetof(PlanHeader, share_tables) == 12);
static_assert(offsetof(PlanHeader, workers) == 16);
static_assert(offsetof(PlanHeader, groups) == 20);
static_assert(offsetof(PlanHeader, group_workers) == 24);
static_assert(offsetof(PlanHeader, group_lanes) == 28);
static_assert(offsetof(PlanHeader, lanes) == 32);
static_assert(offsetof(PlanHeader, layers) == 36);
static_assert(offsetof(PlanHeader, hidden) == 40);
static_assert(offsetof(PlanHeader, streams) == 44);
static_assert(offsetof(PlanHeader, vocab) == 48);
static_assert(offsetof(PlanHeader, max_width) == 52);
static_assert(offsetof(PlanHeader, context) == 56);
static_assert(offsetof(PlanHeader, chunk) == 60);
static_assert(offsetof(PlanHeader, format) == 64);
static_assert(offsetof(PlanHeader, head) == 68);
static_assert(offsetof(PlanHeader, norm_per_lane) == 72);
static_assert(offsetof(PlanHeader, final_norm_per_lane) == 76);
static_assert(offsetof(PlanHeader, leader) == 80);
static_assert(offsetof(PlanHeader, norm_eps) == 84);
static_assert(offsetof(PlanHeader, norm_centred) == 88);
static_assert(offsetof(PlanHeader, embedding_scale) == 92);
static_assert(offsetof(PlanHeader, logit_scale) == 96);
static_assert(offsetof(PlanHeader, logit_cap) == 100);
static_assert(offsetof(PlanHeader, rotaries) == 104);
static_assert(offsetof(PlanHeader, read) == 128);
static_assert(offsetof(PlanHeader, slots) == 384);
static_assert(offsetof(PlanHeader, sizes) == 472);

}  // namespace monolane
