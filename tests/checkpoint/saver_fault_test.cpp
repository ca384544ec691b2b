// Saves of several ranks with a fault at every call that changes a file or folder.
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 3;

/// A u8 tensor of which rank r holds elements [cuts[r], cuts[r + 1]).
struct Whole {
  std::string name;
  Section section;
  Shape shape;
  std::vector<int64_t> cuts;
};

const std::vector<Whole>& wholes() {
  static const std::vector<Whole> all = {
      {"several.boxes", Section::model, {7, 5, 3}, {0, 4, 101, 105}},
      {"one.rank", Section::model, {1000}, {0, 0, 1000, 1000}},
      {"optim.state.a", Section::optim, {40}, {0, 13, 13, 40}},
  };
  return all;
}

/// Returns the content of a save of that version.
std::vector<char> values(const Whole& whole, uint64_t version) {
  std::vector<char> v(static_cast<size_t>(numel_of(whole.shape)));
  const auto salt = static_cast<uint32_t>(version * 7919 + whole.name.size());
  for (uint32_t i = 0; i < v.size(); ++i) v[i] = static_cast<char>(((i + salt) * 2654435761u) >> 15);
  return v;
}

std::vector<LocalTensor> pieces_of(RankContext& rank, uint64_t version) {
  std::vector<LocalTensor> pieces;
  const auto r = static_cast<size_t>(rank.world->rank());
  for (const Whole& w : wholes()) {
    const int64_t begin = w.cuts[r], end = w.cuts[r + 1];
    pieces.push_back({w.name, w.section, DType::u8, w.shape,
                      boxes_of(w.shape, {ParamIndex(begin), ParamIndex(end)}),
                      Tensor::empty(*rank.device, {end - begin}, DType::u8, "test")});
    ops::copy_from_host(rank.device->compute(), pieces.back().data, values(w, version).data() + begin,
                        end - begin);
  }
  return pieces;
}

/// Returns whether a checkpoint is that version of the tensors, by verification and by reading all of it
/// back.
bool is_sound(const fs::path& checkpoint) {
  if (!verify_checkpoint(checkpoint).empty()) return false;
  CheckpointReader reader = CheckpointReader::open(checkpoint);
  for (const Whole& w : wholes()) {
    const CheckpointTensor* tensor = reader.find(w.section, w.name);
    std::vector<char> got(static_cast<size_t>(numel_of(w.shape)));
    const Box all{Shape(w.shape.size(), 0), w.shape};
    reader.read(*tensor, {&all, 1}, got.data());
    if (got != values(w, reader.manifest().training.seed)) return false;
  }
  return true;
}

/// Versions of the committed checkpoints by step; 0 for one that is damaged.
using Versions = std::map<int64_t, uint64_t>;
Versions versions_in(const fs::path& folder) {
  Versions versions;
  std::vector<UnusableCheckpoint> unusable;
  for (const CommittedCheckpoint& found : list_checkpoints(folder, FileSystem::posix(), &unusable)) {
    const Manifest manifest = CheckpointReader::open(folder / found.name).manifest();
    versions[manifest.training.step] = is_sound(folder / found.name) ? manifest.training.seed : 0;
  }
  EXPECT_THAT(unusable, IsEmpty());
  return versions;
}

/// Saves on all ranks, two checkpoints to keep; returns what it threw on each of them, and in `warning` what
/// failed after the commit.
std::vector<std::string> save(const fs::path& folder, FileSystem& files, int64_t step, uint64_t version,
                              bool async = false, std::string* warning = nullptr) {
  std::vector<std::string> thrown(kRanks);
  // Resumes the newest one, as a run does.
  std::vector<CommittedCheckpoint> earlier;
  if (fs::exists(folder)) earlier = list_checkpoints(folder, FileSystem::posix());
  const fs::path newest = earlier.empty() ? fs::path() : folder / earlier.front().name;
  launch(kRanks, {.device = {.threads = 1}, .timeout = std::chrono::seconds(10)}, [&](RankContext& rank) {
    thrown[static_cast<size_t>(rank.world->rank())] = message_of<IoError>([&] {
      CheckpointSaver saver(
          rank.world, pieces_of(rank, version),
          {.folder = folder, .keep = 2, .async = async, .continues = newest, .files = &files});
      saver.save({.step = step, .seed = version});
      saver.wait();
      if (rank.world->rank() == 0 && warning) *warning = saver.take_reports().at(0).warning;
    });
  });
  return thrown;
}

/// Steps 1 and 2 are there. What is saved then, with faults:
struct Setting {
  int64_t step;
  bool async;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << "step " << setting.step << (setting.async ? ", behind training" : ", blocking");
}

class SaverFaults : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    save(with_two_, FileSystem::posix(), 1, 1);
    save(with_two_, FileSystem::posix(), 2, 2);
    FaultFileSystem files;
    const TemporaryFolder folder(TemporaryFolder::in_memory());
    fs::copy(with_two_, folder.path(), fs::copy_options::recursive);
    EXPECT_THAT(save(folder.path(), files, step_, 3, async_), Each("nothing was thrown"));
    EXPECT_EQ(versions_in(folder.path()), pruned_);
    calls_ = files.calls().size();
    ASSERT_GT(calls_, 40u);
  }

  /// Saves with a fault and checks what is left, and whether the next save succeeds.
  void try_fault(const FileFault& fault, Loss loss, uint64_t seed) {
    const TemporaryFolder folder(TemporaryFolder::in_memory());
    fs::copy(with_two_, folder.path(), fs::copy_options::recursive);
    FaultFileSystem files;
    files.arm(fault);
    std::string warning;
    const std::vector<std::string> thrown = save(folder.path(), files, step_, 3, async_, &warning);
    ASSERT_TRUE(files.struck());
    const std::string what =
        fmt::format("fault {} ({}) at call {}, {}; loss {}, seed {}: {}", static_cast<int>(fault.effect),
                    fault.error, fault.at, files.calls().at(fault.at).to_string(), static_cast<int>(loss),
                    seed, thrown.front() + warning);
    EXPECT_THAT(thrown, Each(thrown.front()));
    EXPECT_THAT(warning.empty() ? thrown.front() : warning, HasSubstr("cannot ")) << what;
    files.lose_unsynced(loss, seed);
    const Versions left = versions_in(folder.path());
    const bool sound = left == before_ || left == after_ || left == pruned_;
    EXPECT_TRUE(sound) << what << "\nleft: " << testing::PrintToString(left);
    if (loss == Loss::nothing) {
      EXPECT_EQ(left == before_, warning.empty()) << what << ": told otherwise than it is";
    }
    (left == before_ ? uncommitted_ : committed_) += 1;
    lost_ += sound ? 0 : 1;
    ++tried_;

    EXPECT_THAT(save(folder.path(), files, 9, 4), Each("nothing was thrown")) << what;
    EXPECT_EQ(versions_in(folder.path()).at(9), 4u) << what;
    EXPECT_THAT(files.list(folder.path()), Each(testing::Not(testing::Truly(is_temporary_name)))) << what;
  }

  void report() {
    std::cout << tried_ << " faults at " << calls_ << " calls: " << uncommitted_ << " saves not committed, "
              << committed_ << " committed, " << lost_ << " checkpoints lost\n";
    EXPECT_EQ(lost_, 0);
    EXPECT_GT(uncommitted_, 0);
    EXPECT_GT(committed_, 0);
  }

  int64_t step_ = GetParam().step;
  bool async_ = GetParam().async;
  Versions before_ = {{1, 1}, {2, 2}};
  Versions after_ = step_ == 2 ? Versions{{1, 1}, {2, 3}} : Versions{{1, 1}, {2, 2}, {step_, 3}};
  Versions pruned_ = step_ == 2 ? after_ : Versions{{2, 2}, {step_, 3}};
  TemporaryFolder folder_{TemporaryFolder::in_memory()};
  fs::path with_two_ = folder_.path() / "saved";
  size_t calls_ = 0;
  int tried_ = 0, uncommitted_ = 0, committed_ = 0, lost_ = 0;
};

TEST_P(SaverFaults, ErrorAtEveryCall) {
  for (size_t at = 0; at < calls_ && !HasFailure(); ++at) {
    try_fault({.error = EIO, .at = at}, Loss::nothing, 0);
    try_fault({.effect = FileFault::Effect::short_write, .error = ENOSPC, .at = at, .again = true}, Loss::all,
              0);
  }
  report();
}

TEST_P(SaverFaults, CrashAtEveryCall) {
  for (size_t at = 0; at < calls_ && !HasFailure(); ++at) {
    for (const Loss loss : kLosses) {
      const bool random = loss == Loss::some || loss == Loss::zeros;
      for (uint64_t seed = 0; seed < (random ? 2 : 1); ++seed) {
        try_fault({.effect = FileFault::Effect::crash, .at = at}, loss, at * 100 + seed);
      }
    }
  }
  report();
}

INSTANTIATE_TEST_SUITE_P(Saves, SaverFaults, testing::Values(Setting{3, false}, Setting{2, true}),
                         [](const auto& test) {
                           return std::string(test.param.step == 2 ? "TakenName" : "FreshName") +
                                  (test.param.async ? "Behind" : "Blocking");
                         });

}  // namespace
}  // namespace sherd::test
