#include <sherd/checkpoint/state_dict.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <sherd/checkpoint/detail/agreement.h>
#include <sherd/checkpoint/detail/gather_whole.h>
#include <sherd/checkpoint/detail/wanted.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Bytes sent at a time.
constexpr int64_t kSavedBytes = int64_t{16} << 20;

std::vector<Box> all_of(const Shape& shape) {
  if (numel_of(shape) == 0) return {};
  return {{Shape(shape.size(), 0), shape}};
}

HostTensor described(const Wanted& w, std::vector<Box> boxes) {
  int64_t elements = 0;
  for (const Box& b : boxes) elements += numel_of(b.size);
  HostTensor t{
      .dtype = w.rest.quantized() ? DType::f32 : w.dtype(), .shape = w.shape, .boxes = std::move(boxes)};
  t.data.resize(static_cast<size_t>(elements * size_of(t.dtype)));
  return t;
}

HostTensor copied(Stream& stream, const Wanted& w) {
  HostTensor t = described(w, w.boxes());
  if (!t.data.empty()) ops::copy_to_host(stream, t.data.data(), w.values(stream));
  return t;
}

// Everybody gets rank 0's bytes.
void send(Stream& stream, Communicator& world, std::vector<std::byte>& bytes) {
  const auto total = static_cast<int64_t>(bytes.size());
  if (world.size() == 1 || total == 0) return;
  const Tensor memory = Tensor::empty(stream.device(), {std::min(kSavedBytes, total)}, DType::u8,
                                      MemoryClass::message, "state dict");
  for (int64_t at = 0; at < total; at += kSavedBytes) {
    const int64_t count = std::min(kSavedBytes, total - at);
    const Tensor piece = memory.flat(0, count);
    if (world.rank() == 0) ops::copy_from_host(stream, piece, bytes.data() + at, count);
    world.broadcast(stream, piece, 0);
    if (world.rank() == 0) {
      stream.synchronize();
    } else {
      ops::copy_to_host(stream, bytes.data() + at, piece);
    }
  }
}

// Brings state of whole matrices together on every rank: each adds the bits of what it saves to zeros.
Tensor sum_of_owned(Stream& stream, Communicator& world, const Wanted& w) {
  const int64_t size = size_of(w.local.dtype()), bytes = numel_of(w.shape) * size;
  // Two elements of 16 bits share a word: each half is other than zero on one rank at most, so nothing is carried.
  Tensor bits =
      Tensor::empty(stream.device(), {(bytes + 3) / 4}, DType::i32, MemoryClass::message, "state dict");
  ops::fill(stream, bits, 0);
  for (const GlobalRun& run : w.owned->saves ? w.runs() : std::vector<GlobalRun>{})
    ops::copy(stream, bits.bytes().flat(run.global.value * size, (run.global.value + run.count) * size),
              w.local.flat(run.local.value, run.local.value + run.count).bytes());
  world.all_reduce(stream, bits);
  return bits.bytes().flat(0, bytes);
}

HostTensor gathered(Stream& stream, Communicator& world, const Wanted& w, bool on_all) {
  const bool first = world.rank() == 0;
  HostTensor t;
  if (w.owned) {
    const Tensor bits = sum_of_owned(stream, world, w);
    if (first || on_all) {
      t = described(w, all_of(w.shape));
      ops::copy_to_host(stream, t.data.data(), bits);
    }
    stream.synchronize();  // before the memory of `bits` is reused
    return t;
  }
  if (w.whole()) {
    if (first || on_all) t = copied(stream, w);
  } else {
    const std::vector<float> values = gather_whole(stream, w.param, w.f32_values(stream));
    if (first || on_all) t = described(w, all_of(w.shape));
    if (first && t.dtype == DType::bf16) {  // exact: the values were
      auto* const to = reinterpret_cast<bf16*>(t.data.data());
      std::transform(values.begin(), values.end(), to, [](float v) { return bf16(v); });
    } else if (first && !values.empty()) {
      std::memcpy(t.data.data(), values.data(), t.data.size());
    }
  }
  if (on_all) send(stream, world, t.data);
  return t;
}

}  // namespace

HostTensor HostTensor::of(DType dtype, Shape shape, std::span<const std::byte> values) {
  if (shape.empty()) shape = {1};
  if (numel_of(shape) * size_of(dtype) != static_cast<int64_t>(values.size()))
    throw ShapeMismatch(fmt::format("a tensor of shape {} and dtype {} cannot have {} bytes",
                                    to_string(shape), name_of(dtype), values.size()));
  HostTensor t{.dtype = dtype, .shape = std::move(shape), .data = {values.begin(), values.end()}};
  t.boxes = all_of(t.shape);
  return t;
}

bool HostTensor::whole() const { return elements() == numel_of(shape) && boxes == all_of(shape); }

void HostTensor::require(DType wanted) const {
  if (wanted != dtype)
    throw ShapeMismatch(fmt::format("a host tensor of {} was read as {}", name_of(dtype), name_of(wanted)));
}

StateDict state_dict(ModuleBase& root, const Optimizer* optimizer, DictKind kind) {
  ShardRuntime& runtime = runtime_of(root);
  Communicator& world = *runtime.mesh().world();
  Stream& stream = runtime.device().compute();
  Agreement(world, "state_dict")
      .require_equal(static_cast<int64_t>(kind) * 2 + (optimizer != nullptr),
                     "state_dict: the kind of dict, or whether there is an optimizer, differs");
  if (kind != DictKind::sharded) require_same_ranks(runtime, "state_dict");
  if (optimizer != nullptr) runtime.require_trained_weights("state_dict");
  StateDict dict;
  const std::vector<const Optimizer*> none;
  for (const Wanted& w : wanted(root, true, optimizer == nullptr ? none : std::vector{optimizer})) {
    HostTensor t =
        kind == DictKind::sharded ? copied(stream, w) : gathered(stream, world, w, kind == DictKind::on_all);
    if (kind == DictKind::on_first && world.rank() != 0) continue;
    (w.section == Section::model ? dict.model : dict.optimizer).emplace(w.name, std::move(t));
  }
  stream.synchronize();
  if (optimizer != nullptr) dict.steps = optimizer->steps();
  return dict;
}

}  // namespace sherd
