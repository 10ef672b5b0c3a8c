// The logits of llama.cpp, whole and exact: its own tools write them rounded, and of half the
// tokens.
//
//     llama_logits MODEL.gguf CONTEXT
//
// Reads texts from stdin, each an int32 count and as many int32 tokens, at most CONTEXT, and writes
// the logits of each to stdout: float32 [count, vocabulary]. Everything else is llama.cpp's
// default. bench/formats.py compiles it against the llama.cpp that it measures.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "llama_logits: %s\n", what);
  std::exit(1);
}

void say_errors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) fail("expected MODEL.gguf CONTEXT");
  llama_log_set(say_errors, nullptr);
  llama_backend_init();
  llama_model_params of_model = llama_model_default_params();
  of_model.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(arguments[1], of_model);
  if (model == nullptr) fail("the model cannot be loaded");

  const int context = std::atoi(arguments[2]);
  llama_context_params of_run = llama_context_default_params();
  of_run.n_ctx = of_run.n_batch = static_cast<uint32_t>(context);
  of_run.n_threads = of_run.n_threads_batch = 1;  // on a busy machine two wait for each other
  llama_context* run = llama_init_from_model(model, of_run);
  if (run == nullptr) fail("no context can be made");

  const size_t vocabulary = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  llama_batch batch = llama_batch_init(context, 0, 1);
  std::vector<int32_t> ids(static_cast<size_t>(context));  // [tokens of the text]
  int32_t tokens = 0;
  while (std::fread(&tokens, sizeof tokens, 1, stdin) == 1) {
    if (tokens < 1 || tokens > context) fail("expected a text of 1 to CONTEXT tokens");
    const auto whole = static_cast<size_t>(tokens);
    if (std::fread(ids.data(), sizeof(int32_t), whole, stdin) != whole) fail("a text was cut");
    batch.n_tokens = tokens;
    for (int32_t i = 0; i < tokens; ++i) {
      batch.token[i] = ids[static_cast<size_t>(i)];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    llama_memory_clear(llama_get_memory(run), true);
    if (llama_decode(run, batch) != 0) fail("the text cannot be read");
    for (int32_t i = 0; i < tokens; ++i)
      std::fwrite(llama_get_logits_ith(run, i), sizeof(float), vocabulary, stdout);
    std::fflush(stdout);
  }
  return std::ferror(stdout) ? 1 : 0;
}
