// Collective functions that one rank calls alone say so long before the timeout.

#include <future>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>

#include "support/message_of.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

// Returns stderr while rank 0 alone calls `call`, and the error of the call.
std::pair<std::string, std::string> alone(const std::function<void(ToyModel&, RankContext&)>& call) {
  std::promise<std::string> failed;
  std::shared_future<std::string> failure = failed.get_future();
  LaunchOptions options;
  options.timeout = std::chrono::seconds(2);
  ::testing::internal::CaptureStderr();
  EXPECT_THROW(test::launch(3, options,
                            [&](RankContext& r) {
                              ToyModel model(8, 8, 1);
                              fully_shard(model, mesh_of(r));
                              if (r.world->rank() != 0)
                                return void(failure.wait_for(std::chrono::milliseconds(600)));
                              try {
                                call(model, r);
                                r.device->compute().synchronize();
                                failed.set_value("");
                              } catch (const std::exception& e) {
                                failed.set_value(e.what());
                                throw;
                              }
                            }),
               CommError);
  return {::testing::internal::GetCapturedStderr(), failure.get()};
}

TEST(LoneCalls, NameTheFunctionAndTheMissingRanks) {
  const TemporaryFolder folder;
  const std::pair<const char*, std::function<void(ToyModel&, RankContext&)>> calls[] = {
      {"export_weights()", [&](ToyModel& m, RankContext&) { export_weights(m, folder / "w.safetensors"); }},
      {"import_weights()", [&](ToyModel& m, RankContext&) { import_weights(m, folder / "w.safetensors"); }},
      {"state_dict()", [](ToyModel& m, RankContext&) { (void)state_dict(m, nullptr, DictKind::on_first); }},
      {"resume()", [&](ToyModel& m, RankContext&) { resume(folder / "run", m, nullptr); }},
      {"CheckpointSaver()",
       [&](ToyModel& m, RankContext& r) {
         CheckpointSaver(r.world, checkpoint_tensors(m, nullptr), {.folder = folder / "run"});
       }},
      {"DTensor::full_tensor()",
       [](ToyModel& m, RankContext& r) {
         (void)m.named_parameters()[0].second.dtensor().full_tensor(r.device->compute());
       }},
  };
  for (auto& [name, call] : calls) {
    const auto [line, failure] = alone(call);
    EXPECT_THAT(line,
                AllOf(HasSubstr(std::string("for ") + name + " on rank 0 waits for ranks 1, 2; rank 0 (for "),
                      HasSubstr("it fails after 2000 ms")))
        << name;
    EXPECT_THAT(failure, HasSubstr(name)) << name;
  }
}

}  // namespace
}  // namespace sherd::test
