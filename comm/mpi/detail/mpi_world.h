// Communicator over MPI: ranks are processes, on one host or many, that compute on CPUs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <sherd/comm/bootstrap/store.h>
#include <sherd/comm/core/communicator.h>
#include <sherd/comm/mpi/mpi_options.h>

namespace sherd {

/// Makes one world communicator for each of `devices`, the ranks of this process, ascending. `process_of[r]`
/// is the process (its rank in MPI_COMM_WORLD) that has world rank r. Every process calls, those without a
/// rank, too; host-blocking. MPI is initialised (mpi_bootstrap()) and lets any thread call it
/// (MPI_THREAD_SERIALIZED; with several worlds at a time, or MPI calls of the program's own meanwhile,
/// MPI_THREAD_MULTIPLE).
///
/// Communicator's contract holds, bits included. Before data moves, the ranks of a group exchange their calls
/// in messages of some hundred bytes, so that different calls fail with both named and late ranks are named.
/// Each of n ranks also sends and receives, where `size` is the bytes of the whole: all_gather and
/// reduce_scatter (n-1)/n * size, the minimum; all_reduce 2x that; broadcast at most size received and 2 *
/// size sent; the others their counts.
///
/// One thread of the process makes all calls of MPI for the world, none of which blocks. While an operation
/// is in flight it sleeps between polls; otherwise it sleeps until an operation is queued.
///
/// Differences to Communicator's contract:
/// - A failure of another rank is seen within about one poll, not at once.
/// - When a rank aborts right after a collective, others may fail in that one although its data has arrived:
///   the abort may overtake the message that reports completion.
/// - recover() throws NotSupported on every rank.
/// - A failure ends all ranks with the first cause, but MPI's launcher may kill the others when a process
///   exits (docs/clusters.md).
/// @throws CommError naming the ranks that did not come within the timeout, or with MPI's message;
/// InvalidArgument; NotSupported for a device that is not a CPU; NotCompiled without MPI.
std::vector<std::shared_ptr<Communicator>> make_mpi_world(std::span<const std::shared_ptr<Device>> devices,
                                                          std::span<const int> process_of,
                                                          std::shared_ptr<Store> store,
                                                          const MpiOptions& options = {});

/// Returns whether this build has MPI.
bool has_mpi_backend();

}  // namespace sherd
