// Kernel throughput of a device: bytes per second beside a copy's, operations per second beside a matrix
// product's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sherd/kernels/device/dtype.h>

#include "commands.h"
#include "measure.h"

namespace sherd_bench {

struct DeviceBench {
  std::string device = "cuda";  // or "cpu"
  int threads = 0;              // of a CPU kernel; 0: all cores
  std::string size;             // "small" or "full"; empty: full on a GPU, small elsewhere
  int rounds = 7;
  std::string json;     // file, or empty
  std::string working;  // newton_schulz: dtype between products; empty: fp16 on a GPU, fp32 elsewhere
  bool tf32 = false;
  std::string symmetric_products = "auto";  // as in DeviceOptions
  std::string attention = "auto";           // likewise

  bool full() const { return size.empty() ? device == "cuda" : size == "full"; }
};

std::shared_ptr<sherd::Device> make_device(const DeviceBench& bench);
/// Returns the device's own name and its use, for headings.
std::string title_of(const DeviceBench& bench);

/// The two ceilings: c = ab of square matrices, and a copy.
Row measure_gemm(sherd::Device& device, const DeviceBench& bench, sherd::DType dtype);
Row measure_copy(sherd::Device& device, const DeviceBench& bench);

void add_device_options(CLI::App& command, DeviceBench& bench);

}  // namespace sherd_bench
