// Times of work on a device's stream, and tables of what they say.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <sherd/kernels/device/device.h>

namespace sherd_bench {

/// Seconds of one call.
struct Timing {
  double median = 0;
  /// (slowest - fastest) / median, of batches.
  double spread = 0;
  int64_t calls = 0;  // in a batch
};

struct MeasureOptions {
  int rounds = 7;        // batches
  double batch_ms = 20;  // length of a batch, at least one call
};

/// `work` submits to the device's compute stream. Two calls warm up; then batches of equal numbers of calls,
/// each between two synchronisations, so that a batch is long beside what they cost.
Timing measure(sherd::Device& device, const MeasureOptions& options, const std::function<void()>& work);

/// The middle one, or the larger of two.
double median(std::vector<double> values);

/// Ceiling that a row is compared with.
enum class Ceiling { none, copy, gemm };

struct Row {
  std::string name, shape;
  Timing timing;
  double bytes = 0, flops = 0;  // of one call, as counted; one of the two
  double of_ceiling = 0;        // 0: no ceiling

  double gb_per_s() const { return bytes / timing.median * 1e-9; }
  double tflop_per_s() const { return flops / timing.median * 1e-12; }
};

/// A human-readable table.
std::string format_rows(const std::vector<Row>& rows);

/// {"suite": ..., "device": ..., "rows": [{"name", "shape", "us", "spread", "calls", "bytes", "flops",
/// "gb_per_s", "tflop_per_s", "of_ceiling"}]}; what does not apply is missing. @throws sherd::IoError.
void write_rows(const std::string& path, const std::string& suite, const std::string& device,
                const std::vector<Row>& rows);

}  // namespace sherd_bench
