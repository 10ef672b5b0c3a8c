// How often guesses of one kind were right, newer ones counting for more.
#pragma once

namespace monolane {

struct HitRate {
  float right = 0.0f;
  float all = 0.0f;

  float chance() const { return right / all; }
  void count(bool hit) {
    constexpr float kFade = 0.995f;  // the last 200 guesses weigh most
    right = right * kFade + (hit ? 1.0f : 0.0f);
    all = all * kFade + 1.0f;
  }
};

}  // namespace monolane
