// libtorch's tensors in a rank's memory: what is counted, for how long, under which limit.
#include <algorithm>
#include <thread>

#include <sys/resource.h>

#include <sherd/torch/device_memory.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using sherd::MemoryClass;
using sherd::torch::DeviceMemory;

constexpr int64_t kElements = 1000, kBytes = 4096;  // of f32, rounded up to 128 bytes

int64_t live(sherd::Device& device) { return device.allocator().live_bytes(MemoryClass::activation); }

TEST(DeviceMemory, CountsWhatItsThreadMakesUntilThatIsFreed) {
  const auto device = sherd::make_cpu_device();
  const torch::Tensor before = torch::ones({kElements});
  torch::Tensor inside, elsewhere;
  {
    const DeviceMemory memory(device);
    inside = torch::ones({kElements});
    std::thread([&] { elsewhere = torch::ones({kElements}); }).join();
    EXPECT_EQ(live(*device), kBytes);
  }
  const torch::Tensor after = torch::ones({kElements});
  EXPECT_EQ(live(*device), kBytes);
  EXPECT_EQ(inside.sum().item<float>(), kElements);
  std::thread([&] { inside.reset(); }).join();
  EXPECT_EQ(live(*device), 0);
}

TEST(DeviceMemory, TensorsKeepTheDevice) {
  auto device = sherd::make_cpu_device();
  const std::weak_ptr<sherd::Device> still_there = device;
  torch::Tensor tensor;
  {
    const DeviceMemory memory(device);
    tensor = torch::arange(kElements);
  }
  device.reset();
  EXPECT_FALSE(still_there.expired());
  EXPECT_EQ(tensor[kElements - 1].item<int64_t>(), kElements - 1);
  tensor.reset();
  EXPECT_TRUE(still_there.expired());
}

TEST(DeviceMemory, ScopesNest) {
  const auto outer = sherd::make_cpu_device(), inner = sherd::make_cpu_device();
  const DeviceMemory memory(outer);
  std::vector<torch::Tensor> kept;
  {
    const DeviceMemory within(inner);
    kept.push_back(torch::empty({kElements}));
  }
  kept.push_back(torch::empty({kElements}));
  EXPECT_EQ(live(*outer), kBytes);
  EXPECT_EQ(live(*inner), kBytes);
}

TEST(DeviceMemory, IsLimited) {
  const auto device = sherd::make_cpu_device({.memory_limit = 3 * kBytes});
  const DeviceMemory memory(device);
  const torch::Tensor fits = torch::empty({2 * kElements});
  EXPECT_THROW(torch::empty({3 * kElements}), sherd::OutOfMemory);
  EXPECT_NO_THROW(torch::empty({kElements / 2}));
}

TEST(DeviceMemory, TrainingTakesNoMoreWithEachStepAndChangesNoBit) {
  torch::manual_seed(7);
  const Net first;
  const auto gradients_of = [&](RankContext& rank, bool counted) {
    const auto memory = counted ? std::make_unique<DeviceMemory>(rank.device) : nullptr;
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    int64_t held = 0;
    Values values;
    for (int step = 0; step < 6; ++step) {
      sherd::zero_grad(sherd::torch::root_of(*model));
      net_backward(model, rank.world->rank());
      if (step == 2) held = rank.device->allocator().peak_held_bytes();
    }
    EXPECT_EQ(rank.device->allocator().peak_held_bytes(), held);
    const auto table = rank.device->allocator().table();
    EXPECT_EQ(std::any_of(table.begin(), table.end(), [](auto& line) { return line.name == "libtorch"; }),
              counted);
    sherd::Stream& compute = rank.device->compute();
    for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters()) {
      const auto part = sherd::ops::to_floats(compute, p.grad_shard());
      values[name] = torch::tensor(part);
    }
    return values;
  };
  launch(3, [&](RankContext& rank) {
    const Values plain = gradients_of(rank, false), counted = gradients_of(rank, true);
    for (auto& [name, value] : plain) EXPECT_TRUE(torch::equal(value, counted.at(name))) << name;
  });
}

#ifndef SHERD_SANITIZED  // sanitizers have allocators of their own
TEST(LibtorchMemory, StaysInTheProcessWhenFreed) {
  const Net first;
  launch(1, [&](RankContext& rank) {
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    const auto fill = [] {
      std::vector<torch::Tensor> all;
      for (int i = 0; i < 160; ++i)
        all.push_back(torch::ones({1 << 18}));  // 160 MiB: 40960 pages, some heaps
    };
    const auto faults = [] {
      rusage used{};
      getrusage(RUSAGE_SELF, &used);
      return used.ru_minflt;
    };
    fill();
    const auto before = faults();
    for (int step = 0; step < 4; ++step) fill();
    EXPECT_LT(faults() - before, 10000);
  });
}
#endif

}  // namespace
}  // namespace torch_test
