// Functions for dlpack_interop.py: tensors of a CPU device, lent to and borrowed from Python by DLPack.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <sherd/kernels/device/dlpack.h>
#include <sherd/kernels/ops.h>

namespace {

struct Bridge {
  std::shared_ptr<sherd::Device> device = sherd::make_cpu_device();
  std::string error;
};

sherd::DType dtype_named(const std::string& name) {
  using sherd::DType;
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8})
    if (name == sherd::name_of(t)) return t;
  throw sherd::InvalidArgument("no dtype of that name: " + name);
}

}  // namespace

extern "C" {

Bridge* bridge_open() { return new Bridge; }
void bridge_close(Bridge* b) { delete b; }
const char* bridge_error(const Bridge* b) { return b->error.c_str(); }
int64_t bridge_live_bytes(const Bridge* b) {
  return b->device->allocator().live_bytes(sherd::MemoryClass::activation);
}

/// A tensor [rows, columns] of the value, or null with bridge_error().
DLManagedTensorVersioned* bridge_lend(Bridge* b, const char* dtype, int64_t rows, int64_t columns,
                                      double value) {
  try {
    const sherd::Tensor t = sherd::Tensor::empty(*b->device, {rows, columns}, dtype_named(dtype), "lent");
    sherd::ops::fill(b->device->compute(), t, value);
    return sherd::to_dlpack(b->device->compute(), t);
  } catch (const std::exception& e) {
    b->error = e.what();
    return nullptr;
  }
}

/// Fills a borrowed tensor and lets it go. 0: done; 1: refused with bridge_error(), the tensor is the
/// caller's.
int bridge_fill(Bridge* b, DLManagedTensorVersioned* given, const char* dtype, double value) {
  try {
    const sherd::Tensor t = sherd::from_dlpack(given, *b->device);
    if (t.dtype() != dtype_named(dtype)) throw sherd::InvalidArgument(sherd::name_of(t.dtype()));
    sherd::ops::fill(b->device->compute(), t, value);
    b->device->compute().synchronize();
    return 0;
  } catch (const std::exception& e) {
    b->error = e.what();
    return 1;
  }
}
}
