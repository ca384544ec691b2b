// A disk that is really full: a small file system in memory, which only root can mount.

#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "programs/runs/outcome.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

/// A file system of 1 MiB, seen by this process and the programs it starts.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path folder) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    mounted_ = ::unshare(CLONE_NEWNS) == 0 &&
               ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=1m") == 0;
    if (!mounted_) refusal_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// Why the disk is missing; empty when it is there.
  const std::string& refusal() const { return refusal_; }
  /// `leaves`: bytes that stay free.
  void fill(uintmax_t leaves = 0) const {
    {
      std::ofstream file(folder_ / "filler", std::ios::binary);
      const std::string piece(4096, 'x');
      while (file.write(piece.data(), 4096).flush()) {
      }
    }
    fs::resize_file(folder_ / "filler", fs::file_size(folder_ / "filler") - leaves);
  }
  void make_room() const { fs::remove(folder_ / "filler"); }

 private:
  fs::path folder_;
  bool mounted_ = false;
  std::string refusal_;
};

Flags small(const Flags& extra) {
  const auto data = scratch("text");
  write_file(data, golden_text());
  return Flags{"--data",  data.string(), "--ranks", "2",  "--steps", "40", "--dim",  "16", "--layers", "1",
               "--heads", "2",           "--seq",   "16", "--batch", "8",  "--quiet"} +
         extra;
}

TEST(FullDisk, TrainingContinuesWithoutCheckpointsAndMetricsAndFailsAtTheEnd) {
  const auto disk = scratch("disk");
  const SmallDisk small_disk(disk);
  if (!small_disk.refusal().empty())
    GTEST_SKIP() << "no file system can be mounted: " << small_disk.refusal();
  const auto weights = scratch("weights.safetensors");
  const Flags flags =
      small({"--save", (disk / "run").string(), "--save-every", "1", "--metrics", (disk / "metrics").string(),
             "--export-weights", weights.string(), "--save-retry", "0"});
  const Finished f = run_train_gpt(flags);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("no checkpoint was saved"));
  EXPECT_THAT(f.err, HasSubstr("No space left on device"));
  EXPECT_THAT(f.err, HasSubstr("training ended, but its last checkpoint is missing"));
  EXPECT_TRUE(fs::exists(weights)) << "it trained to the end";

  // Earlier checkpoints are complete: a run resumes them once there is room.
  const Finished verified = run_train_gpt(small({"--resume", (disk / "run").string()}));
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
}

TEST(FullDisk, TheLastSaveIsRepeatedUntilThereIsRoom) {
  const auto disk = scratch("disk");
  const SmallDisk small_disk(disk);
  if (!small_disk.refusal().empty())
    GTEST_SKIP() << "no file system can be mounted: " << small_disk.refusal();
  small_disk.fill(24 << 10);
  const auto metrics = scratch("metrics");
  std::thread cleaner([&] {
    const auto lines = [&] {
      const std::string text = fs::exists(metrics) ? read_file(metrics) : "";
      return std::count(text.begin(), text.end(), '\n');
    };
    while (lines() <= 40)  // the first is not a step
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    small_disk.make_room();
  });
  const Finished f = run_train_gpt(
      small({"--save", (disk / "run").string(), "--save-failure", "stop", "--metrics", metrics.string()}));
  cleaner.join();
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, HasSubstr("attempt 1 to save the last checkpoint failed: cannot write"));
  EXPECT_TRUE(fs::exists(disk / "run/step_00000040/manifest.binpb"));
}

TEST(FullDisk, RepeatedSavesEndWhenTheirTimeIsOver) {
  const auto disk = scratch("disk");
  const SmallDisk small_disk(disk);
  if (!small_disk.refusal().empty())
    GTEST_SKIP() << "no file system can be mounted: " << small_disk.refusal();
  small_disk.fill(24 << 10);
  const Finished f = run_train_gpt(small({"--save", (disk / "run").string(), "--save-retry", "1s"}));
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("training ended, but its last checkpoint is missing"));
  ::setenv("SHERD_RUN", "mark", 1);
  EXPECT_EQ(run_train_gpt(small({"--save", (disk / "run").string(), "--save-retry", "0"})).exit_code, 4);
  ::unsetenv("SHERD_RUN");
}

TEST(FullDisk, LinesOfMetricsAreTriedAgain) {
  const auto disk = scratch("disk");
  const SmallDisk small_disk(disk);
  if (!small_disk.refusal().empty())
    GTEST_SKIP() << "no file system can be mounted: " << small_disk.refusal();
  // The first page has room for the line of the configuration and some more, then the disk is full.
  const auto metrics = disk / "metrics";
  write_file(metrics, "");
  ASSERT_EQ(run_train_gpt(small({"--steps", "1", "--metrics", metrics.string()})).exit_code, 0);
  small_disk.fill();
  const Flags flags = small({"--metrics", metrics.string()});
  const Finished f = run_train_gpt(flags);
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("training continues, and tries again"));
  EXPECT_THAT(f.err, HasSubstr("missing in it"));
  const auto steps = read_steps(metrics);
  EXPECT_GT(steps.size(), 0u);
  EXPECT_LT(steps.size(), 40u) << "and every line is a whole one";
  const Finished stopped = run_train_gpt(flags + Flags{"--save-failure", "stop"});
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(stopped.err, Not(HasSubstr("training continues")));
}

}  // namespace
}  // namespace sherd::test
