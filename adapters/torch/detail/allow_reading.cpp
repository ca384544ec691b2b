#include <c10/core/StorageImpl.h>

#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch::detail {

void allow_reading(c10::StorageImpl& storage) { storage.clear_data_ptr_access_error_msg_(); }

}  // namespace sherd::torch::detail
