// The plan of a pass as native executors read it. Generated: do not edit. To write it anew:
//   scripts/headers
// What it means is told in docs/plan.md.
//
// A plan is a PlanHeader, PlanPhase[phases] and PlanShare[share_tables][workers]. Every worker runs
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

constexpr int32_t kPlanSchema = 4;
constexpr int32_t kNoWait = INT32_MIN;
constexpr int32_t kNever = -1;  // the delay of lanes that never exchange
// Rows of a pass at most: of one that decodes, of one that only reads prompts, and of a
// mixture's that only reads prompts.
constexpr int32_t kPlanMaxWidth = 64;
constexpr int32_t kPlanPromptWidth = 96;
constexpr int32_t kPlanMixtureWidth = 256;
constexpr int32_t kPlanMaxMatrices = 4;
constexpr int32_t kPlanRotaries = 2;

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
};

enum class PlanBuffer : int32_t {
  kNone = -1,
  kTokens = 0,
  kQuery = 1,
  kKeyValue = 2,
  kAttention = 3,
  kAttentionOutput = 4,
  kHidden = 5,
  kMlpOutput = 6,
  kStream = 7,
  kLogits = 8,
  kUnnormed = 9,
  kRouted = 10,
  kLatents = 11,
  kHeads = 12,
  kQueryGate = 13,
  kMixed = 14,
  kState = 15,
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
  kKvUp = 46,
  kDeltaIn = 47,
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
};

enum class ExpertScores : int32_t {
  kSoftmax = 0,
  kSigmoid = 1,
};

// X(member, name) for each kind of phase.
#define MONOLANE_PHASE_KINDS(X)    \
  X(kEmbed, embed)                 \
  X(kQkv, qkv)                     \
  X(kAttend, attend)               \
  X(kOut, out)                     \
  X(kGateUp, gate_up)              \
  X(kDown, down)                   \
  X(kGather, gather)               \
  X(kHead, head)                   \
  X(kChoose, choose)               \
  X(kNormQk, norm_qk)              \
  X(kRoute, route)                 \
  X(kExpertGateUp, expert_gate_up) \
  X(kExpertDown, expert_down)      \
  X(kLatent, latent)               \
  X(kExpand, expand)               \
  X(kValues, values)               \
  X(kDeltaIn, delta_in)            \
  X(kDelta, delta)                 \
  X(kDeltaOut, delta_out)

struct PlanShare {
  int32_t begin;  // first row
  int32_t end;    // one past the last; begin if there are none
};
static_assert(sizeof(PlanShare) == 8);
static_assert(offsetof(PlanShare, begin) == 0);
static_assert(offsetof(PlanShare, end) == 4);

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
  PhaseKind kind;             // what to do
  int32_t layer;              // -1 outside the layers
  int32_t wait_group;         // kNoWait, or what all of the own group must have finished
  int32_t wait_all;           // kNoWait, or what all workers must have finished
  int32_t units;              // table of shares of work that is not rows; -1: none
  PlanBuffer update;          // kNone, kAttentionOutput or kMlpOutput
  int32_t update_layer;       // whose module; -1: no update
  int32_t update_delay;       // kNever, 0 (now) or layers; kNever if there is no update
  int32_t update_own_slot;    // ring slot of the own lane's outputs; -1: no update
  int32_t update_other_slot;  // ring slot of the other lanes' outputs; -1: no update
  int32_t write_slot;         // ring slot that is written, of kOut, kDown or kExpertDown; else -1
  int32_t window;             // keys visible to a query in this layer, itself included; 0: all
  PlanRotary rotary;          // what turns this layer's queries and keys; kNone: nothing
  int32_t num_matrices;       // used entries of `matrices`
  PlanMatrix matrices[4];     // used from the front
};
static_assert(sizeof(PlanPhase) == 120);
static_assert(offsetof(PlanPhase, kind) == 0);
static_assert(offsetof(PlanPhase, layer) == 4);
static_assert(offsetof(PlanPhase, wait_group) == 8);
static_assert(offsetof(PlanPhase, wait_all) == 12);
static_assert(offsetof(PlanPhase, units) == 16);
static_assert(offsetof(PlanPhase, update) == 20);
static_assert(offsetof(PlanPhase, update_layer) == 24);
static_assert(offsetof(PlanPhase, update_delay) == 28);
static_assert(offsetof(PlanPhase, update_own_slot) == 32);
static_assert(offsetof(PlanPhase, update_other_slot) == 36);
static_assert(offsetof(PlanPhase, write_slot) == 40);
static_assert(offsetof(PlanPhase, window) == 44);
static_assert(offsetof(PlanPhase, rotary) == 48);
static_assert(offsetof(PlanPhase, num_matrices) == 52);
static_assert(offsetof(PlanPhase, matrices) == 56);

struct PlanHeader {
  int32_t schema;               // kPlanSchema
  int32_t phases;               // P: length of the array of phases
  int32_t share_tables;         // number of tables of shares, each of `workers` entries
  int32_t workers;              // W, of all devices
  int32_t groups;               // G; group = worker / group_workers
  int32_t group_workers;        // W / G
  int32_t group_lanes;          // L / G; the group's lanes begin at group * group_lanes
  int32_t lanes;                // L
  int32_t layers;               // N
  int32_t hidden;               // D
  int32_t intermediate;         // F, over all lanes
  int32_t hidden_columns;       // of kHidden: F/L or k*X + Xs, whichever is more
  int32_t experts;              // E of a layer that is a mixture; 0: there are no mixtures
  int32_t chosen;               // k: experts of a token
  int32_t expert_inner;         // X: inner width of an expert
  int32_t chosen_normalised;    // 1: the weights of the chosen add up to 1
  ExpertScores expert_scores;   // what experts are chosen and weighted by
  int32_t expert_groups;        // of consecutive experts
  int32_t chosen_groups;        // of which alone a token's experts are chosen
  int32_t group_best;           // experts whose scores, added up, count for their group
  float expert_scale;           // of the weights of the chosen
  int32_t shared_inner;         // Xs: inner width of what all tokens share; 0: nothing
  int32_t delta_key_heads;      // G of a gated delta rule; 0: no layer has one
  int32_t delta_value_heads;    // U
  int32_t delta_key;            // d_k: width of its queries and keys
  int32_t delta_value;          // d_v: width of its values
  int32_t delta_kernel;         // C: tokens over which its channels are summed
  int32_t heads;                // H, over all lanes
  int32_t kv_heads;             // K, over all lanes; 1 where latents are cached
  int32_t head_dim;             // h, of a cached key and a query that meets it; of latents R + r
  int32_t rotary_dim;           // of these those that turn: of a latent the last, else the first
  int32_t latent;               // R: what of a cached key is its value; 0: values are cached
  int32_t query_latent;         // Q: what queries are made of; 0: of the stream
  float latent_eps;             // of the norms of latents
  int32_t vocab;                // V
  int32_t max_width;            // T: token positions of a pass at most
  int32_t context;              // tokens that a sequence may hold
  int32_t attention_slots;      // ring slots of kAttentionOutput
  int32_t mlp_slots;            // ring slots of kMlpOutput
  int32_t splits;               // S: parts into which the keys of a KV head are cut
  int32_t chunk;                // keys: split s takes the chunks c with c % S == s
  Format format;                // of the matrices
  PlanHead head;                // how the lanes' streams become logits
  RotaryStyle rotary;           // which elements of a head turn together
  int32_t norm_per_lane;        // 1: norm scales are [L, D]; 0: [1, D]
  int32_t final_norm_per_lane;  // the same of the last norm
  int32_t qkv_bias;             // 1: Q, K and V have biases
  int32_t attention_gate;       // 1: of each head Q has rows of the query, then of a gate
  QkNorm qk_norm;               // what of Q and K is normed, before rotary
  int32_t norm_before;          // 1: what a module reads is normed
  int32_t norm_after;           // 1: what a stream gains from a module, reduced, is normed
  GateActivation activation;    // of the gate
  int32_t leader;               // 1: worker 0 chooses tokens; 0: every worker does, alike
  float norm_eps;               // of every norm
  float embedding_scale;        // of embedded tokens
  float query_scale;            // of the scores
  float amplitude[2];           // of cosine and sine, by PlanRotary
};
static_assert(sizeof(PlanHeader) == 232);
static_assert(offsetof(PlanHeader, schema) == 0);
static_assert(offsetof(PlanHeader, phases) == 4);
static_assert(offsetof(PlanHeader, share_tables) == 8);
static_assert(offsetof(PlanHeader, workers) == 12);
static_assert(offsetof(PlanHeader, groups) == 16);
static_assert(offsetof(PlanHeader, group_workers) == 20);
static_assert(offsetof(PlanHeader, group_lanes) == 24);
static_assert(offsetof(PlanHeader, lanes) == 28);
static_assert(offsetof(PlanHeader, layers) == 32);
static_assert(offsetof(PlanHeader, hidden) == 36);
static_assert(offsetof(PlanHeader, intermediate) == 40);
static_assert(offsetof(PlanHeader, hidden_columns) == 44);
static_assert(offsetof(PlanHeader, experts) == 48);
static_assert(offsetof(PlanHeader, chosen) == 52);
static_assert(offsetof(PlanHeader, expert_inner) == 56);
static_assert(offsetof(PlanHeader, chosen_normalised) == 60);
static_assert(offsetof(PlanHeader, expert_scores) == 64);
static_assert(offsetof(PlanHeader, expert_groups) == 68);
static_assert(offsetof(PlanHeader, chosen_groups) == 72);
static_assert(offsetof(PlanHeader, group_best) == 76);
static_assert(offsetof(PlanHeader, expert_scale) == 80);
static_assert(offsetof(PlanHeader, shared_inner) == 84);
static_assert(offsetof(PlanHeader, delta_key_heads) == 88);
static_assert(offsetof(PlanHeader, delta_value_heads) == 92);
static_assert(offsetof(PlanHeader, delta_key) == 96);
static_assert(offsetof(PlanHeader, delta_value) == 100);
static_assert(offsetof(PlanHeader, delta_kernel) == 104);
static_assert(offsetof(PlanHeader, heads) == 108);
static_assert(offsetof(PlanHeader, kv_heads) == 112);
static_assert(offsetof(PlanHeader, head_dim) == 116);
static_assert(offsetof(PlanHeader, rotary_dim) == 120);
static_assert(offsetof(PlanHeader, latent) == 124);
static_assert(offsetof(PlanHeader, query_latent) == 128);
static_assert(offsetof(PlanHeader, latent_eps) == 132);
static_assert(offsetof(PlanHeader, vocab) == 136);
static_assert(offsetof(PlanHeader, max_width) == 140);
static_assert(offsetof(PlanHeader, context) == 144);
static_assert(offsetof(PlanHeader, attention_slots) == 148);
static_assert(offsetof(PlanHeader, mlp_slots) == 152);
static_assert(offsetof(PlanHeader, splits) == 156);
static_assert(offsetof(PlanHeader, chunk) == 160);
static_assert(offsetof(PlanHeader, format) == 164);
static_assert(offsetof(PlanHeader, head) == 168);
static_assert(offsetof(PlanHeader, rotary) == 172);
static_assert(offsetof(PlanHeader, norm_per_lane) == 176);
static_assert(offsetof(PlanHeader, final_norm_per_lane) == 180);
static_assert(offsetof(PlanHeader, qkv_bias) == 184);
static_assert(offsetof(PlanHeader, attention_gate) == 188);
static_assert(offsetof(PlanHeader, qk_norm) == 192);
static_assert(offsetof(PlanHeader, norm_before) == 196);
static_assert(offsetof(PlanHeader, norm_after) == 200);
static_assert(offsetof(PlanHeader, activation) == 204);
static_assert(offsetof(PlanHeader, leader) == 208);
static_assert(offsetof(PlanHeader, norm_eps) == 212);
static_assert(offsetof(PlanHeader, embedding_scale) == 216);
static_assert(offsetof(PlanHeader, query_scale) == 220);
static_assert(offsetof(PlanHeader, amplitude) == 224);

}  // namespace monolane
