// The suites of every backend over the imitated NCCL, with the options that make NCCL keep every promise.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <sherd/comm/nccl/detail/nccl_communicator.h>

#include "comm/fake_nccl.h"
#include "comm/ranks.h"

namespace sherd::test {

void run_ranks(int ranks, const LaunchOptions& options, const std::function<void(RankContext&)>& body) {
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < ranks; ++r)
    devices.push_back(make_cpu_device({.label = fmt::format("rank {}", r),
                                       .kernels = options.device.kernels,
                                       .memory_limit = options.device.memory_limit}));
  std::exception_ptr failure;
  fake_nccl::reset();
  {
    const auto worlds = nccl::make_world(fake_nccl::api(), devices,
                                         {.timeout = options.timeout,
                                          .poll = std::chrono::milliseconds(20),
                                          .exact_order = true,
                                          .check_calls = true});
    std::vector<RankContext> contexts;
    for (size_t r = 0; r < devices.size(); ++r) contexts.push_back({devices[r], worlds[r]});
    try {
      launch(std::move(contexts), body);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  EXPECT_EQ(fake_nccl::log().violations, std::vector<std::string>{});
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sherd::test
