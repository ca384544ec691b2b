#include <sherd/checkpoint/detail/wanted.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <sherd/checkpoint/detail/owned_boxes.h>
#include <sherd/checkpoint/detail/state_names.h>
#include <sherd/checkpoint/detail/tied_names.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kUploadBytes = int64_t{16} << 20;

std::vector<GlobalRun> runs_of(const OwnedState& state) {
  std::vector<GlobalRun> runs;
  int64_t local = 0;
  for (const Box& box : boxes_of(state)) {
    const int64_t count = numel_of(box.size), slice = count / box.size[0];
    runs.push_back({ParamIndex(local), ParamIndex(box.offset[0] * slice), count});
    local += count;
  }
  return runs;
}

}  // namespace

std::vector<Box> Wanted::boxes() const {
  if (owned) return boxes_of(*owned);
  if (!whole()) return param.global_boxes(param.shard_range());
  if (local.numel() == 0) return {};
  return {{Shape(shape.size(), 0), shape}};
}

std::vector<GlobalRun> Wanted::runs() const {
  if (owned) return runs_of(*owned);
  if (!whole()) return param.global_runs(param.shard_range());
  if (local.numel() == 0) return {};
  return {{ParamIndex(0), ParamIndex(0), local.numel()}};
}

std::vector<Wanted> wanted(ModuleBase& root, bool model, const std::vector<const Optimizer*>& optimizers) {
  std::vector<Wanted> all;
  const TiedNames tied(root);
  if (model) {
    for (auto& [name, p] : root.named_parameters())
      all.push_back({Section::model,
                     name,
                     p,
                     at_least_1d(p.global_shape()),
                     p.shard(),
                     p.shard_low(),
                     false,
                     false,
                     {},
                     tied.of(name)});
    for (auto& [name, b] : root.named_buffers())
      if (b.persistent())
        all.push_back({Section::model,
                       name,
                       {},
                       at_least_1d(b.shape()),
                       b.data(),
                       {},
                       false,
                       false,
                       {},
                       tied.of(name)});
  }
  const auto add_state = [&](const Parameter& p, const std::string& key, const Shape& shape,
                             const Tensor& local, bool count, std::optional<OwnedState> owned = {}) {
    std::vector<std::string> others = tied.of(p.name());
    for (std::string& other : others) other = state_name(other, key);
    all.push_back({Section::optim,
                   state_name(p.name(), key),
                   p,
                   shape,
                   local,
                   {},
                   count,
                   false,
                   std::move(owned),
                   std::move(others)});
  };
  for (const Optimizer* optimizer : optimizers) {
    for (const StateTensor& s : optimizer->state()) {
      add_state(s.param, s.key, at_least_1d(s.param.global_shape()), s.local, false);
      all.back().averages_weights = s.averages_weights;
      all.back().rest = s.rest();
    }
    for (const OwnedState& s : optimizer->owned_state())
      add_state(s.param, s.key, s.shape, s.local, false, s);
    for (const StateCounter& c : optimizer->counters()) add_state(c.param, c.key, {1}, c.value, true);
  }
  return all;
}

Tensor Wanted::values(Stream& stream) const {
  return low.defined() || rest.quantized() ? f32_values(stream) : local;
}

Tensor Wanted::f32_values(Stream& stream) const {
  if (!rest.quantized()) return ops::weights_as_f32(stream, local, low);
  const Tensor values =
      Tensor::empty(stream.device(), {local.numel()}, DType::f32, MemoryClass::scratch, "fp32 state");
  const BlockSegment segment = segment_of(0, values);
  ops::dequantize(stream, {&segment, 1});
  return values;
}

BlockSegment Wanted::segment_of(int64_t begin, const Tensor& values) const {
  return {static_cast<uint8_t*>(local.raw()) + begin,
          rest.scales.data<float>() + begin / rest.block,
          values.data<float>(),
          values.numel(),
          rest.block,
          rest.code};
}

void Wanted::store(Stream& stream, int64_t at, const Tensor& from) const {
  const int64_t end = at + from.numel();
  if (rest.quantized()) {
    const BlockSegment segment = segment_of(at, from);
    return ops::quantize(stream, {&segment, 1});
  }
  ops::write_weights(stream, local.flat(at, end), low.defined() ? low.flat(at, end) : low, from);
}

void upload(Stream& stream, const Wanted& to, const void* from) {
  const DType dtype = to.rests() ? DType::f32 : to.local.dtype();
  const int64_t size = size_of(dtype), piece = kUploadBytes / size, total = to.local.numel();
  Tensor memory;
  if (dtype != to.local.dtype())
    memory =
        Tensor::empty(stream.device(), {std::min(piece, total)}, dtype, MemoryClass::message, "checkpoint");
  for (int64_t at = 0; at < total; at += piece) {
    const int64_t count = std::min(piece, total - at);
    const Tensor received = memory.defined() ? memory.flat(0, count) : to.local.flat(at, at + count);
    ops::copy_from_host(stream, received, static_cast<const char*>(from) + at * size, count * size);
    if (memory.defined()) to.store(stream, at, received);
    stream.synchronize();
  }
}

std::string check_count(float stored) {
  if (stored >= 0 && stored < 0x1p62f && std::floor(stored) == stored) return "";
  return fmt::format("is {}, no number of steps", stored);
}

}  // namespace sherd
