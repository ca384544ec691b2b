#include <sherd/fsdp/noise_runs.h>

#include <sherd/fsdp/group.h>

namespace sherd {

uint64_t noise_key(const Parameter& p) { return hash64(p.group().seed(), p.name()); }

std::vector<NoiseRun> noise_runs(const Parameter& p, int64_t begin, int64_t count, const Tensor& updates) {
  const int64_t first = p.shard_range().begin.value + begin;
  std::vector<NoiseRun> runs = noise_runs(p, {ParamIndex(first), ParamIndex(first + count)}, updates);
  for (NoiseRun& run : runs) run.begin += begin;
  return runs;
}

std::vector<NoiseRun> noise_runs(const Parameter& p, ParamRange range, const Tensor& updates) {
  const int64_t first = range.begin.value, count = range.size();
  Noise noise{.key = noise_key(p), .count = updates.data<float>(), .first = first};
  const auto& cut = p.tensor_shard();
  const Shape& shape = p.shape();
  const int row_dim = shape.size() == 3 ? 1 : 0;
  if (cut && cut->parts > 1 && cut->dim > 0 && (cut->dim > row_dim || p.row_blocks().empty())) {
    // Every row of the piece is a part of a global row.
    const auto dim = static_cast<size_t>(cut->dim);
    int64_t inner = 1;
    for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
    noise.width = shape[dim] * inner;
    noise.pitch = noise.width * cut->parts;
    noise.offset = noise.width * cut->index;
    return {{0, count, noise}};
  }
  std::vector<NoiseRun> runs;
  for (const GlobalRun& run : p.global_runs(range)) {
    noise.first = run.global.value;
    runs.push_back({run.local.value - first, run.count, noise});
  }
  return runs;
}

}  // namespace sherd
