// Makes storages readable again with versions of libtorch (2.11 among them) that can forbid it and cannot
// allow it.
#include <c10/core/StorageImpl.h>

#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch::detail {
namespace {

// Names in an explicit instantiation are not checked for access ([temp.spec]). The instantiation defines this
// function, so it may name the private member. Those versions have the member; later ones do not compile this
// file.
template <bool c10::StorageImpl::*kForbidden>
struct Forbidden {
  friend bool& reading_is_forbidden(c10::StorageImpl& storage) { return storage.*kForbidden; }
};
bool& reading_is_forbidden(c10::StorageImpl& storage);
template struct Forbidden<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void allow_reading(c10::StorageImpl& storage) { reading_is_forbidden(storage) = false; }

}  // namespace sherd::torch::detail
