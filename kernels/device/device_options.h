// Options of a device, and the names of their values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sherd/kernels/device/kernel_set.h>
#include <sherd/kernels/device/run_ahead.h>

namespace sherd {

enum class DeviceKind { cpu, cuda };

/// Method by which a GPU computes Newton-Schulz's symmetric products in 16 bits. automatic is called "auto".
enum class SymmetricProducts {
  automatic,  // hopper where the GPU is of compute capability 9.0
  blocks,     // by cuBLASLt
  hopper  // a kernel for 9.0 that does half the work; other GPUs use blocks then, with a warning on stderr
};

/// Attention kernels of a GPU in bf16. automatic is called "auto".
enum class AttentionMethod {
  automatic,  // cudnn where it is compiled in and found, 9.0.0 or newer
  own,        // sherd's kernels
  cudnn
};

struct DeviceOptions {
  /// Read by launch() alone. cuda: rank r uses GPU r modulo the number of GPUs; in a job of several processes r is the process's
  /// index on its host.
  DeviceKind kind = DeviceKind::cpu;
  /// Names the owner in messages. launch() sets it to "rank R".
  std::string label = "rank 0";
  /// CPU: cpu or reference.
  KernelSet kernels = KernelSet::cpu;
  /// Threads one kernel may use. 0: with launch() cores of this process / ranks (of an MPI process its share of its
  /// host's cores), at least 1; else 1. Cores are those of the affinity mask, or fewer by the control group's CPU quota.
  /// On hosts with several NUMA nodes, CPU ranks that are threads stay on one node each (processors.h).
  int threads = 0;
  /// Maximum number of bytes held, live ones and those kept for reuse; 0 = no limit.
  int64_t memory_limit = 0;
  /// CPU: folder of the file that is Device::host_tier(). Empty: it is memory of the process.
  std::string offload_folder = {};
  /// Maximum lead of the host: unfinished operations (kernels, collectives, events) that one stream holds,
  /// and bytes of copies from the host. A host thread that queues more waits; see RunAhead.
  int64_t max_queued_work = RunAhead::kWork;
  int64_t max_queued_bytes = RunAhead::kBytes;
  /// CUDA: index of the GPU in the process. launch() sets it.
  int ordinal = 0;
  /// CUDA: products of f32 matrices in tf32 (10 bits of mantissa, several times faster) instead of f32.
  bool tf32 = false;
  /// CUDA.
  SymmetricProducts symmetric_products = SymmetricProducts::automatic;
  /// CUDA. Sherd's kernels compute what cuDNN cannot in any case: head_dim above 128 or not a multiple of 8, maxima for
  /// QK-clip before cuDNN 9.14. cuDNN needs up to 1 GiB of scratch memory, and does not keep non-finite keys and values
  /// from rows that the mask hides them from.
  AttentionMethod attention = AttentionMethod::automatic;
};

/// Names as enumerators are spelled. parse_: @throws InvalidArgument listing the legal names. name_of:
/// @throws InvalidArgument for a value that is not an enumerator.
DeviceKind parse_device_kind(std::string_view name);
/// Without KernelSet::cuda.
KernelSet parse_cpu_kernels(std::string_view name);
SymmetricProducts parse_symmetric_products(std::string_view name);
AttentionMethod parse_attention(std::string_view name);
const char* name_of(DeviceKind k);
const char* name_of(KernelSet k);
const char* name_of(SymmetricProducts s);
const char* name_of(AttentionMethod a);

}  // namespace sherd
