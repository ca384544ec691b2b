#include <sherd/checkpoint/weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <sherd/checkpoint/safetensors.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Host elements of any float dtype as floats.
template <class T>
std::vector<float> widened(const std::vector<char>& raw, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    T v;
    std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(v);
  }
  return values;
}

std::vector<float> read_floats(const SafetensorsReader& file, const SafetensorsEntry& entry, int64_t first,
                               int64_t count) {
  std::vector<char> raw(static_cast<size_t>(count * size_of(*entry.dtype)));
  file.read(entry, first, count, raw.data());
  switch (*entry.dtype) {
    case DType::bf16:
      return widened<bf16>(raw, count);
    case DType::f16:
      return widened<f16>(raw, count);
    default:
      return widened<float>(raw, count);
  }
}

bool is_readable(const SafetensorsEntry& e) {
  return e.dtype == DType::f32 || e.dtype == DType::bf16 || e.dtype == DType::f16;
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
  for (int r = 0; r < comm.size(); ++r) counts.push_back(layout.piece(index, r % layout.world()).size());
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool first = comm.rank() == 0;
  const Tensor packed = first ? Tensor::empty(stream.device(), {total}, DType::f32, "checkpoint") : Tensor();
  comm.gather_v(stream, packed, counts, p.shard(), 0);
  if (!first) return {};

  const std::vector<float> host = ops::to_floats(stream, packed);
  std::vector<float> whole(host.size());
  const float* from = host.data();
  for (int r = 0; r < comm.size(); ++r) {
    const ParamRange range = layout.piece(index, r % layout.world());
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
  const auto is_first = [&](const MeshDim& d) {
    return std::find(dims.begin(), dims.end(), d.name) != dims.end() || g.mesh().coordinate(d.name) == 0;
  };
  return std::all_of(g.mesh().dims().begin(), g.mesh().dims().end(), is_first) ? comm : nullptr;
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

void export_weights(Module& root, const std::filesystem::path& path,
                    std::map<std::string, std::string> metadata) {
  ShardRuntime& runtime = runtime_of(root);
  check_meshes(runtime);
  Stream& stream = runtime.device().compute();
  const auto params = root.named_parameters();
  std::optional<SafetensorsWriter> writer;
  if (runtime.mesh().world()->rank() == 0) {
    std::vector<SafetensorsSpec> specs;
    for (auto& [name, p] : params) specs.push_back({name, DType::f32, p.global_shape()});
    metadata["format"] = "pt";
    writer.emplace(path, std::move(specs), std::move(metadata));
  }
  for (auto& [name, p] : params) {
    const auto comm = first_copy(p);
    if (!comm) continue;
    const std::vector<float> whole = gather_whole(stream, p, *comm);
    if (writer) writer->append(whole.data(), static_cast<int64_t>(whole.size() * sizeof(float)));
  }
  stream.synchronize();
  if (writer) writer->finish();
}

void import_weights(Module& root, const std::filesystem::path& path) {
  ShardRuntime& runtime = runtime_of(root);
  Stream& stream = runtime.device().compute();
  const SafetensorsReader file(path);
  const auto params = root.named_parameters();
  std::vector<std::string> wrong;
  for (auto& [name, p] : params) {
    const SafetensorsEntry* e = file.find(name);
    if (e == nullptr) {
      wrong.push_back(fmt::format("'{}' is missing", name));
    } else if (!is_readable(*e)) {
      wrong.push_back(fmt::format("'{}' has dtype {} (F32, BF16 and F16 are read)", name, e->dtype_name));
    } else if (e->shape != p.global_shape()) {
      wrong.push_back(fmt::format("'{}' has shape {} where the model has {}", name, to_string(e->shape),
                                  to_string(p.global_shape())));
    }
  }
  for (auto& e : file.entries()) {
    const bool known = std::any_of(params.begin(), params.end(), [&](auto& p) { return p.first == e.name; });
    if (!known) wrong.push_back(fmt::format("'{}' is not a parameter of the model", e.name));
  }
  if (!wrong.empty())
    throw InvalidArgument(fmt::format("{} does not fit the model: {}; export it with the same model flags",
                                      path.string(), fmt::join(wrong, "; ")));

  runtime.begin_weights_change();
  for (auto& [name, p] : params) {
    std::vector<float> values;
    for (const GlobalRun& run : p.global_runs(p.shard_range())) {
      const std::vector<float> some = read_floats(file, *file.find(name), run.global.value, run.count);
      values.insert(values.end(), some.begin(), some.end());
    }
    ops::copy_from_host(stream, p.shard(), values.data(),
                        static_cast<int64_t>(values.size() * sizeof(float)));
  }
  stream.synchronize();
  runtime.weights_changed();
}

}  // namespace sherd
