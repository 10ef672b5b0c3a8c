// The executor as Python sees it. Every argument is checked here, so that the core below may trust
// what it is given; weights stay alive as long as an executor reads them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bind/assistant_weights.h"
#include "bind/check_weights.h"
#include "bind/drafter_weights.h"
#include "bind/weight_table.h"
#include "run/executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace monolane {
namespace {

using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Parts = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = Table;  // [T, D], beside tokens
using Rows = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OwnRows = nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OwnBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<float> list_of(const std::optional<States>& states) {
  return states ? std::vector<float>(states->data(), states->data() + states->size())
                : std::vector<float>();
}

template <typename T>
std::vector<T> structs(const nb::bytes& bytes, const char* name) {
  if (bytes.size() % sizeof(T) != 0) {
    refuse(std::string(name) + ": the plan was laid out for another version of the core");
  }
  std::vector<T> found(bytes.size() / sizeof(T));
  if (!found.empty()) {
    std::memcpy(static_cast<void*>(found.data()), bytes.c_str(), bytes.size());
  }
  return found;
}

Plan plan_of(const nb::bytes& header, const nb::bytes& modules, const nb::bytes& phases,
             const nb::bytes& shares) {
  const std::vector<PlanHeader> headers = structs<PlanHeader>(header, "header");
  if (headers.size() != 1) refuse("header: expected one PlanHeader");
  return {headers[0], structs<PlanModule>(modules, "modules"), structs<PlanPhase>(phases, "phases"),
          structs<PlanShare>(shares, "shares")};
}

Setup setup_of(const nb::bytes& record) {
  const std::vector<Setup> setups = structs<Setup>(record, "setup");
  if (setups.size() != 1) refuse("setup: expected one Setup");
  const Setup& setup = setups[0];
  if (setup.max_sequences < 1) {
    refuse("max_sequences: expected 1 or more, got " + std::to_string(setup.max_sequences));
  }
  return setup;
}

// Structs as bytes, which NumPy views as records: a copy, so that nothing dangles.
template <typename T>
OwnBytes records_of(const std::vector<T>& found) {
  const size_t bytes = found.size() * sizeof(T);
  auto* copy = new uint8_t[bytes];
  if (!found.empty()) std::memcpy(copy, found.data(), bytes);
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return OwnBytes(copy, {bytes}, owner);
}

// Part of a list that all advances share.
template <typename T>
std::vector<T> part_of(const char* name, const auto& list, uint32_t begin, uint32_t count) {
  if (begin > list.size() || count > list.size() - begin) {
    refuse(std::string(name) + ": expected a part of the list, got one beyond its end");
  }
  return {list.data() + begin, list.data() + begin + count};
}

DraftBy drafter_of(uint32_t drafter) {
  if (drafter >= kDrafters) refuse("drafter: expected one of monolane.executor_api.DRAFTERS");
  return static_cast<DraftBy>(drafter);
}

std::vector<Advance> advances_of(const nb::bytes& records, const Words& tokens, const Words& stops,
                                 const nb::bytes& biases, const Words& history,
                                 const Words& earlier) {
  const std::vector<LogitBias> all_biases = structs<LogitBias>(biases, "biases");
  std::vector<Advance> found;
  for (const AdvanceRecord& r : structs<AdvanceRecord>(records, "advances")) {
    found.push_back(
        {.slot = static_cast<int32_t>(r.slot),
         .tokens = part_of<int32_t>("tokens", tokens, r.tokens_begin, r.tokens_count),
         .budget = static_cast<int32_t>(r.budget),
         .draw = r.draw,
         .biases = part_of<LogitBias>("biases", all_biases, r.biases_begin, r.biases_count),
         .stop_ids = part_of<int32_t>("stops", stops, r.stops_begin, r.stops_count),
         .logprobs = r.logprobs,
         .guided = r.guided != 0,
         .drafts = r.drafts,
         .drafter = drafter_of(r.drafter),
         .history = part_of<int32_t>("history", history, r.history_begin, r.history_count),
         .prompt = static_cast<int32_t>(r.prompt),
         .earlier = part_of<int32_t>("earlier", earlier, r.earlier_begin, r.earlier_count)});
  }
  return found;
}

// Bytes that a NumPy array will own, not set to anything.
struct Owned {
  char* data;
  nb::capsule owner;

  explicit Owned(size_t bytes)
      : data(new char[bytes]),
        owner(data, [](void* p) noexcept { delete[] static_cast<char*>(p); }) {}
};

// The weights of a table, once a plan may read them.
const ModelWeights& checked(const Plan& plan, const WeightTable& table) {
  const WeightCheck done(plan, table);
  return table.weights;
}

// An executor and what it reads.
struct BoundExecutor {
  nb::object table;
  int32_t vocab;
  nb::object draft_model = {};  // which `executor` uses, so it is given up after that
  Executor executor;
  std::vector<TokenEvent> kept = {};  // read, and not yet taken

  BoundExecutor(const nb::bytes& header, const nb::bytes& modules, const nb::bytes& phases,
                const nb::bytes& shares, nb::object weights, const std::string& isa,
                const nb::bytes& setup, const std::vector<int>& cores)
      : table(weights),
        vocab(plan_of(header, modules, phases, shares).header.vocab),
        executor(plan_of(header, modules, phases, shares), setup_of(setup),
                 checked(plan_of(header, modules, phases, shares), nb::cast<WeightTable&>(weights)),
                 select_kernels(isa), cores) {}

  void convert(int64_t phase, int64_t matrix) {
    if (!executor.loader().converts(phase, matrix)) return;
    {
      nb::gil_scoped_release unlocked;
      executor.loader().convert(phase, matrix);
    }
    const PlanPhase& of = executor.plan().phases[phase];
    const int role = static_cast<int>(of.matrices[matrix].role);
    nb::cast<WeightTable&>(table).owners.erase({role, of.layer});
  }

  std::pair<OwnRows, std::optional<OwnBytes>> save(int slot, int64_t begin, int64_t end) {
    executor.sequences("save", slot);  // before anything is read that an epoch writes
    const int64_t length = executor.length(slot);
    if (begin < 0 || begin > end || end > length) {
      refuse("positions: expected some of the " + std::to_string(length) + " in this slot, got " +
             std::to_string(begin) + " to " + std::to_string(end));
    }
    const KvCache& cache = executor.sequences().cache;
    const auto sizes = [&](int64_t n) { return static_cast<size_t>(n); };
    const size_t lists = sizes(cache.kept_rows(cache.own())), row = sizes(cache.kept_row_bytes());
    const size_t positions = sizes(end - begin);
    const bool has_tail = executor.sequences().has_tails() && executor.resumable(slot, end);
    const size_t tail_bytes = has_tail ? sizes(executor.sequences().tail_bytes(slot, end)) : 0;
    const Owned rows(lists * positions * row), tail(tail_bytes);
    {
      nb::gil_scoped_release unlocked;
      executor.sequences("save", slot)
          .save(slot, begin, end, rows.data, has_tail ? tail.data : nullptr);
    }
    std::optional<OwnBytes> found;
    if (has_tail) found = OwnBytes(tail.data, {tail_bytes}, tail.owner);
    return {OwnRows(rows.data, {lists, positions, row}, rows.owner), found};
  }

  void restore(int slot, int64_t count, const Rows& rows, const std::optional<Bytes>& tail) {
    const KvCache& cache = executor.sequences("restore", slot).cache;
    const int64_t end = executor.length(slot) + count, stride = static_cast<int64_t>(rows.shape(1));
    if (static_cast<int64_t>(rows.shape(0)) != cache.kept_rows(cache.own()) ||
        static_cast<int64_t>(rows.shape(2)) != cache.kept_row_bytes() || count < 0 ||
        count > stride || end > executor.plan().header.context ||
        (tail && !executor.sequences().takes_tail(end, static_cast<int64_t>(tail->size())))) {
      refuse("restore: expected what save returned, of a model and context as this one");
    }
    nb::gil_scoped_release unlocked;
    executor.sequences("restore", slot)
        .restore(slot, count, stride, reinterpret_cast<const char*>(rows.data()),
                 tail ? reinterpret_cast<const char*>(tail->data()) : nullptr,
                 tail ? static_cast<int64_t>(tail->size()) : 0);
  }
};

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<WeightTable>(m, "WeightTable",
                          "Where an executor finds each weight; keeps them alive.")
      .def(nb::init<int>(), "layers"_a)
      .def("set_matrix", &WeightTable::set_matrix, "role"_a, "layer"_a, "values"_a,
           "scales"_a.none(), "rows"_a, "columns"_a, "format"_a, "wanted"_a, "column_parts"_a = 1,
           "copies"_a = 1, "block"_a = 1, "expert"_a = 0, "factor"_a = 1.0f)
      .def("set_vector", &WeightTable::set_vector, "role"_a, "layer"_a, "values"_a);

  nb::class_<BoundExecutor>(m, "Executor", "Runs a plan on the cores of this machine.")
      .def(nb::init<const nb::bytes&, const nb::bytes&, const nb::bytes&, const nb::bytes&,
                    nb::object, const std::string&, const nb::bytes&, const std::vector<int>&>(),
           "header"_a, "modules"_a, "phases"_a, "shares"_a, "weights"_a, "isa"_a, "setup"_a,
           "cores"_a)
      .def(
          "follow", [](BoundExecutor& e) { e.executor.follow(); },
          "In another rank than 0: take part in all epochs of rank 0, on the workers' threads.")
      .def(
          "watch",
          [](BoundExecutor& e, std::vector<int> sockets, int64_t patience_ns) {
            e.executor.exchange().watch(std::move(sockets), patience_ns);
          },
          "sockets"_a, "patience_ns"_a,
          "In rank 0, before the first epoch: sockets to the ranks 1.., each closed by the end of "
          "its rank, and how long a wait for another rank may see no progress.")
      .def(
          "follows",
          [](BoundExecutor& e, int milliseconds) {
            nb::gil_scoped_release unlocked;
            return e.executor.follows(milliseconds);
          },
          "milliseconds"_a,
          "Wait until rank 0 has ended what `follow` began, at most so long; return whether it "
          "still "
          "goes on.")
      .def(
          "connect",
          [](BoundExecutor& e, const std::vector<int>& sockets, int64_t patience_ns) {
            e.executor.connect(sockets, patience_ns);
          },
          "sockets"_a, "patience_ns"_a,
          "Where ranks are apart, before the first epoch: TCP connections to all ranks, -1 for "
          "this "
          "one, and how long a wait for another rank may see no progress.")
      .def(
          "fault", [](BoundExecutor& e, int rank) { return e.executor.exchange().fault(rank); },
          "rank"_a, "What became of a rank that is apart, a verb; empty: it made no progress.")
      .def(
          "set_links",
          [](BoundExecutor& e, const std::vector<int64_t>& hops_ns) {
            e.executor.check_idle("links");
            e.executor.exchange().set_links(hops_ns);
          },
          "hops_ns"_a,
          "In rank 0, for measurements: ns until other ranks see what each phase, and a pass, "
          "wrote.")
      .def(
          "set_times",
          [](BoundExecutor& e, const nb::bytes& times, int64_t ring_ns, bool computes) {
            e.executor.check_idle("times");
            e.executor.exchange().set_times({.ring = ring_ns, .computes = computes},
                                            structs<PhaseTime>(times, "times"));
          },
          "times"_a, "ring_ns"_a, "computes"_a,
          "In rank 0, where phases are timed: PhaseTime [phases, workers]; see "
          "csrc/ranks/simulated_time.h.")
      .def_prop_ro(
          "segment", [](BoundExecutor& e) { return e.executor.exchange().segment(); },
          "File descriptor of what the ranks share; -1: there is one rank.")
      .def_prop_ro(
          "lost", [](BoundExecutor& e) { return e.executor.exchange().lost(); },
          "The first rank that died or made no progress, which ended the epoch; -1: none.")
      .def_prop_ro(
          "expert_counts",
          [](const BoundExecutor& e) {
            const ExpertCache::Counts counts = e.executor.loader().expert_counts();
            return std::tuple(counts.found, counts.missed, counts.brought);
          },
          "How often an expert was in memory, was read from the file, and was brought to stay, "
          "over all workers.")
      .def("convert", &BoundExecutor::convert, "phase"_a, "matrix"_a,
           "Have the workers make their copies of a phase's matrix, if it is stored in another "
           "format than it is multiplied in, or cut into lanes otherwise than by rows; for each "
           "matrix, before the first epoch. What "
           "set_matrix was given for it is not read again.")
      .def(
          "length", [](const BoundExecutor& e, int slot) { return e.executor.length(slot); },
          "slot"_a)
      .def(
          "is_free", [](const BoundExecutor& e, int slot) { return e.executor.is_free(slot); },
          "slot"_a,
          "Whether no epoch uses a slot: then it may be truncated, saved and restored while one "
          "runs, by any thread.")
      .def(
          "truncate",
          [](BoundExecutor& e, int slot, int64_t length) { e.executor.truncate(slot, length); },
          "slot"_a, "length"_a)
      .def(
          "copy",
          [](BoundExecutor& e, int source, int target) {
            nb::gil_scoped_release unlocked;
            e.executor.saved("copy").copy(source, target);
          },
          "source"_a, "target"_a)
      .def_prop_ro("has_rings",
                   [](const BoundExecutor& e) { return e.executor.sequences().cache.rings() > 0; })
      .def_prop_ro(
          "state_bytes",
          [](const BoundExecutor& e) { return e.executor.sequences().states.bytes_with(0); },
          "Bytes that states of a fixed size add to a tail; 0: there are none.")
      .def("save", &BoundExecutor::save, "slot"_a, "begin"_a, "end"_a,
           "Return what a slot holds of positions begin .. end - 1: rows, uint8 [U, T, r], and the "
           "tail, of rings and states, or None where there are neither or they are beyond it.")
      .def("restore", &BoundExecutor::restore, "slot"_a, "count"_a, "rows"_a, "tail"_a.none(),
           "Put the first positions of what was saved behind those of a slot.")
      .def(
          "keep",
          [](BoundExecutor& e, int64_t name, int slot, int64_t begin, int64_t end) {
            bool has_tail;
            {
              nb::gil_scoped_release unlocked;
              has_tail = e.executor.saved("save").keep(name, slot, begin, end);
            }
            const KvCache& cache = e.executor.sequences().cache;
            const HeadPart all{0, 1};  // of every rank
            return std::pair{cache.kept_rows(all) * cache.kept_row_bytes(),
                             has_tail ? cache.tail_bytes(end, all) : -1};
          },
          "name"_a, "slot"_a, "begin"_a, "end"_a,
          "Have every rank keep its part of positions begin .. end - 1; return, of all ranks, the "
          "bytes of a position's rows and those of the tail, -1 where there is none.")
      .def(
          "cut",
          [](BoundExecutor& e, int64_t name, int64_t from, int64_t begin, int64_t end,
             int64_t tail_from) {
            nb::gil_scoped_release unlocked;
            e.executor.saved("cut").cut(name, from, begin, end, tail_from);
          },
          "name"_a, "origin"_a, "begin"_a, "end"_a, "tail_origin"_a,
          "Keep a copy of a part of what is kept, with the tail of that or of another; -1: none.")
      .def(
          "resume",
          [](BoundExecutor& e, int64_t name, int slot, int64_t count, bool has_tail) {
            nb::gil_scoped_release unlocked;
            e.executor.saved("restore").resume(name, slot, count, has_tail);
          },
          "name"_a, "slot"_a, "count"_a, "has_tail"_a,
          "Put the first positions of what the ranks keep behind those of a slot.")
      .def(
          "drop",
          [](BoundExecutor& e, int64_t name) {
            nb::gil_scoped_release unlocked;
            e.executor.saved("drop").drop(name);
          },
          "name"_a, "Keep that no longer.")
      .def(
          "logits",
          [](BoundExecutor& e, int slot, const std::vector<int32_t>& tokens,
             const std::optional<States>& states) {
            float* out = new float[tokens.size() * e.vocab];
            nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
            {
              nb::gil_scoped_release unlocked;
              e.executor.logits(slot, tokens, list_of(states), out);
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>(
                out, {tokens.size(), static_cast<size_t>(e.vocab)}, owner);
          },
          "slot"_a, "tokens"_a, "states"_a = nb::none(),
          "Feed tokens, and states [T, D] where the plan reads them; return logits, float32 [T, "
          "V].")
      .def(
          "hidden",
          [](BoundExecutor& e, int slot, const std::vector<int32_t>& tokens,
             const std::optional<States>& states) {
            const size_t width = static_cast<size_t>(e.executor.plan().header.hidden);
            const Owned rows(tokens.size() * width * sizeof(float));
            auto* out = reinterpret_cast<float*>(rows.data);
            {
              nb::gil_scoped_release unlocked;
              e.executor.hidden(slot, tokens, list_of(states), out);
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>(
                out, {tokens.size(), width}, rows.owner);
          },
          "slot"_a, "tokens"_a, "states"_a = nb::none(),
          "Feed tokens; return what the head reads of each, normed and of lanes the mean, float32 "
          "[T, D].")
      .def(
          "start",
          [](BoundExecutor& e, const nb::bytes& advances, const Words& tokens, const Words& stops,
             const nb::bytes& biases, const Words& history, const Words& earlier) {
            e.executor.start(advances_of(advances, tokens, stops, biases, history, earlier));
          },
          "advances"_a, "tokens"_a, "stops"_a, "biases"_a, "history"_a, "earlier"_a,
          "Begin an epoch: AdvanceRecord of each slot, and the lists of which they name parts.")
      .def(
          "join",
          [](BoundExecutor& e, const nb::bytes& advances, const Words& tokens, const Words& stops,
             const nb::bytes& biases, const Words& history, const Words& earlier) {
            return e.executor.join(advances_of(advances, tokens, stops, biases, history, earlier));
          },
          "advances"_a, "tokens"_a, "stops"_a, "biases"_a, "history"_a, "earlier"_a,
          "Have more slots take part in the epoch from its next pass on; return whether they do.")
      .def(
          "leave", [](BoundExecutor& e, int slot) { e.executor.leave(slot); }, "slot"_a,
          "Have a slot take no part in the epoch's next pass.")
      .def(
          "guide",
          [](BoundExecutor& e, int slot, std::vector<int32_t> forced,
             const std::optional<Words>& mask) {
            Guide guide{std::move(forced), {}};
            if (mask) guide.mask.assign(mask->data(), mask->data() + mask->size());
            e.executor.guide(slot, std::move(guide));
          },
          "slot"_a, "forced"_a, "mask"_a.none(),
          "Say what comes next in a guided slot: tokens that are given, then a draw under a mask, "
          "uint32 [ceil(V / 32)], bit t % 32 of word t / 32 for token t; None: the answer ends.")
      .def(
          "read",
          [](BoundExecutor& e, int milliseconds) {
            std::vector<TokenEvent> found;  // empty: a read waits, whatever is kept already
            bool over;
            {
              nb::gil_scoped_release unlocked;
              over = e.executor.read(found, milliseconds);
            }
            e.kept.insert(e.kept.end(), found.begin(), found.end());
            return over;
          },
          "milliseconds"_a, "Wait for tokens, and keep them; return whether the epoch is over.")
      .def(
          "take", [](BoundExecutor& e) { return records_of(std::exchange(e.kept, {})); },
          "Return and forget the tokens kept so far: the bytes of TokenEvent structs.")
      .def(
          "interrupt", [](BoundExecutor& e) { e.executor.interrupt(); },
          "Ask the epoch to end within one pass; read it to its end.")
      .def(
          "set_draft_model",
          [](BoundExecutor& e, nb::object model) {
            e.executor.set_draft_model(nb::cast<BoundExecutor&>(model).executor);
            e.draft_model = model;
          },
          "model"_a,
          "Have another executor, with as many workers and slots, draft tokens for this one, on "
          "this one's threads.")
      .def(
          "set_heads",
          [](BoundExecutor& e, const Table& gate, const Table& up, const Table& down,
             const Table& head, const Tokens& tokens, float norm_eps) {
            const auto size = [](size_t n) { return static_cast<int64_t>(n); };
            const size_t hidden = down.shape(0), inner = down.shape(1), drafted = head.shape(0);
            const auto fits = [](const Table& x, size_t rows, size_t columns) {
              return x.shape(0) == rows && x.shape(1) == columns;
            };
            if (!fits(gate, inner, 2 * hidden) || !fits(up, inner, 2 * hidden) ||
                !fits(head, drafted, hidden) || tokens.size() != drafted || drafted == 0) {
              refuse("heads: expected gate and up [F, 2D], down [D, F], head [R, D], tokens [R]");
            }
            e.executor.set_heads({size(hidden), size(inner), size(drafted), e.vocab, gate.data(),
                                  up.data(), down.data(), head.data(), tokens.data(), norm_eps});
          },
          "gate"_a, "up"_a, "down"_a, "head"_a, "tokens"_a, "norm_eps"_a,
          "Have heads draft tokens, see csrc/draft/heads_drafter.h; what is given is copied.")
      .def(
          "add_adapter",
          [](BoundExecutor& e, int adapter, int layer, int role, const Parts& down,
             const Parts& up) {
            const auto list = [](const Parts& x) {
              return std::vector<float>(x.data(), x.data() + x.size());
            };
            const size_t lanes = static_cast<size_t>(e.executor.plan().header.lanes);
            if (down.shape(0) != lanes || up.shape(0) != lanes || up.shape(1) != down.shape(1)) {
              refuse("adapter: expected A [L, r, K] and B [L, r, R] of one rank");
            }
            e.executor.add_adapter(adapter, layer, static_cast<WeightRole>(role),
                                   {static_cast<int64_t>(down.shape(1)), list(down), list(up)});
          },
          "adapter"_a, "layer"_a, "role"_a, "down"_a, "up"_a,
          "Have an adapter, counted from 1 on, add B A to a matrix, see csrc/ops/adapters.h; what "
          "is given is copied.")
      .def(
          "give_adapter",
          [](BoundExecutor& e, int slot, int adapter) { e.executor.give_adapter(slot, adapter); },
          "slot"_a, "adapter"_a, "Have an empty slot's sequence be that of an adapter; 0: of none.")
      .def(
          "set_eagle",
          [](BoundExecutor& e, const DraftParts::Matrices& matrices,
             const DraftParts::Vectors& vectors, const Tokens& tokens,
             const std::vector<int>& sizes, const std::vector<int>& layers, float norm_eps,
             float amplitude, bool norm_joins) {
            e.executor.set_eagle(
                eagle_of(matrices, vectors, tokens, sizes, norm_eps, amplitude, norm_joins),
                layers);
          },
          "matrices"_a, "vectors"_a, "tokens"_a, "sizes"_a, "layers"_a, "norm_eps"_a, "amplitude"_a,
          "norm_joins"_a,
          "Have an EAGLE-3 drafter draft tokens, see csrc/bind/drafter_weights.h; what is given is "
          "copied.")
      .def(
          "set_dflash",
          [](BoundExecutor& e, const DraftParts::Matrices& matrices,
             const DraftParts::Vectors& vectors, const std::vector<int>& sizes,
             const std::vector<int>& windows, const std::vector<int>& layers, float norm_eps,
             float amplitude, bool causal) {
            e.executor.set_dflash(
                dflash_of(matrices, vectors, sizes, windows, norm_eps, amplitude, causal), layers);
          },
          "matrices"_a, "vectors"_a, "sizes"_a, "windows"_a, "layers"_a, "norm_eps"_a,
          "amplitude"_a, "causal"_a,
          "Have a DFlash drafter draft tokens, see csrc/bind/drafter_weights.h; what is given is "
          "copied.")
      .def(
          "set_assistant",
          [](BoundExecutor& e, int format, nb::object layers, nb::object matrices,
             const Tokens& ordering, int64_t chosen, const Floats& final_norm, float norm_eps) {
            e.executor.set_assistant(assistant_of(format,
                                                  nb::cast<std::vector<AssistantParts>>(layers),
                                                  nb::cast<std::vector<AssistantMatrix>>(matrices),
                                                  ordering, chosen, final_norm, norm_eps));
            e.draft_model = nb::make_tuple(layers, matrices);
          },
          "format"_a, "layers"_a, "matrices"_a, "ordering"_a, "chosen"_a, "final_norm"_a,
          "norm_eps"_a,
          "Have an assistant draft tokens, see csrc/bind/assistant_weights.h; matrices stay where "
          "they are.")
      .def(
          "script",
          [](BoundExecutor& e, int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws) {
            e.executor.script(slot, std::move(drafts), std::move(draws));
          },
          "slot"_a, "drafts"_a, "draws"_a,
          "By position of a slot's sequence, what is drafted, and what is drawn in the model's "
          "stead; for tests and measurements.")
      .def(
          "pass_costs",
          [](const BoundExecutor& e) {
            const PassCost& cost = e.executor.pass_cost();
            std::vector<std::pair<int, double>> found;
            for (int width = 1; width <= decode_width(e.executor.plan().header); ++width) {
              if (cost.known(width)) found.push_back({width, cost.of(width)});
            }
            return found;
          },
          "Nanoseconds of a pass of each width that was run, of passes that decode.")
      .def(
          "set_trace", [](BoundExecutor& e, bool on) { e.executor.set_trace(on); }, "on"_a)
      .def(
          "take_spans", [](BoundExecutor& e) { return records_of(e.executor.take_spans()); },
          "Return and forget when each worker was in which phase: the bytes of Span structs.")
      .def_prop_ro("kv_bytes", [](const BoundExecutor& e) { return e.executor.kv_bytes(); })
      .def_prop_ro("converted_bytes",
                   [](const BoundExecutor& e) { return e.executor.loader().converted_bytes(); });
}

}  // namespace monolane
