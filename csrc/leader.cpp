// The leader among the workers: what goes into a pass, and what comes out of it.
#include <algorithm>
#include <cstring>
#include <limits>

#include "worker.h"

namespace monolane {

void Executor::lay_out_pass() {
  for (;;) {
    pass_.width = 0;
    pass_.wanted = 0;
    pass_.copy = copy_;
    const uint32_t calls = call_count_.load(std::memory_order_acquire);  // before looking for them
    if (yield_.load(std::memory_order_relaxed)) {
      // A parked slot gives its last token back: the next epoch feeds it, and has its logits then.
      for (const Running& running : running_) lengths_[running.advance.slot] -= running.parked;
      return;
    }
    const bool parked = settle_parked();
    lay_out_rows();
    if (pass_.width > 0 || !parked) return;
    calls_.await(calls + 1);
  }
}

void Executor::lay_out_rows() {
  // Sequences that decode come first: they hold one row each, and a prompt may take what is left.
  for (Running& running : running_) {
    const bool decoding = running.fed == running.advance.tokens.size();
    if (decoding && !running.done && !running.parked) add_rows(running);
  }
  for (Running& running : running_) {
    if (!running.done && running.fed < running.advance.tokens.size()) add_rows(running);
  }
}

void Executor::add_rows(Running& running) {
  const Advance& advance = running.advance;
  running.row = -1;
  int64_t length = lengths_[advance.slot];
  const bool decoding = running.fed == advance.tokens.size();
  size_t count = decoding ? 1 : advance.tokens.size() - running.fed;
  count = std::min<size_t>(count, plan_.header.max_width - pass_.width);
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = decoding ? running.next : advance.tokens[running.fed++];
    const bool last = decoding || running.fed == advance.tokens.size();
    if (last || all_logits_ != nullptr) {
      running.row = pass_.wanted;
      pass_.wanted_row[pass_.wanted++] = pass_.width;
    }
    pass_.rows[pass_.width++] = {advance.slot, static_cast<int32_t>(length++), token};
  }
  lengths_[advance.slot].store(length, std::memory_order_relaxed);
  highest_[advance.slot] = std::max(highest_[advance.slot], length);
}

void Executor::choose_tokens() {
  const int64_t vocab = plan_.header.vocab;
  const float* logits = exchange_.logits();
  if (all_logits_ != nullptr) {  // one slot, whose rows are all wanted
    std::memcpy(all_logits_, logits, floats(pass_.wanted * vocab));
    all_logits_ += pass_.wanted * vocab;
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  for (Running& running : running_) {
    if (running.done || running.row < 0) continue;
    const float* row = logits + running.row * vocab;
    running.row = -1;
    if (!running.advance.guided || take_guide(running)) {
      settle(running, row);
    } else {
      park(running, row);
    }
  }
}

// The next token of a slot, or the forced ones.
void Executor::settle(Running& running, const float* logits) {
  if (running.guide && !running.guide->forced.empty()) return force(running);
  const uint32_t position = static_cast<uint32_t>(lengths_[running.advance.slot]);
  const uint32_t* mask = running.guide ? running.guide->mask.data() : nullptr;
  const Advance& advance = running.advance;
  const int32_t token = choose(logits, plan_.header.vocab, advance.draw, advance.biases,
                               running.seen, position, mask, scratch_);
  running.guide.reset();
  emit(running, token, logits);
}

// Notes the tokens before the first draw, if penalties ask for them.
void Executor::look_back(Running& running) const {
  const Advance& advance = running.advance;
  running.seen = Seen(advance.draw, plan_.header.vocab);
  if (!running.seen.penalises()) return;
  int32_t i = 0;
  for (const std::vector<int32_t>* list : {&advance.history, &advance.tokens}) {
    for (const int32_t token : *list) running.seen.note(token, i++ >= advance.prompt);
  }
}

void Executor::emit(Running& running, int32_t token, const float* logits) {
  const Advance& advance = running.advance;
  TokenEvent event{};
  event.slot = advance.slot;
  event.token = token;
  event.logprob = std::numeric_limits<float>::quiet_NaN();
  if (advance.logprobs >= 0 && logits != nullptr) {
    report_logprobs(logits, plan_.header.vocab, advance.logprobs, event);
  }
  event.time_ns = now_ns();
  running.next = token;
  if (running.seen.penalises()) running.seen.note(token, true);
  const std::vector<int32_t>& stops = advance.stop_ids;
  running.done = ++running.drawn == advance.budget ||
                 std::find(stops.begin(), stops.end(), token) != stops.end();
  ring_.push(event);
}

}  // namespace monolane
