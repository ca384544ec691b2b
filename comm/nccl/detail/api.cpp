#include <sherd/comm/nccl/detail/api.h>

// An older library than the header's lets the program start: what it lacks is null.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister
#endif

namespace sherd::nccl {

const NcclApi& nccl_api() {
  static const NcclApi api {
    .get_unique_id = ncclGetUniqueId, .comm_init_rank_config = ncclCommInitRankConfig,
    .comm_split = ncclCommSplit, .comm_get_async_error = ncclCommGetAsyncError, .comm_abort = ncclCommAbort,
    .comm_finalize = ncclCommFinalize, .comm_destroy = ncclCommDestroy, .all_gather = ncclAllGather,
    .reduce_scatter = ncclReduceScatter, .all_reduce = ncclAllReduce, .broadcast = ncclBroadcast,
    .send = ncclSend, .recv = ncclRecv, .group_start = ncclGroupStart, .group_end = ncclGroupEnd,
    .get_error_string = ncclGetErrorString, .get_last_error = ncclGetLastError,
    .comm_register = ncclCommRegister, .comm_deregister = ncclCommDeregister, .get_version = ncclGetVersion,
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
    .mem_alloc = ncclMemAlloc, .mem_free = ncclMemFree,
#else
    .mem_alloc = nullptr, .mem_free = nullptr,
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    .window_register = ncclCommWindowRegister, .window_deregister = ncclCommWindowDeregister,
#else
    .window_register = nullptr, .window_deregister = nullptr,
#endif
  };
  return api;
}

}  // namespace sherd::nccl
