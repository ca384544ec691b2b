// Many steps with shapes that vary: what a long run must not let grow.
#pragma once

#include <cstdint>

namespace sherd_bench {

struct Soak {
  int ranks = 4, steps = 3000, settled = 200;
  int64_t dim = 32, layers = 2, seq = 48, max_queued = 1024;
  /// What is tolerated, in percent: growth after `settled` steps; memory without an account.
  double growth = 5, unexplained = 10;
};

/// Trains a small GPT twice, dense and with experts, each batch of another size, and waits for the device
/// only every 500 steps and where the experts do. Prints resident memory every so often, and the figures that
/// are judged: growth after `settled` steps, how much of what the process has taken since its start is
/// accounted for, how far the host was ahead. @returns whether these keep to what is tolerated, and the host
/// to `max_queued`.
bool run_soak(const Soak& soak);

}  // namespace sherd_bench
