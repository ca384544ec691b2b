// The imitated NCCL (comm/fake_nccl.h) between processes of one host. The process of rank 0 has its world: operations of all ranks
// go there over a socket, with the data that they read, and what they write comes back. A process that has ended takes part in
// nothing more; that of rank 0 ends after the others, or 5 s after it wished to.
#pragma once

#include <nccl.h>

#include <sherd/comm/nccl/detail/api.h>

namespace cuda_host::processes {

/// Returns whether this process is one of several ranks (WORLD_SIZE).
bool on();
/// fake_nccl's functions for such a process, of one world.
const sherd::nccl::NcclApi& api();
/// A collective is issued: strictly (strict.h), its order is compared with the other processes'.
void issued(ncclComm_t comm);

}  // namespace cuda_host::processes
