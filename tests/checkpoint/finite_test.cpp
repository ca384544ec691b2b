// Non-finite values: counted, saved with their places, found again.
#include <cmath>
#include <cstring>
#include <limits>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/comm/launcher.h>
#include <sherd/kernels/ops.h>

#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
NotFinite count(const std::vector<float>& values, int64_t at = 0) {
  std::vector<T> typed;
  for (const float v : values) typed.push_back(static_cast<T>(v));
  NotFinite found;
  count_not_finite(dtype_of<T>(), typed.data(), static_cast<int64_t>(typed.size()), at, found);
  return found;
}

TEST(NotFinite, IsCountedInEveryFloatTypeAndTheFirstIsNamed) {
  std::vector<float> values(10'000, 3.0f);
  EXPECT_EQ(count<float>(values), (NotFinite{0, 0}));
  values[5001] = kNan;
  values[5002] = -kInfinity;
  values[9999] = kInfinity;
  const NotFinite want{3, 7 + 5001};
  EXPECT_EQ(count<float>(values, 7), want);
  EXPECT_EQ(count<double>(values, 7), want);
  EXPECT_EQ(count<bf16>(values, 7), want);
  EXPECT_EQ(count<f16>(values, 7), want);
  EXPECT_EQ(
      count<float>({std::numeric_limits<float>::max(), -0.0f, std::numeric_limits<float>::denorm_min()}),
      (NotFinite{0, 0}));
  EXPECT_EQ(count<int32_t>({1, 2}), (NotFinite{0, 0}));
}

TEST(NotFinite, CountsContinueFromEarlierOnes) {
  NotFinite found{2, 5};
  count_not_finite(DType::f32, &kNan, 1, 9, found);
  EXPECT_EQ(found, (NotFinite{3, 5}));
}

TEST(NotFinite, AnIndexOfABoxIsOneOfTheTensor) {
  // Rows 1 and 2, columns 2 to 4 of [4, 5].
  EXPECT_EQ(index_in_whole({4, 5}, {{1, 2}, {2, 3}}, 0), 7);
  EXPECT_EQ(index_in_whole({4, 5}, {{1, 2}, {2, 3}}, 4), 13);
}

// [rows, 3] of ones; rank r of 2 holds its half. 400,000 rows are several blocks of checksums.
constexpr int64_t kRows = 400'000;

LocalTensor half(RankContext& rank, const std::string& name, Section section,
                 const std::vector<int64_t>& wild) {
  const int64_t rows = kRows / 2, first = rank.world->rank() * rows;
  std::vector<float> values(static_cast<size_t>(rows * 3), 1.0f);
  for (const int64_t i : wild)
    if (i >= first * 3 && i < (first + rows) * 3) values[static_cast<size_t>(i - first * 3)] = kNan;
  LocalTensor t{name,
                section,
                DType::f32,
                {kRows, 3},
                {{{first, 0}, {rows, 3}}},
                Tensor::empty(*rank.device, {rows * 3}, DType::f32, "test")};
  ops::copy_from_host(rank.device->compute(), t.data, values.data(), t.data.nbytes());
  return t;
}

TEST(NotFinite, AreSavedWithTheirPlacesAndFoundByVerification) {
  for (const bool async : {false, true}) {
    const TemporaryFolder folder(TemporaryFolder::in_memory());
    std::vector<int64_t> told(2, -1);
    launch(2, {.device = {.threads = 1}}, [&](RankContext& rank) {
      CheckpointSaver saver(rank.world,
                            {half(rank, "good", Section::model, {}),
                             half(rank, "bad", Section::model, {3 * kRows - 1, 700'001, 700'002}),
                             half(rank, "state", Section::optim, {5})},
                            {.folder = folder.path(), .async = async});
      saver.save({.step = 1});
      saver.wait();
      told[static_cast<size_t>(rank.world->rank())] = saver.take_reports().at(0).not_finite;
    });
    EXPECT_EQ(told[0], 3);
    const CheckpointReader reader = CheckpointReader::open(folder.path() / checkpoint_name(1));
    const Manifest& m = reader.manifest();
    EXPECT_EQ(not_finite_of(*m.find(Section::model, "good")), (NotFinite{0, 0}));
    EXPECT_EQ(not_finite_of(*m.find(Section::model, "bad")), (NotFinite{3, 700'001}));
    EXPECT_EQ(not_finite_of(*m.find(Section::optim, "state")), (NotFinite{1, 5}));
    EXPECT_EQ(model_not_finite(m), 3);

    const Verification found = verify_contents(folder.path() / checkpoint_name(1));
    EXPECT_THAT(found.damage, IsEmpty());
    ASSERT_EQ(found.not_finite.size(), 2u);
    for (const TensorNotFinite& t : found.not_finite)
      EXPECT_EQ(t.values, t.name == "bad" ? (NotFinite{3, 700'001}) : (NotFinite{1, 5})) << t.name;
  }
}

TEST(Saver, OverwritingRemovesTheOtherRunOnceAFiniteCheckpointIsThere) {
  const TemporaryFolder folder;
  const auto names = [&] {
    std::vector<std::string> all;
    for (const CommittedCheckpoint& c : list_checkpoints(folder.path(), FileSystem::posix()))
      all.push_back(c.name);
    return all;
  };
  const auto save = [&](const std::vector<int64_t>& steps, bool overwrite, bool wild) {
    launch(1, {.device = {.threads = 1}}, [&](RankContext& rank) {
      LocalTensor t{"t", Section::model, DType::f32,
                    {1}, {{{0}, {1}}},   Tensor::empty(*rank.device, {1}, DType::f32, "test")};
      CheckpointSaver saver(rank.world, {t}, {.folder = folder.path(), .overwrite = overwrite});
      for (const int64_t step : steps) {
        ops::fill(rank.device->compute(), t.data, wild && step == steps.front() ? kNan : 1);
        saver.save({.step = step});
      }
    });
  };
  save({1, 2, 3}, false, false);
  save({10}, true, true);
  EXPECT_THAT(names(),
              ::testing::ElementsAre("step_00000010", "step_00000003", "step_00000002", "step_00000001"));
  save({20, 30}, true, true);
  EXPECT_THAT(names(), ::testing::ElementsAre("step_00000030", "step_00000020"));
}

TEST(Saver, AFolderThatIsNotAdmittedIsRefusedOnEveryRank) {
  const TemporaryFolder folder;
  std::vector<std::string> thrown(2);
  launch(2, {.device = {.threads = 1}}, [&](RankContext& rank) {
    thrown[static_cast<size_t>(rank.world->rank())] = message_of<IoError>([&] {
      CheckpointSaver saver(rank.world, {},
                            {.folder = folder.path(), .admit = [] { throw IoError("somebody else's"); }});
    });
  });
  EXPECT_THAT(thrown, ::testing::Each("somebody else's"));
}

}  // namespace
}  // namespace sherd::test
