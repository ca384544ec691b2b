#include <sherd/comm/launch_options.h>

#include <fmt/format.h>

#include <array>
#include <string>

#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

template <class E>
struct Named {
  E value;
  const char* name;
};
constexpr std::array<Named<DeviceKind>, 2> kDeviceKinds{
    {{DeviceKind::cpu, "cpu"}, {DeviceKind::cuda, "cuda"}}};
constexpr std::array<Named<CpuKernels>, 2> kCpuKernels{
    {{CpuKernels::cpu, "cpu"}, {CpuKernels::reference, "reference"}}};
constexpr std::array<Named<SymmetricProducts>, 3> kSymmetricProducts{{{SymmetricProducts::automatic, "auto"},
                                                                      {SymmetricProducts::blocks, "blocks"},
                                                                      {SymmetricProducts::hopper, "hopper"}}};

constexpr std::array<Named<AttentionMethod>, 3> kAttention{
    {{AttentionMethod::automatic, "auto"}, {AttentionMethod::own, "own"}, {AttentionMethod::cudnn, "cudnn"}}};

template <class E, size_t N>
[[noreturn]] void unknown(const char* option, std::string_view value, const std::array<Named<E>, N>& legal) {
  std::string names;
  for (size_t i = 0; i < N; ++i)
    names += fmt::format("{}'{}'", i == 0 ? "" : i + 1 == N ? " or " : ", ", legal[i].name);
  throw InvalidArgument(fmt::format("{} = {} is unknown; use {}", option, value, names));
}

template <class E, size_t N>
E parse(const char* option, std::string_view name, const std::array<Named<E>, N>& legal) {
  for (const auto& l : legal)
    if (name == l.name) return l.value;
  unknown(option, name, legal);
}

template <class E, size_t N>
const char* name_in(const char* option, E value, const std::array<Named<E>, N>& legal) {
  for (const auto& l : legal)
    if (value == l.value) return l.name;
  unknown(option, std::to_string(static_cast<int>(value)), legal);
}

}  // namespace

DeviceKind parse_device_kind(std::string_view name) { return parse("device.kind", name, kDeviceKinds); }
CpuKernels parse_cpu_kernels(std::string_view name) { return parse("device.kernels", name, kCpuKernels); }
SymmetricProducts parse_symmetric_products(std::string_view name) {
  return parse("device.symmetric_products", name, kSymmetricProducts);
}
AttentionMethod parse_attention(std::string_view name) { return parse("device.attention", name, kAttention); }
const char* name_of(DeviceKind k) { return name_in("device.kind", k, kDeviceKinds); }
const char* name_of(CpuKernels k) { return name_in("device.kernels", k, kCpuKernels); }
const char* name_of(SymmetricProducts s) {
  return name_in("device.symmetric_products", s, kSymmetricProducts);
}
const char* name_of(AttentionMethod a) { return name_in("device.attention", a, kAttention); }

}  // namespace sherd
