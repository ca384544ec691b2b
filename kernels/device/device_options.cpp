#include <sherd/kernels/device/device_options.h>

#include <sherd/base/enum_table.h>

namespace sherd {
namespace {

constexpr EnumTable<DeviceKind, 2> kDeviceKinds{"cpu", "cuda"};
constexpr EnumTable<KernelSet, 2> kKernelSet{"cpu", "reference"};
constexpr EnumTable<SymmetricProducts, 3> kSymmetricProducts{"auto", "blocks", "hopper"};
constexpr EnumTable<AttentionMethod, 3> kAttention{"auto", "own", "cudnn"};

}  // namespace

DeviceKind parse_device_kind(std::string_view name) { return kDeviceKinds.parse("device.kind", name); }
KernelSet parse_cpu_kernels(std::string_view name) { return kKernelSet.parse("device.kernels", name); }
SymmetricProducts parse_symmetric_products(std::string_view name) {
  return kSymmetricProducts.parse("device.symmetric_products", name);
}
AttentionMethod parse_attention(std::string_view name) { return kAttention.parse("device.attention", name); }
const char* name_of(DeviceKind k) { return kDeviceKinds.checked_name("device.kind", k); }
const char* name_of(KernelSet k) { return kKernelSet.checked_name("device.kernels", k); }
const char* name_of(SymmetricProducts s) {
  return kSymmetricProducts.checked_name("device.symmetric_products", s);
}
const char* name_of(AttentionMethod a) { return kAttention.checked_name("device.attention", a); }

}  // namespace sherd
