#include <sherd/optim/averaged.h>

#include <fmt/format.h>

#include <string>

#include <sherd/fsdp/weights_change.h>

namespace sherd {
namespace {

// A change of all weights: it waits for everything that reads them, files that the host writes included.
void exchange(Optimizer& optimizer) {
  WeightsChange change(optimizer.runtime());
  change.begin_update();
  optimizer.average()->exchange();
  change.end();
}

}  // namespace

Averaged::Averaged(Optimizer& optimizer) : optimizer_(optimizer) {
  ShardRuntime& runtime = optimizer.runtime();
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("{}: Averaged: {}", runtime.device().label(), why));
  };
  if (optimizer.average() == nullptr)
    refuse("the optimizer keeps no averages of weights; set OptimizerOptions::ema_decay");
  if (optimizer.average()->exchanged()) refuse("another scope of this optimizer is open; end it first");
  runtime.require_whole_weights("Averaged");
  if (const std::string why = runtime.pending(); !why.empty()) refuse(why);
  exchange(optimizer);
  runtime.begin_substitution();
}

Averaged::~Averaged() {
  if (!optimizer_.average()->exchanged()) return;
  bool restored = false;
  try {
    exchange(optimizer_);
    restored = true;
  } catch (...) {  // the next call on the failed stream throws it again
  }
  optimizer_.runtime().end_substitution(restored);
}

}  // namespace sherd
