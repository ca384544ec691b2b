#include <sherd/optim/clip.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <sherd/kernels/exact_sum.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kWords = ExactSum::kWords;

// Ignored parameters differ from rank to rank: they belong to no global norm.
bool counts(const ParamGroup& g) { return g.trainable() && !g.replicated(); }

// Accumulators by what shards a group, ordered so that each dimension's are neighbours:
// nothing | inner | inner and outer | outer.
int64_t kind_of(const ParamGroup& g) {
  if (g.sharded_inner()) return g.sharded_outer() ? 2 : 1;
  return g.sharded_outer() ? 3 : 0;
}

}  // namespace

std::shared_ptr<const GradientStats> clip_grad_norm(Module& root, double max_norm) {
  if (!(max_norm >= 0))
    throw InvalidArgument(fmt::format("clip_grad_norm: max_norm {} is negative", max_norm));
  ShardRuntime& runtime = runtime_of(root);
  runtime.require_gradients("clip_grad_norm()");
  runtime.wait_gradients();
  Device& device = runtime.device();
  Stream& stream = device.compute();

  // One accumulator set per mesh; different meshes (expert parameters) reduce on their own dimensions.
  struct PerMesh {
    const FullyShardOptions* options;
    const DeviceMesh* mesh;
    Tensor sums;
    std::array<bool, 4> used{};
  };
  std::vector<PerMesh> meshes;
  for (ParamGroup* g : runtime.groups()) {
    if (!counts(*g)) continue;
    const Communicator* key = g->mesh().comm(g->options().shard_dim).get();
    auto it = std::find_if(meshes.begin(), meshes.end(),
                           [&](auto& m) { return m.mesh->comm(m.options->shard_dim).get() == key; });
    if (it == meshes.end()) {
      meshes.push_back(
          {&g->options(), &g->mesh(), Tensor::empty(device, {4 * kWords}, DType::i64, "gradient norm"), {}});
      it = meshes.end() - 1;
      ops::fill(stream, it->sums, 0);
    }
    const int64_t kind = kind_of(*g);
    it->used[static_cast<size_t>(kind)] = true;
    const Tensor sum = it->sums.flat(kind * kWords, (kind + 1) * kWords);
    for (auto& p : g->params()) ops::accumulate_squares(stream, sum, p.grad_shard());
  }
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, "gradient norm");
  auto stats = std::make_shared<GradientStats>();
  std::vector<Tensor> all;
  for (auto& m : meshes) {
    if (m.used[1] || m.used[2])
      m.mesh->comm(m.options->shard_dim)->all_reduce(stream, m.sums.flat(kWords, 3 * kWords));
    if (m.used[2] || m.used[3])
      m.mesh->comm(m.options->replicate_dim)->all_reduce(stream, m.sums.flat(2 * kWords, 4 * kWords));
    all.push_back(m.sums);
  }
  stream.submit("gradient norm", [all, factor, stats, max_norm](ExecutionContext&) {
    std::array<int64_t, kWords> total{};
    for (auto& t : all)
      for (int64_t i = 0; i < 4 * kWords; ++i) total[static_cast<size_t>(i % kWords)] += t.data<int64_t>()[i];
    stats->norm = ExactSum::norm(total);
    stats->zeros = total[ExactSum::kZeros];
    stats->non_finite = total[ExactSum::kNonFinite];
    float f = 1;
    if (max_norm > 0 && std::isfinite(stats->norm))
      f = std::min(1.0f, static_cast<float>(max_norm) / (stats->norm + 1e-6f));
    *factor.data<float>() = f;
  });
  if (max_norm > 0) {
    for (ParamGroup* g : runtime.groups()) {
      if (!counts(*g)) continue;
      for (auto& p : g->params()) ops::scale_by(stream, p.grad_shard(), factor);
    }
  }
  return stats;
}

}  // namespace sherd
