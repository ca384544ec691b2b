#include <sherd/comm/nccl/api.h>

namespace sherd::nccl {

const NcclApi& nccl_api() {
  static const NcclApi api{
      .get_unique_id = ncclGetUniqueId,
      .comm_init_rank_config = ncclCommInitRankConfig,
      .comm_split = ncclCommSplit,
      .comm_get_async_error = ncclCommGetAsyncError,
      .comm_abort = ncclCommAbort,
      .comm_finalize = ncclCommFinalize,
      .comm_destroy = ncclCommDestroy,
      .all_gather = ncclAllGather,
      .reduce_scatter = ncclReduceScatter,
      .all_reduce = ncclAllReduce,
      .broadcast = ncclBroadcast,
      .send = ncclSend,
      .recv = ncclRecv,
      .group_start = ncclGroupStart,
      .group_end = ncclGroupEnd,
      .get_error_string = ncclGetErrorString,
      .get_last_error = ncclGetLastError,
      .comm_register = ncclCommRegister,
      .comm_deregister = ncclCommDeregister,
  };
  return api;
}

}  // namespace sherd::nccl
