#include <sherd/checkpoint/weights.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/checkpoint/detail/weights_writer.h>
#include <sherd/kernels/ops/ops.h>

namespace sherd {
namespace {

// Of element `i` in row-major order.
Shape place_in(const Shape& shape, int64_t i) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return at;
}

// Elements that are converted at a time.
constexpr size_t kChunk = size_t{1} << 16;

// Appends values as they are, or rounded to T.
template <class T>
void append(WeightsWriter& writer, const std::string& name, const Shape& shape,
            const std::vector<float>& values) {
  if constexpr (std::is_same_v<T, float>) {
    writer.append(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return;
  }
  std::vector<T> narrow;
  for (size_t begin = 0; begin < values.size(); begin += kChunk) {
    const size_t end = std::min(values.size(), begin + kChunk);
    narrow.clear();
    for (size_t i = begin; i < end; ++i) {
      narrow.emplace_back(values[i]);
      if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(narrow.back())))
        throw InvalidArgument(fmt::format(
            "export_weights: '{}' holds {} at {}, which {} cannot hold; export as f32", name, values[i],
            to_string(place_in(shape, static_cast<int64_t>(i))), name_of(dtype_of<T>())));
    }
    writer.append(narrow.data(), static_cast<int64_t>(narrow.size() * sizeof(T)));
  }
}

using Append = void (*)(WeightsWriter&, const std::string&, const Shape&, const std::vector<float>&);
Append append_as(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return append<float>;
    case DType::bf16:
      return append<bf16>;
    case DType::f16:
      return append<f16>;
    default:
      throw InvalidArgument(
          fmt::format("export_weights: weights are written as f32, bf16 or f16, not as {}", name_of(dtype)));
  }
}

// As Parameter::global_runs() of tensor-parallel piece `index`, which may be another rank's.
std::vector<GlobalRun> runs_on(const Parameter& p, int index, ParamRange range) {
  if (!p.tensor_shard()) return p.global_runs(range);
  TensorShard shard = *p.tensor_shard();
  shard.index = index;
  return global_runs(p.shape(), p.row_blocks(), shard, range);
}

// The whole of a parameter that the ranks of `comm` (see first_copy) hold together. Collective; only its
// first rank gets it, the others get nothing.
std::vector<float> gather_whole(Stream& stream, const Parameter& p, Communicator& comm) {
  const ShardLayout& layout = p.group().layout();
  const int index = p.index_in_group();
  std::vector<int64_t> counts;
  for (int r = 0; r < comm.size(); ++r) counts.push_back(layout.piece(ParamId(index), RankId(r % layout.world())).size());
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool first = comm.rank() == 0;
  const Tensor packed =
      first ? Tensor::empty(stream.device(), {total}, DType::f32, MemoryClass::message, "checkpoint")
            : Tensor();
  comm.gather_v(stream, packed, counts, p.shard(), 0);
  if (!first) return {};

  const std::vector<float> host = ops::to_floats(stream, packed);
  std::vector<float> whole(host.size());
  const float* from = host.data();
  for (int r = 0; r < comm.size(); ++r) {
    const ParamRange range = layout.piece(ParamId(index), RankId(r % layout.world()));
    for (const GlobalRun& run : runs_on(p, r / layout.world(), range)) {
      std::copy_n(from, run.count, whole.begin() + run.global.value);
      from += run.count;
    }
  }
  return whole;
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

// Rank 0 of the root's mesh writes, so that it must be rank 0 of every other mesh, too.
void check_meshes(ShardRuntime& runtime) {
  const Communicator& world = *runtime.mesh().world();
  std::vector<std::string> wrong;
  for (ParamGroup* g : runtime.groups()) {
    const Communicator& own = *g->mesh().world();
    if (own.rank() != world.rank() || own.size() != world.size())
      wrong.push_back(fmt::format("'{}' (mesh {})", g->unit(), g->mesh().describe()));
  }
  if (!wrong.empty())
    throw NotSupported(fmt::format(
        "export_weights: the meshes of these units do not span the root's ranks in the same order: {}",
        fmt::join(wrong, ", ")));
}

}  // namespace

void export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options) {
  const Append write = append_as(options.dtype);
  ShardRuntime& runtime = runtime_of(root);
  check_meshes(runtime);
  Stream& stream = runtime.device().compute();
  const auto params = root.named_parameters();
  std::optional<WeightsWriter> writer;
  if (runtime.mesh().world()->rank() == 0) {
    std::vector<SafetensorsSpec> specs;
    for (auto& [name, p] : params) specs.push_back({name, options.dtype, p.global_shape()});
    auto metadata = options.metadata;
    metadata["format"] = "pt";
    writer.emplace(path, specs, std::move(metadata), options.max_shard_bytes);
  }
  for (auto& [name, p] : params) {
    const auto comm = first_copy(p);
    if (!comm) continue;
    const std::vector<float> whole = gather_whole(stream, p, *comm);
    if (writer) write(*writer, name, p.global_shape(), whole);
  }
  stream.synchronize();
  if (writer) writer->finish();
}

}  // namespace sherd
