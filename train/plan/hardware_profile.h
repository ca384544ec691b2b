// Hardware profile: rates of products, memory and links, by which a step's time is predicted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/kernels/device/dtype.h>
#include <sherd/kernels/device/operation.h>

namespace sherd {

/// Rate at one size of an operation.
struct SizedRate {
  double size = 0, rate = 0;
};
/// Returns the rate at a size, interpolated between logarithms; beyond the ends that of the end.
/// @pre `rates` ascend by size and are not empty.
double rate_at(const std::vector<SizedRate>& rates, double size);

using OperationFactors = std::map<std::string, double, std::less<>>;

/// Rates of operations by kind, each by Work::width: FLOP/s of those that have FLOPs, bytes/s of the others. A kind that is missing has
/// the general rates of products and of memory.
using KindRates = std::map<WorkKind, std::vector<SizedRate>>;

/// Link of collectives.
struct LinkProfile {
  double latency_s = 0;  // of each doubling of the ranks
  /// Bus bandwidth of a rank, bytes/s, by the bytes that a rank receives.
  std::vector<SizedRate> bytes_per_s = {};
};

struct HardwareProfile {
  std::string name;
  int64_t memory_bytes = 0;  // of a rank
  /// Part of that memory that NCCL takes for a communicator of several ranks. Unknown (0) in the named
  /// profiles.
  int64_t communicator_bytes = 0;
  int ranks_per_host = 8;
  /// Collectives take their time from the cores that compute: ranks on CPUs whose threads use all cores.
  bool shares_cores = false;
  /// Dense peaks of the data sheet, FLOP/s, of products of 16-bit and of f32 factors; 0: unknown.
  double peak_flops = 0, peak_flops_32 = 0;
  double memory_bytes_per_s = 0;
  /// Of memory that the allocator takes from the system and returns to it; 0: a tenth of memory_bytes_per_s.
  double fresh_bytes_per_s = 0;
  double offload_bytes_per_s = 0;  // between device and host memory, each way
  double operation_s = 0;          // least time of an operation
  /// FLOP/s by the FLOPs of a product, of 16-bit and of 32-bit factors.
  std::vector<SizedRate> products_16 = {}, products_32 = {};
  LinkProfile host = {};  // between ranks of one host
  /// Between hosts, of one rank's adapter; ranks of a host in one group add theirs, up to `host`.
  LinkProfile network = {};
  /// Rates in steps that compute in 16 or in 32 bits; of kinds with FLOPs they are bounds beside those of `products`.
  KindRates rates_16 = {}, rates_32 = {};
  /// Times of operations beside those by the rates above, by their names in traces, in steps that compute in 16 or in
  /// 32 bits; 1 where an operation is missing.
  OperationFactors factors_16 = {}, factors_32 = {};
  /// Parts of the rates above that a training step reaches.
  double compute_efficiency = 1, communication_efficiency = 1;

  const std::vector<SizedRate>& products(DType dtype) const {
    return size_of(dtype) == 2 ? products_16 : products_32;
  }
  /// Returns the dense peak of products of such factors, FLOP/s: what MFU is a part of. nullopt: unknown.
  /// @param tf32 of f32 factors (DeviceOptions::tf32): half of the 16-bit peak, as on every GPU that has a profile.
  std::optional<double> dense_peak(DType dtype, bool tf32 = false) const;
};

/// Name of the profiles that measure_hardware() returns.
inline constexpr const char* kMeasuredHardware = "measured";

/// Returns the names of the profiles of hardware_profile(): "a100", ... "cpu".
std::vector<std::string> hardware_names();
/// Returns the profile of this name, or of this file. @throws InvalidArgument listing the names, or naming the key
/// that is missing, unknown or wrong; IoError.
[[nodiscard]] HardwareProfile hardware_profile(const std::string& name_or_file);
/// Returns the profile of a GPU by its driver's name (hardware_of()), such as "NVIDIA H100 80GB HBM3". nullopt: no
/// profile is of this GPU, or it is a part (MIG) or another form of one (PCIe, NVL) whose peak differs.
std::optional<HardwareProfile> profile_of_device(std::string_view name);
/// Parses the text of a file. @param source names it in messages.
[[nodiscard]] HardwareProfile parse_hardware(std::string_view text, const std::string& source);
/// Returns the text that parse_hardware() reads.
std::string to_text(const HardwareProfile& profile);

}  // namespace sherd
