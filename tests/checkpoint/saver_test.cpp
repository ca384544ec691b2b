// Saving tensors of any cut, dtype and number of ranks, and what failures of single ranks do to the others.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/comm/core/require_equal.h>
#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>

#include "support/fault_file_system.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

// A tensor whose elements are distributed by flat cuts: rank r holds [cuts[r], cuts[r + 1]).
struct CutTensor {
  std::string name;
  Section section = Section::model;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<int64_t> cuts;
  int64_t bytes() const { return numel_of(shape) * size_of(dtype); }
  std::vector<char> values() const {
    std::vector<char> v(static_cast<size_t>(bytes()));
    uint32_t x = static_cast<uint32_t>(std::hash<std::string>{}(name));
    for (char& c : v) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
    return v;
  }
};

LocalTensor piece_of(Device& device, const CutTensor& w, int rank) {
  const int64_t begin = w.cuts[static_cast<size_t>(rank)], end = w.cuts[static_cast<size_t>(rank) + 1];
  LocalTensor t{w.name,
                w.section,
                w.dtype,
                w.shape,
                boxes_of(w.shape, {ParamIndex(begin), ParamIndex(end)}),
                Tensor::empty(device, {end - begin}, w.dtype, "test")};
  ops::copy_from_host(device.compute(), t.data, w.values().data() + begin * size_of(w.dtype),
                      t.data.nbytes());
  return t;
}

std::vector<LocalTensor> pieces_of(RankContext& rank, const std::vector<CutTensor>& all) {
  std::vector<LocalTensor> pieces;
  for (auto& w : all) pieces.push_back(piece_of(*rank.device, w, rank.world->rank()));
  return pieces;
}

CutTensor even(std::string name, Shape shape, int ranks, DType dtype = DType::f32,
               Section s = Section::model) {
  CutTensor w{std::move(name), s, dtype, std::move(shape), {}};
  for (int r = 0; r <= ranks; ++r) w.cuts.push_back(numel_of(w.shape) * r / ranks);
  return w;
}

RC_GTEST_PROP(SavedTensors, AnyCutOfAnyTensorComesBackInAnyBoxes, ()) {
  const int ranks = *rc::gen::inRange(1, 6);
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8};
  std::vector<CutTensor> all;
  const int count = *rc::gen::inRange(1, 7);
  for (int i = 0; i < count; ++i) {
    CutTensor w;
    w.name = "t" + std::to_string(i);
    w.section = *rc::gen::arbitrary<bool>() ? Section::model : Section::optim;
    w.dtype = dtypes[*rc::gen::inRange(0, 7)];
    const int dims = *rc::gen::inRange(0, 4);
    for (int d = 0; d < dims; ++d) w.shape.push_back(*rc::gen::inRange<int64_t>(i == 0 ? 0 : 1, 9));
    w.cuts = *rc::gen::container<std::vector<int64_t>>(static_cast<size_t>(ranks) - 1,
                                                       rc::gen::inRange<int64_t>(0, numel_of(w.shape) + 1));
    w.cuts.push_back(0);
    w.cuts.push_back(numel_of(w.shape));
    std::sort(w.cuts.begin(), w.cuts.end());
    all.push_back(w);
  }
  const TemporaryFolder folder;
  launch(ranks, [&](RankContext& rank) {
    CheckpointSaver saver(rank.world, pieces_of(rank, all), {.folder = folder / "saved"});
    saver.save({.step = 12});
  });
  const std::string path = folder / "saved/step_00000012";
  RC_ASSERT(verify_checkpoint(path).empty());
  CheckpointReader reader = CheckpointReader::open(path);
  for (const CutTensor& w : all) {
    const CheckpointTensor* t = reader.find(w.section, w.name);
    RC_ASSERT(t != nullptr);
    RC_ASSERT(t->dtype == w.dtype);
    RC_ASSERT(t->shape == (w.shape.empty() ? Shape{1} : w.shape));
    const int64_t n = numel_of(w.shape), width = size_of(w.dtype);
    const int64_t a = *rc::gen::inRange<int64_t>(0, n + 1), b = *rc::gen::inRange<int64_t>(a, n + 1);
    std::vector<char> got(static_cast<size_t>((b - a) * width), 'x');
    reader.read(*t, boxes_of(w.shape, {ParamIndex(a), ParamIndex(b)}), got.data());
    const std::vector<char> values = w.values();
    RC_ASSERT(std::equal(got.begin(), got.end(), values.begin() + a * width));
  }
}

TEST(Saver, FilesAreNamedByRankAndBox) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& rank) {
    // Rank 1's piece of the matrix is the end of a row, two rows and the begin of another: three boxes.
    CutTensor matrix = even("matrix", {5, 4}, 2);
    matrix.cuts = {0, 2, 20};
    CutTensor vector = even("vector", {3}, 2, DType::f32, Section::optim);
    vector.cuts = {0, 3, 3};
    CheckpointSaver saver(rank.world, pieces_of(rank, {matrix, vector}), {.folder = folder / "saved"});
    saver.save({.step = 1});
    const auto reports = saver.take_reports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].committed, folder / "saved/step_00000001");
  });
  auto& files = FileSystem::posix();
  const std::filesystem::path saved = folder / "saved/step_00000001";
  EXPECT_THAT(files.list(saved / "model"), ElementsAre("shard-00001-model-00001-of-00001.safetensors",
                                                       "shard-00002-model-00001-of-00002.safetensors",
                                                       "shard-00002-model-00002-of-00002.safetensors"));
  EXPECT_THAT(files.list(saved / "optim"), ElementsAre("shard-00001-model-00001-of-00001.safetensors"));
  EXPECT_EQ(read_bytes(folder / "saved/latest"), "step_00000001\n");
}

TEST(Saver, CollectivesDoNotGrowWithTheNumberOfTensors) {
  std::vector<CommCounts> counts;
  for (const int tensors : {1, 200}) {
    const TemporaryFolder folder;
    launch(3, [&](RankContext& rank) {
      std::vector<CutTensor> all;
      for (int i = 0; i < tensors; ++i) all.push_back(even("t" + std::to_string(i), {7}, 3));
      CheckpointSaver saver(rank.world, pieces_of(rank, all), {.folder = folder / "saved"});
      saver.save({.step = 1});
      if (rank.world->rank() == 0) counts.push_back(saver.counts());
    });
  }
  for (const char* name : {"all_reduce", "broadcast", "gather_v"}) {
    EXPECT_EQ(counts[0][name].calls, counts[1][name].calls) << name;
    EXPECT_GE(counts[0][name].calls, 1) << name;
    EXPECT_LE(counts[0][name].calls, 5) << name;
  }
}

TEST(Saver, AsyncSavesWhatTheTensorsHeldThen) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& rank) {
    const std::vector<CutTensor> all{even("big", {512, 1024}, 2), even("small", {3}, 2)};
    const std::vector<LocalTensor> pieces = pieces_of(rank, all);
    CheckpointSaver saver(rank.world, pieces, {.folder = folder / "saved", .async = true});
    EXPECT_TRUE(saver.idle());
    saver.save({.step = 1});
    for (auto& t : pieces) ops::fill(rank.device->compute(), t.data, 9);
    while (!saver.idle()) std::this_thread::yield();
    EXPECT_EQ(saver.take_reports().size(), 1u);
    saver.save({.step = 2});
    saver.wait();
    EXPECT_EQ(saver.take_reports().size(), 1u);
  });
  CheckpointReader reader = CheckpointReader::open(folder / "saved/step_00000001");
  const CutTensor big = even("big", {512, 1024}, 2);
  std::vector<char> got(static_cast<size_t>(big.bytes()));
  const Box all{{0, 0}, {512, 1024}};
  reader.read(*reader.find(Section::model, "big"), {&all, 1}, got.data());
  EXPECT_TRUE(got == big.values());
  EXPECT_THAT(verify_checkpoint(folder / "saved/step_00000002"), IsEmpty());
}

/// Knows which threads have made files of tensors.
class Watched : public FaultFileSystem {
 public:
  std::unique_ptr<WritableFile> create_new(const std::filesystem::path& path) override {
    if (path.extension() == ".safetensors") {
      const std::lock_guard lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    return FaultFileSystem::create_new(path);
  }
  std::set<std::thread::id> threads() const { return threads_; }

 private:
  std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

// New threads for each save have cost memory that the C library did not give back.
TEST(Saver, OneThreadOfEachRankWritesAllAsyncSavesAndAFailedOneDoesNotEndIt) {
  const TemporaryFolder folder;
  Watched files;
  launch(2, [&](RankContext& rank) {
    const std::vector<CutTensor> all{even("a", {300'000}, 2)};
    CheckpointSaver saver(rank.world, pieces_of(rank, all),
                          {.folder = folder / "saved", .async = true, .files = &files});
    for (int step = 1; step <= 6; ++step) {
      if (rank.world->rank() == 0 && step == 3) files.arm({.error = ENOSPC, .only = FileCall::sync});
      saver.save({.step = step});
      if (step == 3) {
        EXPECT_THROW(saver.wait(), IoError);
      } else {
        saver.wait();
      }
    }
    EXPECT_EQ(saver.take_reports().size(), 5u);
  });
  EXPECT_EQ(files.threads().size(), 2u);
}

std::vector<float> read_whole(const std::filesystem::path& checkpoint, const std::string& name, int64_t n) {
  CheckpointReader reader = CheckpointReader::open(checkpoint);
  std::vector<float> got(static_cast<size_t>(n));
  const Box all{{0}, {n}};
  reader.read(*reader.find(Section::model, name), {&all, 1}, got.data());
  return got;
}

// The host neither waits for the copies nor for the disk, and nothing is written before it is asked for.
TEST(Saver, ASnapshotIsTakenWithoutWaitingAndWrittenWhenAsked) {
  const TemporaryFolder folder;
  launch(2, [&](RankContext& rank) {
    const std::vector<LocalTensor> pieces = pieces_of(rank, {even("a", {500'000}, 2)});
    Stream& compute = rank.device->compute();
    const auto set = [&](double value) {
      for (auto& t : pieces) ops::fill(compute, t.data, value);
    };
    CheckpointSaver saver(rank.world, pieces, {.folder = folder / "saved", .async = true});
    EXPECT_THROW(saver.write(), InvalidArgument);
    const int64_t waits = rank.device->host_syncs(std::this_thread::get_id());
    set(1);
    compute.wait(saver.snapshot({.step = 1}));  // dropped
    set(2);
    compute.wait(saver.snapshot({.step = 2}));
    set(3);
    EXPECT_TRUE(list_checkpoints(folder / "saved", FileSystem::posix()).empty());
    saver.write();
    EXPECT_EQ(rank.device->host_syncs(std::this_thread::get_id()), waits);
    EXPECT_THROW(saver.write(), InvalidArgument);
    saver.wait();
    EXPECT_EQ(saver.take_reports().size(), 1u);
    CheckpointSaver waiting(rank.world, pieces, {.folder = folder / "other"});
    EXPECT_THROW((void)waiting.snapshot({.step = 3}), InvalidArgument);
  });
  EXPECT_THAT(FileSystem::posix().list(folder / "saved"), ElementsAre("latest", "lock", "step_00000002"));
  EXPECT_EQ(read_whole(folder / "saved/step_00000002", "a", 500'000), std::vector<float>(500'000, 2));
}

// Copied in blocks of 1 MiB, two of them in turn.
TEST(Saver, TensorsOfManyBlocksComeWholeWhenTrainingWaits) {
  for (const int64_t n : {262'143, 262'144, 262'145, 1'000'003}) {
    const TemporaryFolder folder;
    launch(1, [&](RankContext& rank) {
      std::vector<LocalTensor> pieces = pieces_of(rank, {even("a", {n}, 1)});
      std::vector<float> values(static_cast<size_t>(n));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
      ops::copy_from_host(rank.device->compute(), pieces[0].data, values.data(), n * 4);
      CheckpointSaver saver(rank.world, pieces, {.folder = folder / "saved"});
      saver.save({.step = 1});
      rank.device->allocator().reset_peak();
      saver.save({.step = 2});
      EXPECT_LE(rank.device->allocator().peak_bytes() - rank.device->allocator().live_bytes(), 2 << 20);
    });
    const std::vector<float> got = read_whole(folder / "saved/step_00000001", "a", n);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(i));
  }
}

// One rank's disk is full: every rank gets the failure, the earlier checkpoint stays, and saving works again
// later.
TEST(Saver, OneRanksFailureIsEveryRanksError) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    FaultFileSystem files;
    std::atomic<int> told{0};
    launch(3, {.timeout = std::chrono::seconds(20)}, [&](RankContext& rank) {
      const std::vector<CutTensor> all{even("a", {40, 10}, 3),
                                       even("b", {9}, 3, DType::bf16, Section::optim)};
      CheckpointSaver saver(rank.world, pieces_of(rank, all),
                            {.folder = folder / "saved", .async = async, .files = &files});
      saver.save({.step = 1});
      saver.wait();
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
      if (rank.world->rank() == 0)
        files.arm({.effect = FileFault::Effect::short_write,
                   .error = ENOSPC,
                   .only = FileCall::write,
                   .path = "shard-00002"});
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
      const std::string message = message_of<IoError>([&] {
        saver.save({.step = 2});
        saver.wait();
      });
      EXPECT_THAT(message, HasSubstr("shard-00002"));
      EXPECT_THAT(message, HasSubstr("No space left"));
      ++told;
      saver.save({.step = 3});
      saver.wait();
    });
    EXPECT_EQ(told, 3);
    auto& posix = FileSystem::posix();
    EXPECT_THAT(posix.list(folder / "saved"),
                ElementsAre("latest", "lock", "step_00000001", "step_00000003"));
    EXPECT_THAT(verify_checkpoint(folder / "saved/step_00000001"), IsEmpty());
    EXPECT_THAT(verify_checkpoint(folder / "saved/step_00000003"), IsEmpty());
  }
}

// Polling reports a failure on each rank at any time; the ranks leave the failed save at the same call.
TEST(Saver, PollingKeepsRanksInStep) {
  const TemporaryFolder folder;
  FaultFileSystem files;
  std::atomic<int> heard{0};
  launch(2, {.timeout = std::chrono::seconds(20)}, [&](RankContext& rank) {
    const std::vector<LocalTensor> pieces = pieces_of(rank, {even("a", {40, 10}, 2)});
    CheckpointSaver saver(rank.world, pieces, {.folder = folder / "saved", .async = true, .files = &files});
    const auto meet = [&] {
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
    };
    if (rank.world->rank() == 0)
      files.arm(
          {.effect = FileFault::Effect::error, .error = EIO, .only = FileCall::sync, .path = "shard-00001"});
    meet();
    saver.save({.step = 1});
    // Rank 1 polls until it gets the failure, twice; rank 0 does not poll.
    for (int times = 0; rank.world->rank() == 1 && times < 2;)
      if (message_of<IoError>([&] { saver.poll(); }).find("shard-00001") != std::string::npos) ++times;
    meet();
    for (auto& t : pieces) ops::fill(rank.device->compute(), t.data, 2);
    if (message_of<IoError>([&] { saver.save({.step = 2}); }).find("shard-00001") != std::string::npos)
      ++heard;
    for (auto& t : pieces) ops::fill(rank.device->compute(), t.data, 3);
    saver.save({.step = 3});
    saver.wait();
  });
  EXPECT_EQ(heard, 2);
  EXPECT_THAT(FileSystem::posix().list(folder / "saved"), ElementsAre("latest", "lock", "step_00000003"));
  CheckpointReader reader = CheckpointReader::open(folder / "saved/step_00000003");
  std::vector<float> got(400);
  const Box all{{0, 0}, {40, 10}};
  reader.read(*reader.find(Section::model, "a"), {&all, 1}, got.data());
  EXPECT_EQ(got, std::vector<float>(400, 3));
}

TEST(Saver, DifferentStepsOfRanksAreReported) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<RanksDiffer>([&] {
                launch(2, [&](RankContext& rank) {
                  CheckpointSaver saver(rank.world, pieces_of(rank, {even("a", {4}, 2)}),
                                        {.folder = folder / "saved"});
                  saver.save({.step = 1 + rank.world->rank()});
                });
              }),
              HasSubstr("different steps; every rank makes the same calls: rank 1 (2) differs from the "
                        "others (1)"));
}

// A disk that is slower than the longest wait for another rank does not count as a failed rank. That wait is
// long enough for what the constructor exchanges on a loaded machine.
TEST(Saver, SlowFilesAreNotAFailedPeer) {
  static constexpr std::chrono::seconds kTimeout{8};
  const TemporaryFolder folder;
  launch(2, {.timeout = kTimeout}, [&](RankContext& rank) {
    LocalTensor t = pieces_of(rank, {even("a", {4}, 2)})[0];
    if (rank.world->rank() == 1) {
      t.data = {};
      t.boxes = {{{2}, {1}}};
      t.value = [] {
        std::this_thread::sleep_for(kTimeout + std::chrono::seconds(1));
        return 1.0f;
      };
    } else {
      t.boxes = {{{0}, {2}}};
    }
    std::vector<LocalTensor> tensors{t};
    tensors[0].shape = {3};
    CheckpointSaver saver(rank.world, tensors, {.folder = folder / "saved"});
    saver.save({.step = 1});
  });
  EXPECT_THAT(verify_checkpoint(folder / "saved/step_00000001"), IsEmpty());
}

// A rank that vanishes in the middle of training while a save is in flight: the others do not hang.
TEST(Saver, AVanishedRankEndsTheOthersSave) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    static constexpr std::chrono::seconds kTimeout{120};
    const auto run = [&] {
      launch(3, {.timeout = kTimeout}, [&](RankContext& rank) {
        CheckpointSaver saver(rank.world, pieces_of(rank, {even("a", {40, 10}, 3)}),
                              {.folder = folder / "saved", .async = async});
        saver.save({.step = 1});
        saver.wait();
        if (rank.world->rank() == 1) throw Error("this rank is gone");
        saver.save({.step = 2});
        saver.wait();
      });
    };
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(message_of<Error>(run), StartsWith("this rank is gone"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout) << "nobody waits for a rank that is gone";
    EXPECT_EQ(list_checkpoints(folder / "saved", FileSystem::posix()).size(), 1u);
    EXPECT_THAT(verify_checkpoint(folder / "saved/step_00000001"), IsEmpty());
  }
}

TEST(Saver, RanksThatDoNotFitTogetherAreReportedBeforeAnyWrite) {
  const TemporaryFolder folder;
  const auto saving = [&](auto change) {
    return message_of<Error>([&] {
      launch(2, [&](RankContext& rank) {
        CutTensor w = even("weights", {6, 2}, 2);
        change(w, rank.world->rank());
        CheckpointSaver(rank.world, pieces_of(rank, {w}), {.folder = folder / "saved"});
      });
    });
  };
  EXPECT_THAT(saving([](CutTensor& w, int rank) { w.shape[0] += rank; }), HasSubstr("'weights'"));
  EXPECT_THAT(saving([](CutTensor& w, int) { w.cuts = {0, 6, 11}; }), HasSubstr("weights"));
  EXPECT_THAT(saving([](CutTensor& w, int rank) { w.cuts[1] += rank; }), HasSubstr("weights"));
  EXPECT_THAT(saving([](CutTensor& w, int rank) {
                if (rank == 1) w.dtype = DType::bf16;
              }),
              HasSubstr("bf16"));
}

TEST(Saver, TheFolderBelongsToOneRun) {
  const TemporaryFolder folder;
  launch(1, [&](RankContext& rank) {
    const auto pieces = pieces_of(rank, {even("a", {4}, 1)});
    CheckpointSaver saver(rank.world, pieces, {.folder = folder / "saved"});
    EXPECT_THAT(
        message_of<IoError>([&] { CheckpointSaver(rank.world, pieces, {.folder = folder / "saved"}); }),
        HasSubstr("saved"));
  });
}

TEST(Saver, AnAttemptThatWasOvertakenFailsForGoodOnEveryRank) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder;
    launch(2, [&](RankContext& rank) {
      CheckpointSaver saver(rank.world, pieces_of(rank, {even("a", {4}, 2)}),
                            {.folder = folder / "saved", .async = async});
      saver.save({.step = 1});
      saver.wait();
      rank.world->barrier(rank.device->compute());
      rank.device->compute().synchronize();
      if (rank.world->rank() == 0)
        folder.write("saved/lock", encode_lock({.attempt = 2, .token = "0123456789abcdef", .host = "node2"}));
      for (const int64_t step : {2, 3}) {
        try {
          saver.save({.step = step});
          saver.wait();
          ADD_FAILURE() << "step " << step << " was saved";
        } catch (const IoError& e) {
          ADD_FAILURE() << "a failure that is tried again: " << e.what();
        } catch (const Error& e) {
          EXPECT_THAT(e.what(), AllOf(HasSubstr("attempt 1 ("), HasSubstr("attempt 2 ("),
                                      HasSubstr("is not committed")));
        }
      }
    });
    std::vector<std::string> names;
    for (const auto& c : list_checkpoints(folder / "saved", FileSystem::posix())) names.push_back(c.name);
    EXPECT_THAT(names, ElementsAre("step_00000001"));
    EXPECT_EQ(read_bytes(folder / "saved/latest"), "step_00000001\n");
  }
}

}  // namespace
}  // namespace sherd::test
