// Windows of state that rests on the host: one file for all of it, no wait of the host, errors of the file.

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>

#include <sherd/kernels/device/file_memory.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>

#include "optim/matrix_rules.h"
#include "support/message_of.h"
#include "support/sgd.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr double kRate = 0.02;

struct Placed : GivenGradients {
  Parameter first = add("first.weight", {24, 16}), second = add("second.weight", {16, 40}),
            gain = add("gain.weight", {19});
  std::optional<Optimizer> optimizer;

  Placed(RankContext& r, const Algorithm& algorithm, Place state, Place master, int64_t window = 1024) {
    const Routing routing = route(*this, {.rules = {{.pattern = "first|second", .algorithm = algorithm}}});
    fully_shard(*this, mesh_of(r), {.compute_dtype = DType::bf16, .master_place = master});
    OptimizerOptions o{.weight_decay = 0.1, .state_place = state, .window_bytes = window};
    if (algorithm == NorMuon::kName) o.further.push_back(NorMuon::factory());
    if (algorithm == Soap::kName) o.further.push_back(Soap::factory());
    optimizer.emplace(*this, routing, o);
  }
};

const Algorithm kAlgorithms[] = {Algorithm::adamw, Algorithm::muon, NorMuon::kName, Soap::kName};

/// Device options with the host tier in a file of `folder`.
LaunchOptions in_file(const std::filesystem::path& folder) {
  LaunchOptions o;
  o.device.offload_folder = folder.string();
  return o;
}

TEST(RestWindows, StateIsOnTheHostAndTwoWindowsAreOnTheDevice) {
  for (const Algorithm& algorithm : kAlgorithms)
    launch(2, [&](RankContext& r) {
      const auto optimizer_bytes = [&] { return r.device->allocator().live_bytes(MemoryClass::optimizer); };
      int64_t resident = 0, state = 0;
      {
        Placed model(r, algorithm, Place::device, Place::device);
        EXPECT_EQ(r.device->host_tier().live_bytes(), 0);
        resident = optimizer_bytes();
        for (const StateTensor& s : model.optimizer->state()) state += Allocator::rounded(s.local.nbytes());
        for (const OwnedState& s : model.optimizer->owned_state())
          state += Allocator::rounded(s.local.nbytes());
      }
      Placed model(r, algorithm, Place::host, Place::host);
      int64_t masters = 0;
      for (const ParamGroup* g : runtime_of(model).groups())
        for (const PlannedBuffer& b : g->plan().buffers)
          if (b.memory == MemoryClass::master) masters += b.bytes();
      EXPECT_EQ(r.device->host_tier().live_bytes(), state + masters) << name_of(algorithm);
      EXPECT_EQ(r.device->allocator().live_bytes(MemoryClass::master), 0);
      const int64_t windows = r.device->allocator().live_bytes("state window");
      EXPECT_EQ(optimizer_bytes(), resident - state + windows) << name_of(algorithm);
      // SOAP's factors of a matrix are in a window together.
      EXPECT_EQ(windows, algorithm == Soap::kName ? windows : 2 * 1024) << name_of(algorithm);
    });
}

TEST(RestWindows, AFileHasTheBitsOfMemoryAndLeavesNothing) {
  const TemporaryFolder folder;
  for (const Algorithm& algorithm : kAlgorithms) {
    const auto weights = [&](Place place, const LaunchOptions& options) {
      std::vector<float> all;
      sherd::launch(2, options, [&](RankContext& r) {
        Placed model(r, algorithm, place, place);
        for (int step = 0; step < 5; ++step) model.train(*model.optimizer, kRate);
        for (const Parameter& p : {model.first, model.second, model.gain})
          for (const float v : whole(p, p.shard(), r.device->compute()))
            if (r.world->rank() == 0) all.push_back(v);
        EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
      });
      return all;
    };
    EXPECT_EQ(weights(Place::host, in_file(folder.path())), weights(Place::device, {})) << name_of(algorithm);
  }
}

TEST(RestWindows, StepsDoNotWaitForTheHost) {
  const TemporaryFolder folder;
  sherd::launch(1, in_file(folder.path()), [&](RankContext& r) {
    Placed model(r, Algorithm::adamw, Place::host, Place::host);
    model.train(*model.optimizer, kRate);
    const int64_t before = r.device->host_syncs();
    for (int i = 0; i < 3; ++i) model.train(*model.optimizer, kRate);
    EXPECT_EQ(r.device->host_syncs(), before);
  });
}

TEST(RestWindows, FolderThatIsMissingOrFullIsNamed) {
  const auto failure = [](const std::filesystem::path& folder) {
    return message_of<IoError>([&] {
      sherd::launch(1, in_file(folder),
                    [](RankContext& r) { Placed model(r, Algorithm::adamw, Place::host, Place::device); });
    });
  };
  EXPECT_THAT(failure("/nowhere/at/all"),
              AllOf(HasSubstr("offload folder '/nowhere/at/all'"), HasSubstr("No such file or directory")));
  const TemporaryFolder folder;
  struct rlimit was {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &was), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = was;
  small.rlim_cur = 4096;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string said = failure(folder.path());
  ::setrlimit(RLIMIT_FSIZE, &was);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said, AllOf(HasSubstr("cannot reserve"), HasSubstr("ulimit -f"), HasSubstr("File too large")));
}

TEST(RestWindows, OptimizersWithoutAPlaceAreNamedWithTheRemedy) {
  EXPECT_THAT(message_of<InvalidArgument>([] {
                launch(1, [](RankContext& r) {
                  GivenGradients model;
                  model.add("first.weight", {8, 8});
                  const UpdateRuleFactory sgd = Sgd::factory(0.5f);
                  const Routing routing =
                      route(model, {.rules = {{.pattern = ".", .algorithm = sgd.algorithm}}});
                  fully_shard(model, mesh_of(r), {});
                  Optimizer(model, routing, {.state_place = Place::host, .further = {sgd}});
                });
              }),
              AllOf(HasSubstr("state and masters on the device alone, for first.weight"),
                    HasSubstr("leave out OptimizerOptions::state_place")));
  EXPECT_THAT(message_of<InvalidArgument>([] {
                launch(1,
                       [](RankContext& r) { Placed(r, Algorithm::adamw, Place::host, Place::device, 100); });
              }),
              HasSubstr("windows of 100 bytes"));
}

}  // namespace
}  // namespace sherd::test
