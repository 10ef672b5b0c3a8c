#include "run/weight_loader.h"

#include <fcntl.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <system_error>

namespace monolane {

WeightLoader::WeightLoader(const Forward& f, const Workers& workers, WorkerThreads& threads,
                           const ExpertFile& experts)
    : f_(f), workers_(workers), threads_(threads) {
  if (experts.file >= 0) open_experts(experts.file);
  for (const PlanPhase& phase : f_.plan.phases) {
    for (int64_t i = 0; i < phase.num_matrices; ++i) left_ += converts(f_.index_of(phase), i);
  }
}

const PlanMatrix& WeightLoader::matrix_of(int64_t phase, int64_t matrix) const {
  if (phase < 0 || phase >= f_.plan.header.phases || matrix < 0 ||
      matrix >= f_.plan.phases[phase].num_matrices) {
    throw std::invalid_argument("matrix: expected one of the plan's phases");
  }
  return f_.plan.phases[phase].matrices[matrix];
}

bool WeightLoader::converts(int64_t phase, int64_t matrix) const {
  const WeightRole role = matrix_of(phase, matrix).role;
  return f_.weights.of(f_.plan.phases[phase].layer).matrix(role).copied() ||
         workers_.front()->weights.stows(phase, matrix);
}

void WeightLoader::convert(int64_t phase, int64_t matrix) {
  if (!converts(phase, matrix)) return;
  std::vector<std::exception_ptr> failed(workers_.size());
  threads_.start([&](int worker) {
    try {
      workers_[worker]->weights.convert(f_.kernels, phase, matrix);
    } catch (...) {
      failed[worker] = std::current_exception();
    }
  });
  threads_.join();
  for (const std::exception_ptr& error : failed) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  --left_;
}

void WeightLoader::open_experts(int file) {
  if (f_.plan.most([](const PlanModule& m) { return m.experts.count; }) == 0) {
    throw std::invalid_argument("expert_memory: expected a mixture of experts, got a dense model");
  }
  size_t bytes = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    bytes += worker->weights.experts()->file_bytes();
  }
  // The room is taken at once, so that there is some for what is read later.
  if (const int error = bytes == 0 ? 0 : posix_fallocate(file, 0, static_cast<off_t>(bytes))) {
    throw std::runtime_error(
        "expert_memory: expected " + std::to_string((bytes >> 20) + 1) +
        " MB of disk for the experts, got: " + std::generic_category().message(error));
  }
  size_t offset = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->weights.experts()->open(file, offset);
    offset += worker->weights.experts()->file_bytes();
  }
}

ExpertCache::Counts WeightLoader::expert_counts() const {
  ExpertCache::Counts all;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->weights.experts() == nullptr) continue;
    const ExpertCache::Counts& counts = worker->weights.experts()->counts();
    all.found += counts.found;
    all.missed += counts.missed;
    all.brought += counts.brought;
  }
  return all;
}

size_t WeightLoader::converted_bytes() const {
  size_t bytes = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) bytes += worker->weights.bytes();
  return bytes;
}

}  // namespace monolane
