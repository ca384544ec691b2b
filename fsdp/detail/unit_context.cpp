#include <sherd/fsdp/detail/unit_context.h>

#include <fmt/format.h>

#include <utility>

#include <sherd/kernels/random/random.h>

namespace sherd {

void UseLog::add(const char* what, const std::string& unit) {
  // Depends on the order: each entry is hashed with the digest of those before it.
  digest_ = hash64(hash64(digest_, what), unit);
  if (keeps_) lines_.push_back(fmt::format("{} {}", what, unit));
}

namespace {

/// Waits for the stream's operations, as a stream's destructor does; a failure stays unheard.
void finish(Stream* stream) noexcept { stream->wait_issued(); }

std::shared_ptr<Stream> collective_stream(Device& device, int ranks, const char* name) {
  // An operation of another thread costs two context switches and a processor of compute's team. A dry device plans
  // GPUs, too.
  if (ranks == 1 && device.kind() == DeviceKind::cpu && !device.dry()) return {&device.compute(), finish};
  // High priority: peers wait for these collectives while compute kernels saturate this device.
  return device.make_stream(name, StreamPriority::high);
}

}  // namespace

UnitContext::UnitContext(Device& d, int ranks, std::vector<std::string> all, int prefetch, bool overlap)
    : device(d),
      names(std::move(all)),
      overlap_reduce(overlap),
      order(static_cast<int>(names.size()) - 1, prefetch),
      gather(collective_stream(d, ranks, "gather")),
      reduce(collective_stream(d, ranks, "reduce")) {}

void UnitContext::require_whole_step(const std::string& who) const {
  require_whole_weights(who);
  require_trained_weights(who);
  const auto& broken = order.broken();
  if (!broken) return;
  throw InvalidArgument(
      fmt::format("{}: {}: the {} of unit '{}' ended with an exception, and the step with it; skip the batch "
                  "by reset_step() "
                  "with the root module, on all ranks",
                  device.label(), who, broken->backward ? "backward" : "forward",
                  names[static_cast<size_t>(broken->unit)]));
}

void UnitContext::require_whole_weights(const std::string& who) const {
  if (!torn) return;
  throw InvalidArgument(fmt::format(
      "{}: {}: an exception has ended an update of the weights (an optimizer's step, or a load) after a part "
      "of them had "
      "changed, so that they belong to no step; load a checkpoint on all ranks before training continues",
      device.label(), who));
}

void UnitContext::require_trained_weights(const std::string& who) const {
  if (substitutions == 0) return;
  throw InvalidArgument(fmt::format(
      "{}: {}: averages are in the place of the weights (Averaged), for evaluation and exports alone; "
      "end that scope first",
      device.label(), who));
}

}  // namespace sherd
