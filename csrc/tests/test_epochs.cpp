// Batches, epochs that end early, tokens taken back, traces.
#include <cstring>
#include <stdexcept>

#include "tests.h"

namespace monolane {

// Three requests at once, one of them with a prompt of several passes, are what each is alone.
Drawn test_batch(Executor& executor) {
  const std::vector<Advance> advances = {advance(0, prompt(70, 1), 8), advance(1, prompt(3, 2), 12),
                                         penalised(advance(2, prompt(270, 3), 5), 270)};
  clear(executor);
  Drawn alone;
  for (const Advance& one : advances) alone.merge(draw(executor, {one}));
  clear(executor);
  EXPECT(draw(executor, advances) == alone);
  return alone;
}

// An epoch that is stopped and taken up again draws what one draws that is not.
void test_yield(Executor& executor) {
  clear(executor);
  const std::vector<int32_t> given = prompt(20, 4);
  const std::vector<int32_t> whole = draw(executor, {penalised(advance(0, given, 20), 20)})[0];
  clear(executor);
  executor.start({penalised(advance(0, given, 20), 20)});
  std::vector<int32_t> parts = drain(executor, 5)[0];
  while (parts.size() < whole.size()) {
    const int left = static_cast<int>(whole.size() - parts.size());
    Advance rest = penalised(advance(0, {parts.back()}, left), 20);
    rest.history = given;
    rest.history.insert(rest.history.end(), parts.begin(), parts.end() - 1);
    executor.start({rest});
    const std::vector<int32_t> more = drain(executor, 3)[0];
    parts.insert(parts.end(), more.begin(), more.end());
  }
  EXPECT(parts == whole);
}

// Drafts that are taken back leave no trace; logits do not depend on the width of the passes.
void test_rollback(Executor& executor, int32_t vocab) {
  const std::vector<int32_t> tokens = prompt(330, 6);
  const auto logits = [&](size_t begin, size_t count) {
    const std::vector<int32_t> part(tokens.begin() + begin, tokens.begin() + begin + count);
    std::vector<float> out(count * vocab);
    executor.logits(2, part, {}, out.data());
    return out;
  };
  clear(executor);
  const std::vector<float> whole = logits(0, tokens.size());
  const auto rewind = [&] {
    const bool states = executor.sequences().states.any();  // which go back to the beginning alone
    executor.truncate(2, states ? 0 : 310);
    if (states) logits(0, 310);
  };
  rewind();
  logits(3, 7);
  rewind();
  std::vector<float> again = logits(310, 1);
  const std::vector<float> rest = logits(311, 19);
  again.insert(again.end(), rest.begin(), rest.end());
  EXPECT(std::memcmp(again.data(), &whole[310 * vocab], again.size() * sizeof(float)) == 0);
}

// A slot that no epoch uses is saved, emptied and restored while one runs, and goes on as if
// nothing had been; so is one that has drawn its last token, but none that has not.
void test_beside(Executor& executor) {
  clear(executor);
  draw(executor, {advance(1, prompt(40, 9), 1)});
  const auto saved_and_back = [&] {
    Sequences& all = executor.sequences("save", 1);
    const int64_t end = all.length(1), lists = all.cache.kept_rows(all.cache.own());
    std::vector<char> rows(lists * end * all.cache.kept_row_bytes());
    std::vector<char> tail(all.has_tails() ? all.tail_bytes(1, end) : 0);
    all.save(1, 0, end, rows.data(), tail.empty() ? nullptr : tail.data());
    executor.truncate(1, 0);
    all.restore(1, end, end, rows.data(), tail.empty() ? nullptr : tail.data(),
                static_cast<int64_t>(tail.size()));
  };
  executor.start({advance(0, prompt(30, 8), 60)});
  for (int i = 0; i < 5; ++i) saved_and_back();
  drain(executor);
  const Drawn found = draw(executor, {advance(1, {7}, 9)});
  executor.truncate(1, 0);
  draw(executor, {advance(1, prompt(40, 9), 1)});
  EXPECT(draw(executor, {advance(1, {7}, 9)}) == found);

  Advance waiting = advance(0, {7}, 60);  // for a guide that does not come
  waiting.guided = true;
  executor.truncate(0, 0);
  executor.start({waiting, advance(2, prompt(5, 8), 1)});
  EXPECT(!executor.is_free(0) && executor.is_free(1));
  std::vector<TokenEvent> events;
  while (events.empty()) executor.read(events, 20);
  EXPECT(events.front().slot == 2 && executor.is_free(2));
  executor.truncate(2, 0);
  saved_and_back();
  bool refused = false;
  try {
    executor.truncate(0, 0);
  } catch (const std::logic_error&) {
    refused = true;
  }
  EXPECT(refused);
  executor.interrupt();
  drain(executor);
  EXPECT(executor.is_free(0));
}

// Slots join an epoch that runs, one of them twice, and leave it; each draws what it draws alone.
void test_join(Executor& executor) {
  const Advance one = advance(1, prompt(70, 1), 8), two = advance(2, prompt(3, 2), 12);
  const Advance again = penalised(advance(1, prompt(30, 3), 9), 30);
  clear(executor);
  const Drawn alone = draw(executor, {one, two});
  executor.truncate(1, 0);
  const std::vector<int32_t> second = draw(executor, {again})[1];

  clear(executor);
  Advance open = advance(0, {7}, 60);  // waits for a guide, so the epoch goes on
  open.guided = true;
  executor.start({open});
  EXPECT(executor.join({one}) && executor.join({two}));
  Drawn drawn;
  const auto read_until = [&](const auto& done) {
    std::vector<TokenEvent> events;
    for (bool over = false; !over && !done();) {
      events.clear();
      over = executor.read(events, 20);
      for (const TokenEvent& event : events) drawn[event.slot].push_back(event.token);
    }
  };
  read_until([&] { return executor.is_free(1) && executor.is_free(2); });
  read_until([&] { return drawn[1].size() == 8 && drawn[2].size() == 12; });
  EXPECT(drawn[1] == alone.at(1) && drawn[2] == alone.at(2));
  executor.truncate(1, 0);
  EXPECT(executor.join({again}));
  bool refused = false;
  try {
    executor.join({open});
  } catch (const std::logic_error&) {
    refused = true;
  }
  EXPECT(refused);
  drawn.clear();
  read_until([&] { return drawn[1].size() == 9; });
  EXPECT(drawn[1] == second);
  executor.leave(0);
  EXPECT(drain(executor)[0] == std::vector<int32_t>{kGone});
  executor.truncate(1, 0);
  EXPECT(executor.is_free(0) && !executor.join({again}));

  // One that leaves amid its answer, and goes on in another epoch.
  clear(executor);
  const Advance whole = advance(0, prompt(20, 4), 40);
  const std::vector<int32_t> all = draw(executor, {whole})[0];
  clear(executor);
  executor.start({whole});
  std::vector<TokenEvent> events;
  while (events.size() < 3) executor.read(events, 20);
  executor.leave(0);
  while (!executor.read(events, 20)) {
  }
  std::vector<int32_t> parts;
  for (const TokenEvent& event : events) {
    if (event.token != kGone) parts.push_back(event.token);
  }
  if (parts.size() < all.size()) {
    const int left = static_cast<int>(all.size() - parts.size());
    const std::vector<int32_t> rest = draw(executor, {advance(0, {parts.back()}, left)})[0];
    parts.insert(parts.end(), rest.begin(), rest.end());
  }
  EXPECT(parts == all);
}

void test_trace(Executor& executor, const Plan& plan) {
  clear(executor);
  executor.set_trace(true);
  draw(executor, {advance(0, prompt(9, 7), 4)});
  executor.set_trace(false);
  EXPECT(executor.take_spans().size() == plan.phases.size() * plan.header.workers * 4);
}

}  // namespace monolane
