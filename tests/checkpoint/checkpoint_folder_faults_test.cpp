// Faults at every call of a run that saves: what was committed stays.
#include <cerrno>
#include <map>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "checkpoint/tagged_checkpoints.h"
#include "support/fault_file_system.h"

namespace sherd::test {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Key;

/// Steps 10 and 20 are there, and `best` names 10; a run saves step `step`, which is better, and removes what is more than 2.
struct Scene {
  explicit Scene(int64_t the_step) : step(the_step) {
    CheckpointFolder folder(path, files);
    save_tagged(folder, files, 10, "aaaaaaaa", 0, "1.5");
    save_tagged(folder, files, 20, "bbbbbbbb");
    folder.write_best(checkpoint_name(10));
    files.lose_unsynced(Loss::all);
    files.reset();
  }
  void run() {
    CheckpointFolder folder(path, files);
    save_and_prune(folder);
  }
  void save_and_prune(CheckpointFolder& folder) {
    save_tagged(folder, files, step, "cccccccc", 0, "0.5");
    if (const auto best = folder.lowest_loss("d", any); best->name != folder.best())
      folder.write_best(best->name);
    folder.prune(2);
  }
  size_t calls_of_a_run() {
    run();
    const size_t calls = files.calls().size();
    files.lose_unsynced(Loss::all);
    expect_new("a run without faults");
    return calls;
  }

  std::map<std::string, std::string> before() const {
    return {{checkpoint_name(10), "aaaaaaaa"}, {checkpoint_name(20), "bbbbbbbb"}};
  }
  std::map<std::string, std::string> after(bool pruned) const {
    std::map<std::string, std::string> tags = before();
    tags[checkpoint_name(step)] = "cccccccc";
    if (pruned && tags.size() > 2) tags.erase(checkpoint_name(10));
    return tags;
  }
  void expect_sound(const std::string& what) const {
    EXPECT_THAT(tags_in(path), AnyOf(before(), after(false), after(true))) << what;
    EXPECT_THAT(tags_in(path), Contains(Key(latest(path)))) << what;
    EXPECT_THAT(tags_in(path), Contains(Key(named_in("best")))) << what;
  }
  void expect_new(const std::string& what) const {
    EXPECT_EQ(tags_in(path), after(true)) << what;
    EXPECT_EQ(latest(path), checkpoint_name(step)) << what;
    EXPECT_EQ(named_in("best"), checkpoint_name(step)) << what;
    EXPECT_THAT(temporaries(path), IsEmpty()) << what;
  }

  std::string named_in(const char* pointer) const {
    const std::string name = read_bytes(path / pointer);
    EXPECT_TRUE(name.ends_with('\n')) << name;
    return name.substr(0, name.size() - 1);
  }

  int64_t step;
  TemporaryFolder parent{TemporaryFolder::in_memory()};
  fs::path path = parent / "saves";
  FaultFileSystem files;
};

class CheckpointFolderFaults : public testing::TestWithParam<int64_t> {};

TEST_P(CheckpointFolderFaults, CrashAtEveryCallLosesNothingCommitted) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  EXPECT_GT(calls, 20u);
  int old = 0, committed = 0;
  for (size_t at = 0; at < calls; ++at) {
    for (const Loss loss : kLosses) {
      const bool random = loss == Loss::some || loss == Loss::zeros;
      for (uint64_t seed = 0; seed < (random ? 6 : 1); ++seed) {
        Scene scene(GetParam());
        scene.files.arm({.effect = FileFault::Effect::crash, .at = at});
        EXPECT_THROW(scene.run(), IoError);
        ASSERT_EQ(scene.files.calls().size(), at + 1);
        const std::string what =
            fmt::format("crash in call {}, {}; loss {}, seed {}", at, scene.files.calls().back().to_string(),
                        static_cast<int>(loss), seed);
        scene.files.lose_unsynced(loss, seed);
        scene.expect_sound(what);
        (tags_in(scene.path) == scene.before() ? old : committed) += 1;
        scene.run();
        scene.expect_new(what + ", and saved again");
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(old, 0);
  EXPECT_GT(committed, 0);
}

TEST_P(CheckpointFolderFaults, PowerFailureAfterAKilledRunLosesNothingCommitted) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  for (size_t at = 0; at < calls; ++at) {
    for (size_t later = 0; later < 8; ++later) {
      Scene scene(GetParam());
      scene.files.arm({.effect = FileFault::Effect::crash, .at = at});
      EXPECT_THROW(scene.run(), IoError);
      const std::string what = fmt::format("killed in call {}, {}; then power failed in call {}", at,
                                           scene.files.calls().back().to_string(), later);
      scene.files.lose_unsynced(Loss::nothing);
      scene.files.arm({.effect = FileFault::Effect::crash, .at = later});
      EXPECT_THROW(scene.run(), IoError);
      scene.files.lose_unsynced(Loss::all);
      scene.expect_sound(what);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CheckpointFolderFaults, ErrorAtEveryCallIsReportedAndHarmless) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  using Effect = FileFault::Effect;
  for (size_t at = 0; at < calls; ++at) {
    for (const int error : {ENOSPC, EIO, EROFS}) {
      for (const Effect effect : {Effect::error, Effect::short_write}) {
        for (const bool again : {false, true}) {
          Scene scene(GetParam());
          scene.files.arm({.effect = effect, .error = error, .at = at, .again = again});
          const std::string message = message_of<IoError>([&] { scene.run(); });
          const std::string what =
              fmt::format("error {}{} in call {}, {}", error, again ? " again and again" : "", at,
                          scene.files.calls().at(at).to_string());
          EXPECT_THAT(message, HasSubstr(std::system_category().message(error))) << what;
          scene.expect_sound(what);
          scene.files.lose_unsynced(Loss::all);
          scene.expect_sound(what + ", then a crash");
          scene.run();
          scene.expect_new(what + ", and saved again");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(CheckpointFolderFaults, FolderIsUsableAfterAFailedSave) {
  const size_t calls = Scene(GetParam()).calls_of_a_run();
  for (size_t at = 0; at < calls; ++at) {
    Scene scene(GetParam());
    CheckpointFolder folder(scene.path, scene.files);
    scene.files.arm({.at = at});
    message_of<IoError>([&] { scene.save_and_prune(folder); });
    if (!scene.files.struck()) break;
    const std::string what = scene.files.calls().at(at).to_string();
    scene.expect_sound(what);
    scene.files.reset();
    scene.save_and_prune(folder);
    EXPECT_EQ(tags_in(scene.path), scene.after(true)) << what;
    EXPECT_EQ(latest(scene.path), checkpoint_name(GetParam())) << what;
  }
}

TEST_P(CheckpointFolderFaults, LateFailureSaysThatTheCheckpointIsThere) {
  const auto failing = [&](FileFault fault) {
    Scene scene(GetParam());
    CheckpointFolder folder(scene.path, scene.files);
    scene.files.arm(std::move(fault));
    const std::string message =
        message_of<LateFailure>([&] { save_tagged(folder, scene.files, GetParam(), "cccccccc"); });
    EXPECT_EQ(tags_in(scene.path), scene.after(false)) << message;
    EXPECT_THAT(message,
                AllOf(HasSubstr(checkpoint_name(GetParam())), HasSubstr("complete and in its place")));
    return message;
  };
  // After those of model, optim and the temporary folder.
  EXPECT_THAT(failing({.at = 3, .only = FileCall::sync_folder}), HasSubstr("may not survive"));
  EXPECT_THAT(failing({.only = FileCall::create_new, .path = "latest"}), HasSubstr("'latest' may still"));
  EXPECT_THAT(failing({.only = FileCall::rename, .path = "latest"}), HasSubstr("'latest' may still"));
  EXPECT_THAT(failing({.at = 4, .only = FileCall::sync_folder}), HasSubstr("'latest' may still"));
  if (GetParam() == 20) {
    EXPECT_THAT(failing({.only = FileCall::remove_all}), HasSubstr("could not be removed"));
  }
}

INSTANTIATE_TEST_SUITE_P(FreshAndTakenName, CheckpointFolderFaults, testing::Values(30, 20));

}  // namespace
}  // namespace sherd::test
