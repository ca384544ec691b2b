// MPI communicator of one group of ranks, and the reductions that MPI does on it. Private to comm/mpi.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <sherd/kernels/device/dtype.h>

namespace sherd::mpi {

/// A sum over a group in whatever order MPI takes: all of it to every rank, or to each rank its slice.
struct Reduction {
  /// scatter: one slice of `elements` for each rank. Otherwise null, for it is summed up in place.
  const void* send = nullptr;
  void* recv = nullptr;
  int elements = 0;  // of recv
  DType dtype = DType::f32;
  bool scatter = false;
};

/// Whether MPI has this sum: f32 and f64, of at most as many elements as MPI can count. Sums of 16 bits are
/// accumulated in f32, which MPI does not know.
bool has_sum(DType dtype, int64_t elements);

/// The processes of a group, in the order of its ranks, each of which has one process. Freed by free() alone:
/// what is left goes with MPI.
class ProcessGroup {
 public:
  /// Host-blocking; every process of the group calls, and no other. `id` is the same on all of them, and
  /// no other group's of the job. MPI's call cannot be left: a process whose peers do not come within `limit`
  /// ends with exit code 1 and a line that says so.
  /// @throws CommError with what MPI says.
  ProcessGroup(MPI_Comm job, std::span<const int> processes, uint64_t id, std::chrono::milliseconds limit,
               const std::string& name);
  uint64_t id() const { return id_; }
  /// Of the thread that makes all calls of MPI; in the same order on all processes of the group.
  MPI_Request start(const Reduction& reduction) const;
  /// Every process of the group calls.
  void free();

 private:
  const uint64_t id_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace sherd::mpi
