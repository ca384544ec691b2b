#include <sherd/optim/detail/gradient_sums.h>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include <sherd/comm/core/same_value.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/squares/exact_sum.h>

namespace sherd {
namespace {

// An accumulator, and behind it the words that show whether all ranks' collectives served the same.
constexpr int64_t kWords = ExactSum::kWords, kStride = kWords + SameValue::kWords;
constexpr const char* kName = "gradient norm";
// Whose sums these are.
constexpr const char *kClips = "clip_grad_norm", *kSteps = "Optimizer::step without clip_grad_norm";

// Ignored parameters differ from rank to rank: they belong to no global norm.
bool counts(const ParamGroup& g) { return g.trainable() && !g.replicated(); }

// Returns the parameters of the group that the sums cover: final gradients, of `set` alone unless it is null.
std::vector<Parameter> chosen_of(const ParamGroup& g, const UpdateSet* set) {
  std::vector<Parameter> chosen;
  for (auto& p : g.params())
    if (g.grad_final(p.index_in_group()) && (set == nullptr || set->holds(p))) chosen.push_back(p);
  return chosen;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

SquaresSegment segment_of(const Parameter& p, int64_t* sum, int64_t* elsewhere) {
  const Tensor g = p.grad_shard();
  return {g.raw(), g.numel(), sum, elsewhere, g.dtype()};
}

Tensor zeros(Device& device, int64_t words) {
  const Tensor t = Tensor::empty(device, {words}, DType::i64, MemoryClass::scratch, kName);
  ops::fill(device.compute(), t, 0);
  return t;
}

// Writes this rank's words behind the accumulator that begins at `at`.
Tensor write_served(ShardRuntime& runtime, const Tensor& sums, int64_t at) {
  const SameValue::Words words = SameValue::encode(runtime.served());
  const Tensor place = sums.flat(at + kWords, at + kStride);
  ops::copy_from_host(runtime.device().compute(), place, words.data(), place.nbytes());
  return place;
}

// The sums of one mesh's parameters. Those spread over the same set of dimensions share an accumulator, whose
// index has bit i set when the set holds dims[i]. The number for kElsewhere is counted in the last one, whose
// words are summed over all dims on their way; so are the words of what was served, which stand behind it.
struct MeshSums {
  const DeviceMesh* mesh;
  std::vector<std::string> dims;  // that spread anything or have separate copies, in the mesh's order
  Tensor sums;

  int64_t index_of(const std::vector<std::string>& of) const {
    int64_t index = 0;
    for (size_t i = 0; i < dims.size(); ++i)
      if (contains(of, dims[i])) index |= int64_t{1} << i;
    return index;
  }
  int64_t count() const { return int64_t{1} << dims.size(); }
  Tensor accumulator(int64_t index) const { return sums.flat(index * kStride, index * kStride + kWords); }
  Tensor served() const { return sums.flat(kWords, kStride); }
  int64_t* elsewhere() const { return accumulator(count() - 1).data<int64_t>() + ExactSum::kElsewhere; }
  bool spreads_over_all_ranks() const {
    int ranks = 1;
    for (auto& d : dims) ranks *= mesh->size(d);
    return ranks == mesh->size();
  }

  // Leaves everything in accumulator 0. Those that dimension i spreads are side by side, 2^i of them, once the
  // dimensions after it are done. Summed over it, they join the ones that it does not spread. Example of two
  // dimensions: a sum of accumulators 2 and 3 over dims[1], then a sum of accumulator 1 over dims[0].
  void reduce(Stream& stream) const {
    for (size_t i = dims.size(); i-- > 0;) {
      const int64_t half = (int64_t{1} << i) * kStride;
      const Tensor low = sums.flat(0, half), high = sums.flat(half, 2 * half);
      const Serving entry(*mesh->comm(dims[i]), Purpose::entry(kClips));
      // One all-reduce for 2^i accumulators: the message is small, so its latency counts.
      mesh->comm(dims[i])->all_reduce(stream, high);
      ops::add_words(stream, low, high);
    }
  }
};

// Returns a pointer that is equal for copies of one mesh, which share their communicators.
const Communicator* identity(const DeviceMesh& m) { return m.comm(m.dims().front().name).get(); }

// One for each mesh (expert parameters have their own), without memory.
std::vector<MeshSums> find_meshes(const std::vector<ParamGroup*>& groups, const UpdateSet* set) {
  std::vector<MeshSums> all;
  for (const ParamGroup* g : groups) {
    const std::vector<Parameter> chosen = chosen_of(*g, set);
    if (!counts(*g) || chosen.empty()) continue;
    auto it = std::find_if(all.begin(), all.end(),
                           [&](const MeshSums& m) { return identity(*m.mesh) == identity(g->mesh()); });
    if (it == all.end()) it = all.insert(all.end(), {&g->mesh(), {}, {}});
    // Ranks of the other dimensions compute the gradient of an uncut parameter each for itself, so that a
    // non-finite one may be on one of them alone. Data-parallel copies come out of one reduction.
    for (auto& d : g->axes().others()) it->dims.push_back(d);
    for (auto& p : chosen)
      for (auto& d : g->axes().spread_over(p.tensor_shard())) it->dims.push_back(d);
  }
  for (MeshSums& m : all) {
    std::vector<std::string> used;
    for (auto& d : m.mesh->dims())
      if (contains(m.dims, d.name)) used.push_back(d.name);
    m.dims = std::move(used);
  }
  return all;
}

}  // namespace

GradientSums sums_by_dimension(ShardRuntime& runtime, const UpdateSet* set, NormKind kind) {
  runtime.wait_gradients();
  Device& device = runtime.device();
  Stream& stream = device.compute();
  const std::vector<ParamGroup*> groups = runtime.groups();
  std::vector<MeshSums> meshes = find_meshes(groups, set);
  int64_t accumulators = 1;  // the last one is for ignored parameters that no mesh's reductions take along
  for (const MeshSums& m : meshes) accumulators += m.count();
  const Tensor memory = zeros(device, accumulators * kStride);
  int64_t at = 0;
  for (MeshSums& m : meshes) {
    m.sums = memory.flat(at, at + m.count() * kStride);
    at += m.count() * kStride;
    // Behind the last accumulator, which every reduction includes.
    write_served(runtime, m.sums, (m.count() - 1) * kStride);
  }
  const Tensor alone = memory.flat(at, at + kWords);
  int64_t* const alone_elsewhere = alone.data<int64_t>() + ExactSum::kElsewhere;

  // A mesh whose sums span all ranks also carries the flags of ignored parameters: no further all-reduce.
  const auto spread = std::find_if(meshes.begin(), meshes.end(),
                                   [](const MeshSums& m) { return m.spreads_over_all_ranks(); });
  bool any_alone = false;
  std::vector<SquaresSegment> segments;
  for (const ParamGroup* g : groups) {
    const std::vector<Parameter> chosen = chosen_of(*g, set);
    if (chosen.empty()) continue;
    if (!counts(*g)) {
      any_alone = any_alone || spread == meshes.end();
      for (auto& p : chosen)
        segments.push_back(
            segment_of(p, nullptr, spread == meshes.end() ? alone_elsewhere : spread->elsewhere()));
      continue;
    }
    const auto m = std::find_if(meshes.begin(), meshes.end(),
                                [&](const MeshSums& s) { return identity(*s.mesh) == identity(g->mesh()); });
    for (auto& p : chosen)
      segments.push_back(
          segment_of(p, m->accumulator(m->index_of(g->axes().spread_over(p.tensor_shard()))).data<int64_t>(),
                     m->elsewhere()));
  }
  kind == NormKind::one ? ops::accumulate_magnitudes(stream, segments)
                        : ops::accumulate_squares(stream, segments);

  GradientSums all;
  for (const MeshSums& m : meshes) {
    m.reduce(stream);
    all.sums.push_back(m.accumulator(0));
    all.served.push_back(m.served());
  }
  // The served words are compared at intervals if no other collective spans all ranks.
  const auto& world = runtime.mesh().world();
  const bool compares =
      spread == meshes.end() && world->size() > 1 && (any_alone || runtime.comparison_due());
  if (compares) {
    static_assert(ExactSum::kElsewhere == kWords - 1, "what travels lies side by side");
    all.served.push_back(write_served(runtime, memory, at));
    const Serving entry(*world, Purpose::entry(kClips));
    // The flags and the words of served() only: these gradients belong to no norm.
    world->all_reduce(stream, memory.flat(at + ExactSum::kElsewhere, at + kStride));
  }
  if (any_alone) all.sums.push_back(alone);
  return all;
}

GradientSums sums_at_once(ShardRuntime& runtime, const UpdateSet* set) {
  runtime.wait_gradients();
  Device& device = runtime.device();
  const Tensor sums = zeros(device, kStride);
  const Tensor served = write_served(runtime, sums, 0);
  auto* const words = sums.data<int64_t>();
  std::vector<SquaresSegment> segments;
  for (const ParamGroup* g : runtime.groups()) {
    for (auto& p : chosen_of(*g, set)) {
      // If several ranks hold the same elements, the first one adds them: one sum over all ranks counts each
      // element once.
      const bool first = counts(*g) && g->axes().holders_of(p.tensor_shard()).index == 0;
      segments.push_back(segment_of(p, first ? words : nullptr, words + ExactSum::kElsewhere));
    }
  }
  ops::accumulate_squares(device.compute(), segments);
  const auto& world = runtime.mesh().world();
  const Serving entry(*world, Purpose::entry(kSteps));
  if (world->size() > 1) world->all_reduce(device.compute(), sums);
  return {{sums.flat(0, kWords)}, {served}};
}

Tensor largest_gradient(ShardRuntime& runtime, const UpdateSet* set) {
  Device& device = runtime.device();
  const Tensor largest = Tensor::empty(device, {1}, DType::f32, MemoryClass::scratch, kName);
  ops::fill(device.compute(), largest, 0);
  std::vector<SquaresSegment> segments;
  for (const ParamGroup* g : runtime.groups()) {
    if (!counts(*g)) continue;
    for (auto& p : chosen_of(*g, set)) segments.push_back(segment_of(p, nullptr, nullptr));
  }
  ops::largest_magnitude(device.compute(), largest, segments);
  const auto& world = runtime.mesh().world();
  // A maximum may count an element more than once, so holders are not distinguished here.
  if (world->size() > 1) world->all_reduce(device.compute(), largest, ReduceOp::max);
  return largest;
}

void compare_served(ShardRuntime& runtime, const std::vector<Tensor>& served) {
  Device& device = runtime.device();
  const auto count = static_cast<int64_t>(served.size());
  const Tensor host =
      Tensor::host(device, {count * SameValue::kWords}, DType::i64, MemoryClass::scratch, "gradient norm");
  ops::fill(device.compute(), host, 0);
  for (int64_t i = 0; i < count; ++i)
    ops::add_words(device.compute(), host.flat(i * SameValue::kWords, (i + 1) * SameValue::kWords),
                   served[static_cast<size_t>(i)]);
  device.compute().submit({"what was served", WorkKind::optimizer}, [host, apart = runtime.ranks_apart()](
                                                                        ExecutionContext& context) {
    context.after([host, apart] {
      const std::span<const int64_t> all(host.data<int64_t>(), static_cast<size_t>(host.numel()));
      for (size_t at = 0; at < all.size(); at += SameValue::kWords)
        // Runs when the device has reached it; the host reads the flag at its next step.
        if (!SameValue::all_equal(all.subspan(at, SameValue::kWords))) *apart = true;
    });
  });
}

namespace {

std::vector<ScaleSegment> pieces(const ShardRuntime& runtime, const UpdateSet* set, bool with_ignored) {
  std::vector<ScaleSegment> pieces;
  for (const ParamGroup* g : runtime.groups()) {
    if (!counts(*g) && !with_ignored) continue;
    for (auto& p : chosen_of(*g, set)) {
      const Tensor grad = p.grad_shard();
      if (grad.dtype() != DType::f32)
        throw NotSupported(fmt::format(
            "clip_grad_value: the gradient of '{}' is {} (FullyShardOptions::grad_dtype); clip by "
            "norm, or keep gradients in f32",
            p.name(), name_of(grad.dtype())));
      pieces.push_back({grad.data<float>(), grad.numel()});
    }
  }
  return pieces;
}

}  // namespace

std::vector<ScaleSegment> clipped_pieces(const ShardRuntime& runtime, const UpdateSet* set) {
  return pieces(runtime, set, false);
}

std::vector<ScaleSegment> pieces_of(const ShardRuntime& runtime, const UpdateSet* set) {
  return pieces(runtime, set, true);
}

}  // namespace sherd
