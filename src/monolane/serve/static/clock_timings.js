// Timings of a server that sends none: by this browser's clock, and tokens by its `usage`, or else one
// for each event. The names are those of docs/serving.md.

export class ClockTimings {
  #sent = performance.now();
  #first = null; // ms, when the first text came
  #last = 0;
  #events = 0;
  #usage = {};

  /** Take an event that came at `now`; returns the timings so far, or null before the first text. */
  take(event, now) {
    this.#usage = event.usage ?? this.#usage;
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    const text = delta.content || delta.reasoning_content || delta.tool_calls || choice?.text;
    if (text) {
      this.#first ??= now;
      this.#last = now;
      this.#events += 1;
    }
    if (this.#first === null) return null;
    const tokens = this.#usage.completion_tokens ?? this.#events;
    const ms = this.#last - this.#first;
    return {
      prompt_n: this.#usage.prompt_tokens ?? 0,
      cache_n: this.#usage.prompt_tokens_details?.cached_tokens ?? 0,
      predicted_n: tokens,
      predicted_ms: ms,
      predicted_per_second: ms > 0 && tokens > 1 ? ((tokens - 1) * 1000) / ms : 0,
      ttft_ms: this.#first - this.#sent,
    };
  }
}
