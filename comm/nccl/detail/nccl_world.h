// Communicator over NCCL: one rank per GPU, ranks are processes or threads.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <sherd/comm/bootstrap/bootstrap.h>
#include <sherd/comm/core/communicator.h>
#include <sherd/comm/nccl/nccl_options.h>

namespace sherd {

/// Makes one rank's world communicator; `store` is the job's (connect_store). Every rank of the job calls.
///
/// Differences to Communicator's contract:
/// - f32 and f64 sums: NCCL's own order, which is fixed for a given number of ranks, size and machine but is
///   not the pairwise tree, and without options.nvls the same in every call; two orders differ by at most about (size-1) * 2^-23 (2^-52) times the sum of the
///   magnitudes. bf16 and f16 sums always have Communicator's bits, as f32 and f64 do with exact_order.
/// - max and min of NaN: NCCL's result, but with exact_order as Communicator's.
/// - send may complete before the receiver has the data; its buffer may be reused then.
/// - split and clone wait until what is queued on this communicator is done. What NCCL holds
///   for a communicator is freed with the last one of its world.
/// - A rank whose body has returned is detected within two polls, not at once.
/// - recover() throws NotSupported on every rank: NCCL's communicators do not survive a failure.
/// - Ranks that call different collectives, or for different purposes, are detected with check_calls only.
///   Without it they time out, or move wrong data, which a comparison of digest() shows.
/// After a failure (an error of NCCL, a late call, a peer's abort or exit) NCCL's communicators are aborted
/// and the device fails: every later call and every wait of the host throws a CommError with the first cause.
/// @throws CommError naming the ranks that did not come within the timeout; NotCompiled without NCCL.
std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device> device, std::shared_ptr<Store> store,
                                              int rank, int size, const NcclOptions& options = {});
/// The same; makes the store.
std::shared_ptr<Communicator> make_nccl_world(std::shared_ptr<Device> device,
                                              const LaunchEnvironment& environment,
                                              const NcclOptions& options = {});
/// Makes the world communicators of as many threads of this process as there are devices, by rank. NCCL needs
/// different GPUs.
std::vector<std::shared_ptr<Communicator>> make_nccl_world(std::span<const std::shared_ptr<Device>> devices,
                                                           const NcclOptions& options = {});

/// Sets what NCCL reads in the environment (NcclOptions::nvls). make_nccl_world() does where they are not set, but not safely
/// beside threads that read variables.
void set_nccl_environment(const NcclOptions& options);

/// Returns whether this build has NCCL.
bool has_nccl_backend();

}  // namespace sherd
