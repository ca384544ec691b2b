#include <sherd/train/guards/repeat_step.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/fsdp/runtime.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr int64_t kCopiedBytes = int64_t{4} << 20;

struct Item {
  std::string what;
  Tensor live;
  Tensor copy;  // host memory
};

// Everything on this rank that a step may change.
std::vector<Item> items_of(ModuleBase& root, const Optimizer& optimizer) {
  std::vector<Item> all;
  const auto add = [&](std::string what, const Tensor& live) {
    if (live.defined() && live.numel() > 0) all.push_back({std::move(what), live, {}});
  };
  for (auto& [name, p] : root.named_parameters()) {
    add("weights of " + name, p.shard());
    add("low halves of weights of " + name, p.shard_low());
  }
  for (const StateTensor& s : optimizer.state()) {
    add(fmt::format("optimizer state '{}' of {}", s.key, s.param.name()), s.local);
    add(fmt::format("scales of optimizer state '{}' of {}", s.key, s.param.name()), s.scales);
  }
  for (const OwnedState& s : optimizer.owned_state())
    add(fmt::format("optimizer state '{}' of {}", s.key, s.param.name()), s.local);
  for (const StateCounter& c : optimizer.counters())
    add(fmt::format("optimizer counter '{}' of {}", c.key, c.param.name()), c.value);
  for (const auto& [name, b] : root.named_buffers()) add("buffer " + name, b.data());
  return all;
}

int64_t bytes_of(const std::vector<Item>& items) {
  int64_t bytes = kCopiedBytes;
  for (const Item& item : items) bytes += item.live.nbytes();
  return bytes;
}

std::string value_at(DType dtype, const char* bytes, int64_t element) {
  const char* at = bytes + element * size_of(dtype);
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return fmt::format("{:.9g} ({:#010x})", value, std::bit_cast<uint32_t>(value));
  }
  std::string bits;
  for (int64_t i = size_of(dtype); i-- > 0;) bits += fmt::format("{:02x}", static_cast<unsigned char>(at[i]));
  return "0x" + bits;
}

class StateCopy {
 public:
  StateCopy(ModuleBase& root, const Optimizer& optimizer)
      : stream_(runtime_of(root).device().compute()), items_(items_of(root, optimizer)) {
    Device& device = stream_.device();
    piece_ = Tensor::host(device, {kCopiedBytes}, DType::u8, MemoryClass::scratch, "repeated step");
    for (Item& item : items_) {
      item.copy =
          Tensor::host(device, {item.live.nbytes()}, DType::u8, MemoryClass::scratch, "repeated step");
      ops::copy(stream_, item.copy, item.live.bytes());
    }
    stream_.synchronize();
  }

  int64_t bytes() const { return bytes_of(items_); }

  // The model gets what was copied, the copy what the model had: one copy serves both runs.
  void exchange() {
    for (const Item& item : items_)
      for_pieces(item, [&](const Tensor& live, const Tensor& copy, const Tensor& piece, int64_t) {
        ops::copy(stream_, piece, live);
        ops::copy(stream_, live, copy);
        ops::copy(stream_, copy, piece);
        return true;
      });
    stream_.synchronize();
  }

  // Returns the first difference; the copy has the first run's results.
  std::string first_difference() {
    std::string found;
    for (const Item& item : items_) {
      for_pieces(item, [&](const Tensor& live, const Tensor& copy, const Tensor& piece, int64_t begin) {
        ops::copy(stream_, piece, live);
        stream_.synchronize();
        const auto* first = static_cast<const char*>(copy.raw());
        const auto* second = static_cast<const char*>(piece.raw());
        if (std::memcmp(first, second, static_cast<size_t>(piece.numel())) == 0) return true;
        const int64_t byte = std::mismatch(first, first + piece.numel(), second).first - first;
        const DType dtype = item.live.dtype();
        const int64_t element = byte / size_of(dtype);
        found = fmt::format("{}, element {} of this rank's {}: {} and then {}", item.what,
                            begin / size_of(dtype) + element, item.live.numel(),
                            value_at(dtype, first, element), value_at(dtype, second, element));
        return false;
      });
      if (!found.empty()) break;
    }
    return found;
  }

 private:
  // Pieces are whole elements, since 4 MiB is a multiple of every dtype's size.
  template <class F>
  void for_pieces(const Item& item, F f) {
    const Tensor live = item.live.bytes();
    for (int64_t at = 0; at < live.numel(); at += kCopiedBytes) {
      const int64_t end = std::min(live.numel(), at + kCopiedBytes);
      if (!f(live.flat(at, end), item.copy.flat(at, end), piece_.flat(0, end - at), at)) return;
    }
  }

  Stream& stream_;
  std::vector<Item> items_;
  Tensor piece_;
};

// NaN equals NaN here: bits are compared.
std::string difference_of(const StepFigures& first, const StepFigures& second) {
  const auto differ = [](double a, double b) {
    return std::bit_cast<uint64_t>(a) != std::bit_cast<uint64_t>(b);
  };
  if (differ(first.loss, second.loss))
    return fmt::format("the loss: {:.17g} and then {:.17g}", first.loss, second.loss);
  if (differ(first.grad_norm, second.grad_norm))
    return fmt::format("the gradient norm: {:.9g} and then {:.9g}", first.grad_norm, second.grad_norm);
  return "";
}

bool any_rank(Communicator& world, bool here) {
  Stream& stream = world.device().compute();
  int64_t word = here ? 1 : 0;
  const Tensor t = Tensor::empty(world.device(), {1}, DType::i64, MemoryClass::message, "repeated step");
  ops::copy_from_host(stream, t, &word, sizeof word);
  world.all_reduce(stream, t, ReduceOp::max);
  ops::copy_to_host(stream, &word, t);
  return word != 0;
}

}  // namespace

RepeatedStep repeat_step(ModuleBase& root, Optimizer& optimizer, const std::function<StepFigures()>& step) {
  ShardRuntime& runtime = runtime_of(root);
  StateCopy copy(root, optimizer);
  const int64_t steps = optimizer.steps(), skipped = optimizer.skipped();
  const StepFigures first = step();
  WeightsChange change(runtime);
  copy.exchange();
  change.end();
  optimizer.set_steps(steps);
  optimizer.set_skipped(skipped);
  const StepFigures second = step();
  RepeatedStep result{.same = false, .difference = difference_of(first, second), .bytes = copy.bytes()};
  const std::string state = copy.first_difference();
  // The figures are the same on every rank, the state is this rank's: both say where it began.
  if (!state.empty()) result.difference += (result.difference.empty() ? "" : "; ") + state;
  result.same = !any_rank(*runtime.mesh().world(), !result.difference.empty());
  return result;
}

int64_t repeat_bytes(ModuleBase& root, const Optimizer& optimizer) {
  return bytes_of(items_of(root, optimizer));
}

}  // namespace sherd
