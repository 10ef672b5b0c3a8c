// Passes that come from another host: a sane one passes, and no field of it can be anything else
// than what a worker may follow. Each wrong value is refused by the field's name.
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "expect.h"
#include "run/pass_check.h"
#include "tests.h"

namespace monolane {
namespace {

constexpr int32_t kSlotCount = 3, kContext = 2000, kVocab = 50, kWidth = 128;
constexpr int64_t kLeast = std::numeric_limits<int32_t>::min();
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kName = 5, kShort = 6;  // what is kept: with a tail, and without

// A layer that holds every position, and one whose ring does not.
KvCache small_cache() {
  return KvCache({{.window = 0, .heads = 2, .head_dim = 4, .lists = 2},
                  {.window = 16, .heads = 2, .head_dim = 4, .lists = 2}},
                 {0, 1}, kContext, kWidth, kSlotCount, Format::kF32);
}

// Two slots: one decodes with two drafts, of which it is sure of the first row alone; one reads
// three tokens of a prompt.
Pass sane_pass(bool states) {
  Pass pass;
  pass.width = 6;
  for (int32_t t = 0; t < 3; ++t) pass.rows[t] = {2, 100 + t, 7 + t};
  for (int32_t t = 3; t < 6; ++t) pass.rows[t] = {0, 1990 + t - 3, kVocab - 1};
  if (states) {
    pass.runs = 2;
    pass.run[0] = {2, 0, 3, 1, 100, 98};
    pass.run[1] = {0, 3, 3, 3, 1990, 1990};
  }
  pass.wanted = 4;
  for (int32_t i = 0; i < 3; ++i) pass.wanted_row[i] = i;
  pass.wanted_row[3] = 5;
  return pass;
}

Pass ending(const Chore& chore) {
  Pass pass;
  pass.chore = chore;
  return pass;
}

struct Checker {
  const Plan& plan;
  const KvCache& cache;
  const SavedKv& kept;
  bool states;

  std::string operator()(const Pass& pass) const {
    try {
      check_pass(pass, {.plan = plan,
                        .slots = kSlotCount,
                        .states = states,
                        .cache = cache,
                        .kept = kept,
                        .heads = {0, 1}});
      return "";
    } catch (const std::invalid_argument& refused) {
      return refused.what();
    }
  }

  // That the pass is refused, by that field.
  void refuses(const Pass& pass, const std::string& field) const {
    const std::string said = (*this)(pass);
    if (said.rfind("pass." + field, 0) != 0) {
      std::fprintf(stderr, "%s: refused by '%s'\n", field.c_str(), said.c_str());
    }
    EXPECT(said.rfind("pass." + field, 0) == 0);
  }

  // The same of a sane one with each of these values in one place.
  template <typename T>
  void refuses_each(const Pass& sane, const std::string& field,
                    const std::function<T&(Pass&)>& place,
                    const std::vector<int64_t>& wrong) const {
    EXPECT((*this)(sane).empty());
    for (const int64_t value : wrong) {
      Pass pass = sane;
      place(pass) = static_cast<T>(value);
      refuses(pass, field);
    }
  }

  void refuses_int(const Pass& sane, const std::string& field,
                   const std::function<int32_t&(Pass&)>& place,
                   const std::vector<int64_t>& wrong) const {
    refuses_each<int32_t>(sane, field, place, wrong);
  }

  void refuses_byte(const Pass& sane, const std::string& field,
                    const std::function<bool&(Pass&)>& place,
                    const std::vector<uint8_t>& wrong) const {
    EXPECT((*this)(sane).empty());
    for (const uint8_t value : wrong) {
      Pass pass = sane;
      std::memcpy(&place(pass), &value, 1);  // a bool that is none
      refuses(pass, field);
    }
  }
};

void test_rows(const Checker& check) {
  const Pass sane = sane_pass(check.states);
  check.refuses_int(sane, "width", [](Pass& p) -> int32_t& { return p.width; },
                    {-1, kWidth + 1, 100'000, kLeast, kMost});
  check.refuses_byte(sane, "lent", [](Pass& p) -> bool& { return p.lent; }, {1, 2, 255});
  check.refuses_byte(sane, "help", [](Pass& p) -> bool& { return p.help; }, {1, 2, 255});
  check.refuses_byte(sane, "offered", [](Pass& p) -> bool& { return p.offered; }, {1, 2, 255});
  check.refuses_byte(sane, "hidden", [](Pass& p) -> bool& { return p.hidden; }, {2, 255});
  for (int32_t t = 0; t < sane.width; ++t) {
    const std::string row = " " + std::to_string(t);
    check.refuses_int(sane, "rows.slot" + row, [t](Pass& p) -> int32_t& { return p.rows[t].slot; },
                      {-1, kSlotCount, 1 << 20, kLeast, kMost});
    check.refuses_int(sane, "rows.token" + row,
                      [t](Pass& p) -> int32_t& { return p.rows[t].token; },
                      {-1, kVocab, kLeast, kMost});
    check.refuses_int(sane, "rows.position" + row,
                      [t](Pass& p) -> int32_t& { return p.rows[t].position; },
                      {-1, kContext, 90'000'000, kLeast, kMost});
  }
  check.refuses_int(sane, "rows.position 1", [](Pass& p) -> int32_t& { return p.rows[1].position; },
                    {100, 102});  // twice, and with a gap
  Pass split = sane;
  split.rows[5].slot = 2;  // a second time
  check.refuses(split, "rows.slot 5");
}

void test_wanted(const Checker& check) {
  const Pass sane = sane_pass(check.states);
  check.refuses_int(sane, "wanted", [](Pass& p) -> int32_t& { return p.wanted; },
                    {-1, 7, 5000, kLeast, kMost});
  for (int32_t i = 0; i < sane.wanted; ++i) {
    check.refuses_int(sane, "wanted_row " + std::to_string(i),
                      [i](Pass& p) -> int32_t& { return p.wanted_row[i]; },
                      {-1, 6, 1 << 28, kLeast, kMost});
  }
  check.refuses_int(sane, "wanted_row 2", [](Pass& p) -> int32_t& { return p.wanted_row[2]; },
                    {0, 1});  // out of order
  Pass hidden = sane;
  hidden.hidden = true;
  check.refuses(hidden, "wanted");
  hidden.wanted = 0;
  EXPECT(check(hidden).empty());
  if (check.states) return;
  Pass wide;  // has no room for the logits of all its rows
  wide.width = kWidth;
  for (int32_t t = 0; t < kWidth; ++t) wide.rows[t] = {0, t, 0};
  EXPECT(check(wide).empty());
  wide.wanted = kPlanMaxWidth + 1;
  check.refuses(wide, "wanted");
}

void test_runs(const Checker& check) {
  const Pass sane = sane_pass(check.states);
  if (!check.states) {
    return check.refuses_int(sane, "runs", [](Pass& p) -> int32_t& { return p.runs; },
                             {-1, 1, kLeast, kMost});
  }
  check.refuses_int(sane, "runs", [](Pass& p) -> int32_t& { return p.runs; },
                    {-1, 0, 1, kPlanMaxWidth + 1, kLeast, kMost});
  check.refuses_int(sane, "run.first 2", [](Pass& p) -> int32_t& { return p.runs; }, {3, 6});
  const auto of = [&](const char* name, int32_t i, int32_t Run::* field,
                      const std::vector<int64_t>& wrong) {
    check.refuses_int(
        sane, std::string("run.") + name + " " + std::to_string(i),
        [=](Pass& p) -> int32_t& { return p.run[i].*field; }, wrong);
  };
  for (int32_t i = 0; i < 2; ++i) {
    const Run& run = sane.run[i];
    of("first", i, &Run::first, {run.first - 1, run.first + 1, kLeast, kMost});
    of("slot", i, &Run::slot, {-1, 1, kSlotCount, kLeast, kMost});
    of("rows", i, &Run::rows, {0, run.rows - 1, run.rows + 1, -1, kLeast, kMost});
    of("certain", i, &Run::certain, {-1, run.rows + 1, kLeast, kMost});
    of("position", i, &Run::position, {-1, run.position - 1, run.position + 1, kLeast, kMost});
    of("settled", i, &Run::settled,
       {-1, run.position + 1, run.position - kPlanMaxWidth - 1, kLeast, kMost});
  }
}

void test_chores(const Checker& check) {
  const std::vector<int64_t> no_slot = {-1, kSlotCount, kLeast, kMost};
  const auto of = [&](const Chore& sane, const std::string& field,
                      const std::vector<int64_t>& wrong) {
    const auto small = [&](int32_t Chore::* member) {
      check.refuses_int(
          ending(sane), "chore." + field, [=](Pass& p) -> int32_t& { return p.chore.*member; },
          wrong);
    };
    const auto large = [&](int64_t Chore::* member) {
      check.refuses_each<int64_t>(
          ending(sane), "chore." + field, [=](Pass& p) -> int64_t& { return p.chore.*member; },
          wrong);
    };
    if (field == "slot") return small(&Chore::slot);
    if (field == "target") return small(&Chore::target);
    if (field == "has_tail") return small(&Chore::has_tail);
    if (field == "begin") return large(&Chore::begin);
    if (field == "end") return large(&Chore::end);
    if (field == "name") return large(&Chore::name);
    if (field == "from") return large(&Chore::from);
    EXPECT(field == "tail_from");
    large(&Chore::tail_from);
  };
  constexpr int64_t far = int64_t{1} << 40;

  const Chore copy = {.kind = Chore::kCopy, .slot = 0, .target = 2, .end = kContext};
  of(copy, "slot", no_slot);
  of(copy, "target", no_slot);
  of(copy, "target", {0});
  of(copy, "end", {-1, kContext + 1, far, -far});

  const Chore save = {
      .kind = Chore::kSave, .slot = 1, .has_tail = 1, .begin = 3, .end = 9, .name = 8};
  of(save, "slot", no_slot);
  of(save, "has_tail", {-1, 2});
  of(save, "begin", {-1, 10, far, -far});
  of(save, "end", {-1, kContext + 1, far, -far});
  of(save, "name", {-1, kName, -far});

  const Chore restore = {
      .kind = Chore::kRestore, .slot = 2, .has_tail = 1, .begin = 0, .end = 300, .name = kName};
  of(restore, "slot", no_slot);
  of(restore, "name", {-1, 99, far});
  of(restore, "has_tail", {-1, 2});
  of(restore, "begin", {-1, 301, far, -far});
  of(restore, "end", {-1, kContext + 1, far});
  Chore other = restore;
  other.end = 301;  // more than is kept
  check.refuses(ending(other), "chore.begin");
  other = restore;
  other.begin = other.end = 5;  // the tail is of another length
  check.refuses(ending(other), "chore.has_tail");
  other = restore;
  other.name = kShort;  // it has none
  other.end = 4;
  check.refuses(ending(other), "chore.has_tail");

  const Chore cut = {
      .kind = Chore::kCut, .begin = 10, .end = 20, .name = 8, .from = kName, .tail_from = kShort};
  of(cut, "from", {-1, 99, far});
  of(cut, "begin", {-1, 21, far, -far});
  of(cut, "end", {-1, 301, far, -far});
  of(cut, "name", {-1, kName, kShort});
  of(cut, "tail_from", {-2, 99, far});
  other = cut;
  other.tail_from = -1;
  EXPECT(check(ending(other)).empty());

  of({.kind = Chore::kDrop, .name = kName}, "name", {-1, 99, far});

  for (const int32_t kind : {-1, Chore::kDrop + 1, static_cast<int32_t>(kMost)}) {
    Pass pass = ending({});
    std::memcpy(&pass.chore.kind, &kind, sizeof kind);
    check.refuses(pass, "chore.kind");
  }
  Pass pass = sane_pass(check.states);  // nothing is done amid an epoch
  pass.chore = copy;
  check.refuses(pass, "chore.kind");
  pass = ending({});  // without rows nothing is wanted
  pass.wanted = 1;
  check.refuses(pass, "wanted");
}

}  // namespace

void test_passes() {
  Plan plan{};
  plan.header.max_width = kWidth;
  plan.header.vocab = kVocab;
  plan.header.context = kContext;
  KvCache cache = small_cache();
  SavedKv kept;
  kept.run({.kind = Chore::kSave, .slot = 0, .has_tail = 1, .end = 300, .name = kName}, cache,
           {0, 1});
  kept.run({.kind = Chore::kSave, .slot = 0, .end = 4, .name = kShort}, cache, {0, 1});
  EXPECT(cache.rings() == 1 && kept.tail_bytes(kName) > 0 && kept.tail_bytes(kShort) == 0);
  for (const bool states : {false, true}) {
    const Checker check{plan, cache, kept, states};
    test_rows(check);
    test_wanted(check);
    test_runs(check);
    test_chores(check);
  }
}

}  // namespace monolane
