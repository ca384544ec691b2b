// Worlds over the imitated NCCL, and what became of their ranks.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sherd/comm/nccl/detail/nccl_communicator.h>

#include "comm/fake_nccl.h"
#include "comm/integer_tensors.h"
#include "comm/on_time.h"

namespace sherd::test {

inline NcclOptions quick(std::chrono::milliseconds timeout) {
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

/// Error of each rank ("" on success), and its time.
struct Outcome {
  std::vector<std::string> texts;
  double seconds = 0;
};

/// Makes a world over the devices and runs body on its ranks. Each that ends in a CommError gives its sign of
/// that, where there are `signs`. Where the world is missing, all ranks ended with the reason.
inline Outcome run(std::vector<std::shared_ptr<Device>> devices, const NcclOptions& options,
                   const fake_nccl::Faults& faults, const std::function<void(RankContext&)>& body,
                   Signs* signs = nullptr) {
  fake_nccl::reset(faults);
  Outcome outcome;
  outcome.texts.resize(devices.size());
  const auto start = std::chrono::steady_clock::now();
  try {
    const auto worlds = nccl::make_world(fake_nccl::api(), devices, options);
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < devices.size(); ++r)
      threads.emplace_back([&, r] {
        RankContext context{devices[r], worlds[r]};
        try {
          body(context);
        } catch (const CommError& e) {
          if (signs) signs->has_failed(static_cast<int>(r));
          outcome.texts[r] = e.what();
        }
      });
  } catch (const CommError& e) {
    outcome.texts.assign(devices.size(), e.what());
  }
  devices.clear();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_THAT(fake_nccl::log().violations, testing::IsEmpty());
  return outcome;
}

/// A run of three ranks whose timeout is long enough for those that are to be in time: the ranks' errors
/// contain `what` then.
inline std::pair<std::chrono::milliseconds, Outcome> run_until_late(
    bool queue, const fake_nccl::Faults& faults, const std::string& what,
    const std::function<void(RankContext&, Signs& signs)>& body) {
  return with_timeout(
      [&](std::chrono::milliseconds given) {
        Signs signs;
        const auto devices = queue ? queue_devices(3) : cpu_devices(3);
        return run(
            devices, quick(given), faults, [&](RankContext& c) { body(c, signs); }, &signs);
      },
      [&](const Outcome& o) {
        const auto has = [&](const std::string& text) {
          return text.empty() || text.find(what) != text.npos;
        };
        return std::ranges::all_of(o.texts, has);
      });
}

inline std::string not_done(std::chrono::milliseconds timeout) {
  return "not done " + std::to_string(timeout.count()) + " ms after it was issued";
}

}  // namespace sherd::test
