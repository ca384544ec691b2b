#include <sherd/checkpoint/detail/gather_whole.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include <sherd/checkpoint/detail/box_runs.h>
#include <sherd/checkpoint/format/coverage.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Returns Parameter::global_boxes() of tensor-parallel piece `index`, which may be another rank's.
std::vector<Box> boxes_on(const Parameter& p, int index, ParamRange range) {
  if (!p.tensor_shard()) return p.global_boxes(range);
  TensorShard shard = *p.tensor_shard();
  shard.index = index;
  return global_boxes(p.shape(), p.row_blocks(), shard, range);
}

// Part of a box that a rank holds, in the order of its elements there.
struct Held {
  Box own;            // the rank's box that it is part of
  int64_t first = 0;  // element of the rank's piece that `own` begins with
  Box common;         // the part
};
struct HeldOnRank {
  std::vector<Held> parts;
  int64_t count = 0;
};

HeldOnRank held(const std::vector<Box>& boxes, const Box& wanted) {
  HeldOnRank all;
  int64_t first = 0;
  for (const Box& own : boxes) {
    if (const auto common = intersect(own, wanted)) {
      all.parts.push_back({own, first, *common});
      all.count += numel_of(common->size);
    }
    first += numel_of(own.size);
  }
  return all;
}

// This rank's elements of a box one after the other: as they lie, where they do.
Tensor packed_part(Stream& stream, const Tensor& local, const HeldOnRank& mine) {
  struct Run {
    int64_t from, to, count;
  };
  std::vector<Run> runs;
  int64_t done = 0;
  for (const Held& part : mine.parts) {
    each_run(part.common, part.own, part.common, [&](int64_t from, int64_t to, int64_t count) {
      const Run run{part.first + from, done + to, count};
      if (!runs.empty() && runs.back().from + runs.back().count == run.from)
        runs.back().count += count;
      else
        runs.push_back(run);
    });
    done += numel_of(part.common.size);
  }
  if (runs.empty()) return local.flat(0, 0);
  if (runs.size() == 1) return local.flat(runs[0].from, runs[0].from + runs[0].count);
  const Tensor packed =
      Tensor::empty(stream.device(), {mine.count}, DType::f32, MemoryClass::message, "checkpoint");
  for (const Run& run : runs)
    ops::copy(stream, packed.flat(run.to, run.to + run.count), local.flat(run.from, run.from + run.count));
  return packed;
}

// Returns the range that cell r holds, counted over all tensor-parallel pieces, one piece after the other.
ParamRange range_on(const Parameter& p, int r) {
  const ShardLayout& layout = p.group().layout();
  const ParamRange piece = layout.piece(ParamId(p.index_in_group()), RankId(r % layout.world()));
  if (!p.tensor_shard()) return piece;
  TensorShard shard = *p.tensor_shard();
  shard.index = r / layout.world();
  return clipped(piece, held_elements(p.shape(), shard));
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

std::vector<float> gather_box(Stream& stream, const Parameter& p, const Tensor& local, const Box& box) {
  const auto comm = first_copy(p);
  if (!comm) return {};
  const ShardLayout& layout = p.group().layout();
  std::vector<HeldOnRank> ranks;
  std::vector<int64_t> counts;
  for (int r = 0; r < comm->size(); ++r) {
    ranks.push_back(held(boxes_on(p, r / layout.world(), range_on(p, r)), box));
    counts.push_back(ranks.back().count);
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool first = comm->rank() == 0;
  const Tensor packed =
      first ? Tensor::empty(stream.device(), {total}, DType::f32, MemoryClass::message, "checkpoint")
            : Tensor();
  comm->gather_v(stream, packed, counts, packed_part(stream, local, ranks[static_cast<size_t>(comm->rank())]),
                 0);
  if (!first) return {};

  const std::vector<float> host = ops::to_floats(stream, packed);
  std::vector<float> whole(static_cast<size_t>(numel_of(box.size)));
  const float* from = host.data();
  for (const HeldOnRank& rank : ranks) {
    for (const Held& part : rank.parts) {
      each_run(part.common, part.common, box, [&](int64_t at, int64_t to, int64_t count) {
        std::copy_n(from + at, count, whole.begin() + to);
      });
      from += numel_of(part.common.size);
    }
  }
  return whole;
}

std::vector<float> gather_whole(Stream& stream, const Parameter& p, const Tensor& local) {
  Shape shape = p.global_shape();
  if (shape.empty()) shape = {1};
  return gather_box(stream, p, local, {Shape(shape.size(), 0), shape});
}

void require_same_ranks(ShardRuntime& runtime, const char* who) {
  runtime.require_whole_weights(who);
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
