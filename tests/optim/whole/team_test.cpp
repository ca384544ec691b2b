// Team: an exception in the middle of a step.
#include <sherd/optim/whole/detail/team.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <sherd/optim/muon/muon_rule.h>

#include "support/toy_model.h"

namespace sherd::test {
namespace {

/// Has no memory for the second message.
struct SecondPackFails : MatrixClient {
  int packed = 0;
  void pack(Stream& compute, const Tensor& message, const MatrixChunk&) override {
    if (++packed == 2) throw OutOfMemory("the second message");
    ops::fill(compute, message, 1);
  }
  void compute(Stream&, const Tensor&, const Tensor&, const Tensor&, const std::vector<int>&) override {}
  void compute_parts(Stream&, const std::vector<MatrixPart>&,
                     const std::function<void(const Tensor&)>&) override {}
  void update(Stream&, const Tensor&, const MatrixChunk&, bool) override {}
};

/// Steps a team whose first message is in flight, held up by rank `late`, when the second one fails. Then
/// reuses the memory of messages on the other rank. @return what that memory holds at the end.
std::vector<float> reused_after_a_failure(int late) {
  std::vector<float> found;
  std::promise<void> promise;
  const auto released = promise.get_future().share();
  launch(2, [&](RankContext& r) {
    ToyModel model(16, 32, 2);
    (void)route(model);
    fully_shard(model, mesh_of(r), {.layout = LayoutPolicy::even_rows});
    std::vector<Parameter> params;
    for (auto& b : model.blocks_) params.insert(params.end(), {b->up_, b->down_});
    MatrixStreams streams{r.device->make_stream("test in"), r.device->make_stream("test out")};
    SecondPackFails client;
    // One matrix in each chunk.
    MatrixTeam team(*r.device, params, MuonRule(), client,
                    {.whole = {.mode = MatrixMode::owner, .transient_bytes = 1}}, streams);
    r.device->compute().synchronize();
    const bool is_late = r.world->rank() == late;
    if (is_late) streams.in->submit("late", [released](ExecutionContext&) { released.wait(); });
    EXPECT_THROW(team.step(r.device->compute()), OutOfMemory);
    EXPECT_EQ(client.packed, 2);
    if (!is_late) {
      std::vector<Tensor> reused;
      for (int i = 0; i < 8; ++i)
        for (const int64_t elements : {16 * 32, 8 * 32}) {
          reused.push_back(team.buffers().message(elements, DType::f32));
          ops::fill(r.device->compute(), reused.back(), 7);
        }
      // A fill that does not wait for the message is done within this time, and then overwritten.
      const Event filled = r.device->compute().record();
      for (int i = 0; i < 200 && !filled.done(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      promise.set_value();
      streams.in->synchronize();
      for (const Tensor& t : reused) {
        const std::vector<float> values = ops::to_floats(r.device->compute(), t);
        found.insert(found.end(), values.begin(), values.end());
      }
    }
    streams.in->synchronize();
    r.device->compute().synchronize();
  });
  return found;
}

TEST(MatrixTeam, AFailedStepReleasesMessagesInFlightAfterTheirArrival) {
  for (const int late : {0, 1}) {
    const std::vector<float> values = reused_after_a_failure(late);
    EXPECT_EQ(std::count(values.begin(), values.end(), 7.0f), static_cast<std::ptrdiff_t>(values.size()))
        << "rank " << late << " is late";
  }
}

}  // namespace
}  // namespace sherd::test
