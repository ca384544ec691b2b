#include <sherd/checkpoint/detail/gather_whole.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include <sherd/kernels/ops/ops.h>

namespace sherd {
namespace {

// As Parameter::global_runs() of tensor-parallel piece `index`, which may be another rank's.
std::vector<GlobalRun> runs_on(const Parameter& p, int index, ParamRange range) {
  if (!p.tensor_shard()) return p.global_runs(range);
  TensorShard shard = *p.tensor_shard();
  shard.index = index;
  return global_runs(p.shape(), p.row_blocks(), shard, range);
}

// The ranks that hold one copy of a parameter together, or null where none of them is world rank 0. The order
// is that of the layout's cells, for one piece of a tensor-parallel parameter after the other. Collective.
std::shared_ptr<Communicator> first_copy(const Parameter& p) {
  const ParamGroup& g = p.group();
  std::vector<std::string> dims = g.sharded_over();
  if (p.tensor_shard() && p.tensor_shard()->parts > 1) dims.insert(dims.begin(), p.tensor_shard()->mesh_dim);
  auto comm = g.mesh().flatten(dims);
  return g.axes().holders_of(p.tensor_shard()).index == 0 ? comm : nullptr;
}

}  // namespace

std::vector<float> gather_whole(Stream& stream, const Parameter& p, const Tensor& local) {
  const auto comm = first_copy(p);
  if (!comm) return {};
  const ShardLayout& layout = p.group().layout();
  const ParamId id(p.index_in_group());
  std::vector<int64_t> counts;
  for (int r = 0; r < comm->size(); ++r)
    counts.push_back(layout.piece(id, RankId(r % layout.world())).size());
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool first = comm->rank() == 0;
  const Tensor packed =
      first ? Tensor::empty(stream.device(), {total}, DType::f32, MemoryClass::message, "checkpoint")
            : Tensor();
  comm->gather_v(stream, packed, counts, local, 0);
  if (!first) return {};

  const std::vector<float> host = ops::to_floats(stream, packed);
  std::vector<float> whole(host.size());
  const float* from = host.data();
  for (int r = 0; r < comm->size(); ++r) {
    const ParamRange range = layout.piece(id, RankId(r % layout.world()));
    for (const GlobalRun& run : runs_on(p, r / layout.world(), range)) {
      std::copy_n(from, run.count, whole.begin() + run.global.value);
      from += run.count;
    }
  }
  return whole;
}

void require_same_ranks(ShardRuntime& runtime, const char* who) {
  const Communicator& world = *runtime.mesh().world();
  std::vector<std::string> wrong;
  for (ParamGroup* g : runtime.groups()) {
    const Communicator& own = *g->mesh().world();
    if (own.rank() != world.rank() || own.size() != world.size())
      wrong.push_back(fmt::format("'{}' (mesh {})", g->unit(), g->mesh().describe()));
  }
  if (!wrong.empty())
    throw NotSupported(
        fmt::format("{}: the meshes of these units do not span the root's ranks in the same order: {}", who,
                    fmt::join(wrong, ", ")));
}

}  // namespace sherd
