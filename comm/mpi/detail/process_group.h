// MPI communicator of one group of ranks, and the reductions that MPI does on it. Private to comm/mpi.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <sherd/kernels/device/dtype.h>

namespace sherd::mpi {

/// A sum over a group in MPI's order: the whole sum on every rank, or one slice on each.
struct Reduction {
  /// scatter: one slice of `elements` for each rank. Otherwise null: the sum is in place.
  const void* send = nullptr;
  void* recv = nullptr;
  int elements = 0;  // of recv
  DType dtype = DType::f32;
  bool scatter = false;
};

/// Returns whether MPI can compute this sum: f32 and f64, of at most as many elements as MPI can count.
/// 16-bit sums are accumulated in f32, which MPI does not support.
bool has_sum(DType dtype, int64_t elements);

/// MPI communicator of a group, whose ranks each have a process of their own, in the order of ranks. Freed by
/// free() alone; otherwise it ends with MPI.
class ProcessGroup {
 public:
  /// Host-blocking; every process of the group calls, and no other. `id` is the same on all of them, and
  /// unique in the job. MPI's call cannot be cancelled: a process whose peers do not come within `limit` ends
  /// with exit code 1 and a line that says so.
  /// @throws CommError with MPI's error text.
  ProcessGroup(MPI_Comm job, std::span<const int> processes, uint64_t id, std::chrono::milliseconds limit,
               const std::string& name);
  uint64_t id() const { return id_; }
  /// Starts a reduction. Called by the MPI thread; in the same order on all processes of the group.
  MPI_Request start(const Reduction& reduction) const;
  /// Frees the communicator. Every process of the group calls.
  void free();

 private:
  const uint64_t id_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace sherd::mpi
