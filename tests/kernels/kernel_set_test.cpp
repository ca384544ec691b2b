#include <sherd/base/error.h>
#include <sherd/kernels/device/device.h>
#include <sherd/kernels/ops.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

/// A user's family without CPU kernels.
struct NothingKernels {
  static constexpr const char* kName = "nothing";
  static const NothingKernels* reference() {
    static constexpr NothingKernels table{};
    return &table;
  }
  static const NothingKernels* cpu() { return nullptr; }
  static const NothingKernels* cuda() { return nullptr; }
};

TEST(KernelSet, TablesAreThoseOfTheDevicesSet) {
  const auto fast = make_cpu_device({.kernels = KernelSet::cpu}),
             slow = make_cpu_device({.kernels = KernelSet::reference});
  EXPECT_EQ(&fast->kernels<GemmKernels>(), GemmKernels::cpu());
  EXPECT_EQ(&slow->kernels<GemmKernels>(), GemmKernels::reference());
  EXPECT_EQ(&slow->kernels<NothingKernels>(), NothingKernels::reference());
  EXPECT_EQ(fast->kernels<ElementwiseKernels>().clamp, ElementwiseKernels::reference()->clamp);
}

TEST(KernelSet, AMissingTableNamesTheFamilyAndTheDevice) {
  const auto device = make_cpu_device({.label = "rank 3", .kernels = KernelSet::cpu});
  EXPECT_THAT(message_of<NotSupported>([&] { device->kernels<NothingKernels>(); }),
              testing::AllOf(testing::HasSubstr("rank 3"), testing::HasSubstr("'nothing'"),
                             testing::HasSubstr("cpu, 1 thread, kernels cpu")));
}

TEST(KernelSet, UnknownKernelsAreRefused) {
  EXPECT_THROW((void)make_cpu_device({.kernels = KernelSet::cuda}), InvalidArgument);
}

}  // namespace
}  // namespace sherd::test
