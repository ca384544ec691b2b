// Worlds over the imitated NCCL, and what became of their ranks.
#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sherd/comm/nccl/detail/nccl_communicator.h>

#include "comm/fake_nccl.h"
#include "comm/integer_tensors.h"

namespace sherd::test {

inline NcclOptions quick(std::chrono::milliseconds timeout = std::chrono::milliseconds(300)) {
  return {.timeout = timeout, .poll = std::chrono::milliseconds(10)};
}

inline std::vector<std::shared_ptr<Device>> cpu_devices(int ranks) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(make_cpu_device({.label = "rank " + std::to_string(r)}));
  return devices;
}
inline std::vector<std::shared_ptr<Device>> queue_devices(int ranks) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r)
    devices.push_back(fake_nccl::make_queue_device("rank " + std::to_string(r)));
  return devices;
}

/// What each rank ended with ("" when it ended well), and how long it took.
struct Outcome {
  std::vector<std::string> texts;
  double seconds = 0;
};

/// Makes a world over the devices and runs body on its ranks.
inline Outcome run(std::vector<std::shared_ptr<Device>> devices, const NcclOptions& options,
                   const fake_nccl::Faults& faults, const std::function<void(RankContext&)>& body) {
  fake_nccl::reset(faults);
  Outcome outcome;
  outcome.texts.resize(devices.size());
  const auto start = std::chrono::steady_clock::now();
  {
    const auto worlds = nccl::make_world(fake_nccl::api(), devices, options);
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < devices.size(); ++r)
      threads.emplace_back([&, r] {
        RankContext context{devices[r], worlds[r]};
        try {
          body(context);
        } catch (const CommError& e) {
          outcome.texts[r] = e.what();
        }
      });
  }
  devices.clear();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_THAT(fake_nccl::log().violations, testing::IsEmpty());
  return outcome;
}

}  // namespace sherd::test
