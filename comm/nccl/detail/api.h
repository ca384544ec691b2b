// NCCL as a table of functions, so that tests can replace it. Private to comm/nccl.
#pragma once

#include <nccl.h>

namespace sherd::nccl {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
using Window = ncclWindow_t;
inline constexpr int kSymmetricWindow = NCCL_WIN_COLL_SYMMETRIC;
#else
using Window = void*;
inline constexpr int kSymmetricWindow = 0;
#endif

struct NcclApi {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommSplit) comm_split;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
  decltype(&ncclGetVersion) get_version;
  // Null where the library, or the header at build time, is older than the function.
  ncclResult_t (*mem_alloc)(void** data, size_t bytes);
  ncclResult_t (*mem_free)(void* data);
  ncclResult_t (*window_register)(ncclComm_t comm, void* data, size_t bytes, Window* window, int flags);
  ncclResult_t (*window_deregister)(ncclComm_t comm, Window window);
};

/// The library that sherd is linked with.
const NcclApi& nccl_api();

}  // namespace sherd::nccl
