// Ranks whose copies of weights and checkpoints differ: all are refused alike, before anything is loaded.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <mutex>
#include <set>

#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/same_copies.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/comm/core/require_equal.h>

#include "support/message_of.h"
#include "support/stored_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;

/// Returns the error of every rank, if all threw the same; "" if none threw. `odd`: RanksDiffer::ranks().
std::string said_by_all(int ranks, const std::function<void(RankContext&)>& body,
                        std::vector<int>* odd = nullptr) {
  std::mutex mutex;
  std::set<std::string> texts;
  launch(ranks, [&](RankContext& r) {
    std::string text;
    std::vector<int> found;
    try {
      body(r);
    } catch (const RanksDiffer& e) {
      text = e.what();
      found = e.ranks();
    } catch (const IoError& e) {
      text = e.what();
    } catch (const CorruptCheckpoint& e) {
      text = e.what();
    }
    const std::lock_guard lock(mutex);
    texts.insert(text);
    if (odd != nullptr) *odd = found;
  });
  EXPECT_EQ(texts.size(), 1u) << "every rank says the same";
  return *texts.begin();
}

std::string nth(const TemporaryFolder& folder, RankContext& r) {
  return folder / std::to_string(r.world->rank());
}

void flip(const fs::path& file, int64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const char byte = static_cast<char>(stream.get() ^ 1);
  stream.seekp(at);
  stream.put(byte);
}

/// Folders 0 .. ranks - 1 with equal weights in `files` files.
void write_copies(const TemporaryFolder& folder, int ranks, int files = 1) {
  for (int r = 0; r < ranks; ++r) {
    std::mt19937_64 random(7);
    write_folder(folder, std::to_string(r), file_tensors({}, true, "F32", random), files);
  }
}

std::string imported(const TemporaryFolder& folder, int ranks, Strategy strategy,
                     std::vector<int>* odd = nullptr, bool compare = true) {
  return said_by_all(
      ranks,
      [&](RankContext& r) {
        StoredModel model(r, {.shard = ranks}, {});
        model.wrap(strategy);
        import_weights(model, nth(folder, r), stored_forms({}), {.compare_copies = compare});
      },
      odd);
}

constexpr Strategy kBoth[] = {Strategy::no_shard, Strategy::optim_grads_params};

TEST(SameCopies, EqualWeightsUnderDifferentPathsAreAccepted) {
  for (const int files : {1, 3}) {
    const TemporaryFolder folder;
    write_copies(folder, 3, files);
    for (const Strategy strategy : kBoth) EXPECT_EQ(imported(folder, 3, strategy), "");
  }
}

TEST(SameCopies, AByteInTheMiddleOfOneTensorIsNamedWithRankFileAndDigests) {
  for (const int files : {1, 3}) {
    const TemporaryFolder folder;
    write_copies(folder, 3, files);
    const std::string name = files == 1 ? "model.safetensors" : "model-00002-of-00003.safetensors";
    const SafetensorsReader file(folder / ("1/" + name));
    const SafetensorsEntry& entry = file.entries()[file.entries().size() / 2];
    flip(file.path(), file.header_bytes() + (entry.begin + entry.end) / 2);
    for (const Strategy strategy : kBoth) {
      std::vector<int> odd;
      EXPECT_THAT(
          imported(folder, 3, strategy, &odd),
          AllOf(HasSubstr("different copies"), HasSubstr("rank 1 has XXH3 "),
                HasSubstr("ranks 0, 2 have XXH3 "), HasSubstr(name), HasSubstr(folder / "1"),
                HasSubstr("copy the files"), Not(HasSubstr(files == 1 ? "2-of-00003" : "1-of-00003"))));
      EXPECT_THAT(odd, ElementsAre(1));
    }
    EXPECT_EQ(imported(folder, 3, Strategy::no_shard, nullptr, /*compare=*/false), "");
  }
}

TEST(SameCopies, OfTwoRanksBothAreNamed) {
  const TemporaryFolder folder;
  write_copies(folder, 2);
  flip(folder / "0/model.safetensors",
       static_cast<int64_t>(fs::file_size(folder / "0/model.safetensors")) - 1);
  std::vector<int> odd;
  EXPECT_THAT(imported(folder, 2, Strategy::no_shard, &odd),
              AllOf(HasSubstr("rank 0 has"), HasSubstr("rank 1 has")));
  EXPECT_THAT(odd, ElementsAre(0, 1));
}

TEST(SameCopies, OneFileMoreOrAnotherSplitIsNamed) {
  const TemporaryFolder folder;
  write_copies(folder, 3);
  std::mt19937_64 random(7);
  fs::remove_all(folder / "2");
  write_folder(folder, "2", file_tensors({}, true, "F32", random), 2);
  EXPECT_THAT(imported(folder, 3, Strategy::no_shard),
              AllOf(HasSubstr("rank 2 has"), HasSubstr("ranks 0, 1 have no such file")));
}

TEST(SameCopies, AFileThatOneRankCannotReadIsNamedOnAll) {
  const TemporaryFolder folder;
  write_copies(folder, 3);
  fs::remove_all(folder / "1");
  EXPECT_THAT(imported(folder, 3, Strategy::no_shard),
              AllOf(HasSubstr("rank 1: "), HasSubstr("it is missing")));
  // If no rank has it, no rank is named.
  fs::remove_all(folder / "0");
  fs::remove_all(folder / "2");
  const std::string missing = message_of<IoError>([&] {
    launch(3, [&](RankContext& r) {
      StoredModel model(r, {.shard = 3}, {});
      model.wrap();
      import_weights(model, folder / "0", stored_forms({}));
    });
  });
  EXPECT_THAT(missing, AllOf(HasSubstr("it is missing"), Not(HasSubstr("rank "))));
}

// ---- checkpoints

/// Saves steps of a model that began with `seed` to folders 0 .. ranks - 1.
void save_copies(const TemporaryFolder& folder, int ranks, std::vector<int64_t> steps, uint64_t seed = 3) {
  for (int copy = 0; copy < ranks; ++copy) {
    launch(2, [&](RankContext& r) {
      Pieces model(r, {.shard = 2});
      model.wrap({}, {.seed = seed});
      CheckpointSaver saver(r.world, checkpoint_tensors(model, nullptr),
                            {.folder = folder / std::to_string(copy)});
      for (const int64_t step : steps) saver.save({.step = step});
    });
  }
}

std::string resumed(const TemporaryFolder& folder, int ranks, const std::string& below = "",
                    bool reader = false, std::vector<int>* odd = nullptr,
                    Strategy strategy = Strategy::optim_grads_params) {
  return said_by_all(
      ranks,
      [&](RankContext& r) {
        Pieces model(r, {.shard = ranks});
        model.wrap({.strategy = strategy}, {.seed = 4});
        const fs::path path = fs::path(nth(folder, r)) / below;
        if (reader) {
          CheckpointReader opened = CheckpointReader::open(path);
          load_checkpoint(opened, model, nullptr, {.optimizer = false});
        } else {
          const Resumed from = resume(path, model, nullptr, {.optimizer = false});
          EXPECT_THAT(from.path.string(), HasSubstr(nth(folder, r))) << "its own copy";
        }
      },
      odd);
}

TEST(SameCopies, EqualCheckpointsUnderDifferentPathsAreAccepted) {
  const TemporaryFolder folder;
  save_copies(folder, 3, {1, 2});
  for (const Strategy strategy : kBoth) {
    EXPECT_EQ(resumed(folder, 3, "", false, nullptr, strategy), "");
    EXPECT_EQ(resumed(folder, 3, "step_00000001/", false, nullptr, strategy), "");
    EXPECT_EQ(resumed(folder, 3, "step_00000001", true, nullptr, strategy), "");
  }
}

TEST(SameCopies, ACheckpointOfTheSameStepWithOtherContentsIsRefused) {
  const TemporaryFolder folder;
  save_copies(folder, 3, {1});
  fs::remove_all(folder / "2");
  const TemporaryFolder other;
  save_copies(other, 1, {1}, 5);
  fs::copy(other / "0", folder / "2", fs::copy_options::recursive);
  for (const Strategy strategy : kBoth) {
    for (const bool reader : {false, true}) {
      std::vector<int> odd;
      EXPECT_THAT(resumed(folder, 3, "step_00000001", reader, &odd, strategy),
                  AllOf(HasSubstr("manifest.binpb: rank 2 has XXH3 "), HasSubstr("ranks 0, 1 have XXH3 ")));
      EXPECT_THAT(odd, ElementsAre(2));
    }
    EXPECT_THAT(resumed(folder, 3), HasSubstr("manifest.binpb: rank 2 has XXH3 "));
  }
}

TEST(SameCopies, SaveFoldersWithOtherNewestCheckpointsAreRefused) {
  for (const int behind : {0, 2}) {
    const TemporaryFolder folder;
    save_copies(folder, 3, {1, 2});
    fs::remove_all(folder / (std::to_string(behind) + "/step_00000002"));
    std::vector<int> odd;
    EXPECT_THAT(resumed(folder, 3, "", false, &odd),
                AllOf(HasSubstr("the checkpoint to resume from: "), HasSubstr("step_00000001"),
                      HasSubstr("step_00000002")));
    EXPECT_THAT(odd, ElementsAre(behind));
  }
}

TEST(SameCopies, ARankThatFindsNoCheckpointIsNamed) {
  for (const int without : {0, 1}) {
    const TemporaryFolder folder;
    save_copies(folder, 3, {1});
    fs::remove_all(folder / std::to_string(without));
    EXPECT_THAT(resumed(folder, 3), HasSubstr("rank " + std::to_string(without) + ": cannot resume from"));
  }
}

TEST(SameCopies, ADamagedNewestOfOneRankIsPassedOverByAll) {
  const TemporaryFolder folder;
  save_copies(folder, 2, {1, 2});
  const fs::path manifest = folder / "1/step_00000002/manifest.binpb";
  flip(manifest, static_cast<int64_t>(fs::file_size(manifest)) - 1);
  EXPECT_EQ(resumed(folder, 2), "");
}

// ---- cost

TEST(SameCopies, OfAGigabyteLessThanAPercentIsRead) {
  const TemporaryFolder folder;
  constexpr int64_t kBytes = int64_t{1} << 30, kTensors = 256;
  std::vector<std::string> entries;
  for (int64_t i = 0; i < kTensors; ++i)
    entries.push_back(fmt::format(R"("t{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", i,
                                  kBytes / kTensors / 4, i * kBytes / kTensors, (i + 1) * kBytes / kTensors));
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  const std::string path =
      folder.write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + header);
  const auto data = static_cast<int64_t>(8 + header.size());
  fs::resize_file(path, static_cast<uintmax_t>(data + kBytes));  // sparse
  int64_t read = 0;
  const uint64_t before = weights_copies(folder.path(), FileSystem::posix(), &read).front().digest;
  EXPECT_GT(read, kTensors * 2 * 4096);
  EXPECT_LT(read, kBytes / 100);
  // Whatever the size, the first and the last bytes of every tensor are among them.
  for (const int64_t at : {int64_t{0}, kBytes / kTensors - 1}) {
    flip(path, data + 77 * (kBytes / kTensors) + at);
    EXPECT_NE(weights_copies(folder.path()).front().digest, before) << at;
    flip(path, data + 77 * (kBytes / kTensors) + at);
  }
  EXPECT_EQ(weights_copies(folder.path()).front().digest, before);
}

}  // namespace
}  // namespace sherd::test
