#include <sherd/optim/clip.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include <sherd/kernels/exact_sum.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kWords = ExactSum::kWords;

// Ignored parameters differ from rank to rank: they belong to no global norm.
bool counts(const ParamGroup& g) { return g.trainable() && !g.replicated(); }

// Mesh dimensions over which this parameter's gradient elements are spread.
std::vector<std::string> dims_of(const ParamGroup& g, const Parameter& p) {
  std::vector<std::string> dims = g.sharded_over();
  if (p.tensor_shard() && p.tensor_shard()->parts > 1) dims.push_back(p.tensor_shard()->mesh_dim);
  return dims;
}

// The sums of one mesh's parameters. Those spread over the same set of dimensions share an accumulator, whose
// index has bit i set when the set holds dims[i].
struct MeshSums {
  const DeviceMesh* mesh;
  std::vector<std::string> dims;  // that spread anything, in the mesh's order
  Tensor sums;

  int64_t index_of(const std::vector<std::string>& of) const {
    int64_t index = 0;
    for (size_t i = 0; i < dims.size(); ++i)
      if (std::find(of.begin(), of.end(), dims[i]) != of.end()) index |= int64_t{1} << i;
    return index;
  }
  Tensor accumulator(int64_t index) const { return sums.flat(index * kWords, (index + 1) * kWords); }

  // Leaves everything in accumulator 0. Those that dimension i spreads lie side by side, 2^i of them, once
  // the dimensions after it are done; summed over it, they join the ones that it does not spread.
  void reduce(Stream& stream) const {
    for (size_t i = dims.size(); i-- > 0;) {
      const int64_t half = (int64_t{1} << i) * kWords;
      const Tensor low = sums.flat(0, half), high = sums.flat(half, 2 * half);
      mesh->comm(dims[i])->all_reduce(stream, high);
      ops::add_words(stream, low, high);
    }
  }
};

// One for each mesh (expert parameters have their own).
std::vector<MeshSums> make_sums(ShardRuntime& runtime) {
  std::vector<MeshSums> all;
  // Copies of a mesh share their communicators.
  const auto identity = [](const DeviceMesh& m) { return m.comm(m.dims().front().name).get(); };
  for (ParamGroup* g : runtime.groups()) {
    if (!counts(*g)) continue;
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const MeshSums& m) { return identity(*m.mesh) == identity(g->mesh()); });
    if (it == all.end()) it = all.insert(all.end(), {&g->mesh(), {}, {}});
    for (auto& p : g->params())
      for (auto& d : dims_of(*g, p)) it->dims.push_back(d);
  }
  for (MeshSums& m : all) {
    std::vector<std::string> used;
    for (auto& d : m.mesh->dims())
      if (std::find(m.dims.begin(), m.dims.end(), d.name) != m.dims.end()) used.push_back(d.name);
    m.dims = std::move(used);
    m.sums = Tensor::empty(runtime.device(), {kWords << m.dims.size()}, DType::i64, "gradient norm");
    ops::fill(runtime.device().compute(), m.sums, 0);
    for (ParamGroup* g : runtime.groups()) {
      if (!counts(*g) || identity(*m.mesh) != identity(g->mesh())) continue;
      for (auto& p : g->params())
        ops::accumulate_squares(runtime.device().compute(), m.accumulator(m.index_of(dims_of(*g, p))),
                                p.grad_shard());
    }
  }
  return all;
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

  std::vector<Tensor> sums;
  for (const MeshSums& m : make_sums(runtime)) {
    m.reduce(stream);
    sums.push_back(m.accumulator(0));
  }
  const Tensor factor = Tensor::empty(device, {1}, DType::f32, "gradient norm");
  auto stats = std::make_shared<GradientStats>();
  const Tensor total = Tensor::host(device, {kWords}, DType::i64, "gradient norm");
  ops::clip_factor(stream, factor, total, sums, max_norm);
  stream.submit("gradient norm", [total, stats](ExecutionContext& context) {
    context.after([total, stats] {
      const std::span<const int64_t> words(total.data<int64_t>(), kWords);
      stats->norm = ExactSum::norm(words);
      stats->zeros = words[ExactSum::kZeros];
      stats->non_finite = words[ExactSum::kNonFinite];
    });
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
