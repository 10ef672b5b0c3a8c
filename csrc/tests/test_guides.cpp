// Guides that are posted while workers run.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests.h"

namespace monolane {
namespace {

// Guides for slot 1, made from its tokens so far on a thread of their own, as its readers' are.
class Guiding {
 public:
  Guiding(Executor& executor, int32_t vocab) : executor_(executor), vocab_(vocab) {}

  // Draws until `stop_after` tokens of slot 1 have come, or all there are; may be called again.
  std::vector<int32_t> draw(std::vector<Advance> advances, size_t stop_after) {
    executor_.start(std::move(advances));
    bool over = false, stopped = false;
    std::thread poster([&] { post_all(); });
    std::vector<TokenEvent> events;
    while (!over) {
      events.clear();
      over = executor_.read(events, 20);
      for (const TokenEvent& event : events) {
        if (event.slot != 1) continue;
        const std::lock_guard<std::mutex> lock(mutex_);
        drawn_.push_back(event.token);
      }
      changed_.notify_one();
      if (drawn_.size() >= stop_after && !stopped) executor_.interrupt(), stopped = true;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    poster.join();
    over_ = false;
    return drawn_;
  }

 private:
  // What follows the first `count` tokens: a third of the vocabulary, now and then behind a run.
  Guide after(size_t count) const {
    uint32_t state = 17;
    for (size_t i = 0; i < count; ++i) state = state * 31u + drawn_[i];
    Guide guide;
    for (uint32_t i = 0; i < state % 7 && state % 3 == 0; ++i)
      guide.forced.push_back(i + state % 50);
    guide.mask.assign(mask_words(vocab_), 0);
    for (int32_t i = state % 3; i < vocab_; i += 3) guide.mask[i / 32] |= 1u << i % 32;
    return guide;
  }

  void post_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    bool first = true;  // of the epoch, which forgot the last guide
    while (true) {
      changed_.wait(lock, [&] { return over_ || first || drawn_.size() >= due_; });
      if (over_) return;
      Guide guide;
      if (drawn_.size() >= due_) {
        said_ = drawn_.size();
        guide = after(said_);
        due_ = said_ + guide.forced.size() + 1;
      } else {  // said already: what is left of it
        guide = after(said_);
        guide.forced.erase(guide.forced.begin(), guide.forced.begin() + (drawn_.size() - said_));
      }
      first = false;
      if (due_ % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));  // late
      executor_.guide(1, std::move(guide));
    }
  }

  Executor& executor_;
  int32_t vocab_;
  std::vector<int32_t> drawn_;
  size_t said_ = 0,
         due_ = 0;  // the last guide followed `said_` tokens; the next is due with `due_`
  bool over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace

// What is guided draws the same alone, beside others, and in epochs that end at any time; with
// drafts, most of them right.
void test_guides(Executor& executor, int32_t vocab) {
  Advance guided = advance(1, prompt(20, 9), 40);
  guided.guided = true;
  clear(executor);
  const std::vector<int32_t> whole = Guiding(executor, vocab).draw({guided}, SIZE_MAX);
  EXPECT(whole.size() == 40);
  std::vector<int32_t> drafts = guided.tokens;
  drafts.insert(drafts.end(), whole.begin(), whole.end());
  for (size_t i = 0; i < drafts.size(); i += 5) drafts[i] ^= 1;
  executor.script(1, drafts, {});
  guided.drafts = 7;
  clear(executor);
  const std::vector<int32_t> beside =
      Guiding(executor, vocab)
          .draw({advance(0, prompt(70, 1), 30), guided, advance(2, prompt(90, 3), 50)}, SIZE_MAX);
  EXPECT(beside == whole);
  clear(executor);
  Guiding guiding(executor, vocab);
  std::vector<int32_t> parts;
  const std::vector<int32_t> tokens = guided.tokens;
  while (parts.size() < whole.size()) {
    std::vector<int32_t> known = tokens;
    known.insert(known.end(), parts.begin(), parts.end());
    Advance rest = guided;
    rest.tokens.assign(known.begin() + executor.length(1), known.end());
    rest.budget = guided.budget - static_cast<int>(parts.size());
    parts = guiding.draw({rest}, parts.size() + 3);
  }
  EXPECT(parts == whole);
  executor.script(1, {}, {});
}

}  // namespace monolane
