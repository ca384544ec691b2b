#include <sherd/torch/detail/tensor_memory.h>

#include <cstdlib>
#include <cstring>

#include <ATen/ATen.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace sherd::torch::detail {

void keep_freed_memory() {
#ifdef __GLIBC__
  static const bool once = [] {
    for (const char* const name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"})
      if (std::getenv(name) != nullptr) return false;
    const char* const tunables = std::getenv("GLIBC_TUNABLES");
    if (tunables != nullptr && std::strstr(tunables, "glibc.malloc.") != nullptr) return false;
    // Either of the first two disables the C library's own adjustment of both thresholds. -1: never; 32 MiB:
    // the largest value. The third keeps heaps of threads, 64 MiB each, when they are empty.
    return ::mallopt(M_TRIM_THRESHOLD, -1) == 1 && ::mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1 &&
           ::mallopt(M_TOP_PAD, 64 << 20) == 1;
  }();
  (void)once;
#endif
}

at::Tensor view_of(const Tensor& memory, at::IntArrayRef sizes, at::ScalarType type, at::Device place) {
  // With a device given, libtorch does not look up the address: an empty tensor may have none.
  return at::for_blob(memory.raw(), sizes)
      .options(at::TensorOptions(type).device(place))
      .target_device(place)
      .make_tensor();
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type, at::Device place) {
  at::Tensor t = at::empty({0}, at::TensorOptions(type).device(place));
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                                               c10::DataPtr(nullptr, place), nullptr,
                                                               /*resizable=*/false));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

void become(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.device() != other.device())
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  // Both are on one device now: this clears autograd's record of the earlier device.
  tensor.set_data(other);
}

void take_memory_away(c10::StorageImpl& storage, const char* why) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

}  // namespace sherd::torch::detail
