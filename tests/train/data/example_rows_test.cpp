// Rows of examples: masks, packing, refused data, and their windows.
#include <sherd/train/data/example_rows.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>

#include <sherd/base/error.h>
#include <sherd/train/data/token_format.h>
#include <sherd/train/data/token_windows.h>

#include "example_files.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd {
namespace {

using Tokens = std::vector<int32_t>;

std::shared_ptr<const TokenStream> stream_of(const TemporaryFolder& folder,
                                             const std::vector<Tokens>& examples) {
  const std::filesystem::path prefix = folder.path() / "chats";
  write_examples(prefix, examples);
  return std::make_shared<const TokenStream>("chats",
                                             std::vector{open_token_file(prefix, TokenFormat::megatron)});
}

int32_t context(int32_t token) { return -1 - token; }

// An example of n tokens, of which the last is learned.
Tokens example_of(int64_t n, int32_t token = 1) {
  Tokens e(static_cast<size_t>(n), context(token));
  e.back() = token;
  return e;
}

struct Row {
  Tokens inputs, targets, starts;
};
Row row_of(const ExampleRows& rows, int64_t row, int64_t seq) {
  Row r;
  for (Tokens* part : {&r.inputs, &r.targets, &r.starts}) part->resize(static_cast<size_t>(seq));
  rows.fill(row, r.inputs.data(), r.targets.data(), r.starts.data());
  return r;
}

TEST(ExampleRows, LearnedTokensAreTargetsAndTheRestIsContext) {
  const TemporaryFolder folder;
  const auto tokens = stream_of(folder, {{context(5), context(6), 7, 8, context(9)}, {context(0), 3}});
  const ExampleRows rows(*tokens, {.seq = 6, .vocab = 10});
  ASSERT_EQ(rows.train_count(), 2);
  const Row first = row_of(rows, 0, 6), second = row_of(rows, 1, 6);
  EXPECT_THAT(first.inputs, ElementsAre(5, 6, 7, 8, 0, 0));
  EXPECT_THAT(first.targets, ElementsAre(-1, 7, 8, -1, -1, -1));
  EXPECT_THAT(first.starts, ElementsAre(0, 0, 0, 0, 4, 4));
  EXPECT_THAT(second.inputs, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(second.targets, ElementsAre(3, -1, -1, -1, -1, -1));
  EXPECT_EQ(rows.learned(0), 2);
  EXPECT_EQ(rows.learned(1), 1);
  EXPECT_EQ(rows.places(0), 4);
  EXPECT_EQ(rows.places(1), 1);
  EXPECT_DOUBLE_EQ(rows.filled(), 5.0 / 12);
}

TEST(ExampleRows, PackedRowsHaveTheirExamplesInOrder) {
  const TemporaryFolder folder;
  // Places: 2, 5, 3, 6, 1, so that rows of 6 are full with {3}, {1, 4} and {0, 2} but one.
  const auto tokens = stream_of(
      folder, {example_of(3, 1), example_of(6, 2), example_of(4, 3), example_of(7, 4), example_of(2, 5)});
  const ExampleRows rows(*tokens, {.seq = 6, .vocab = 10, .packed = true});
  ASSERT_EQ(rows.train_count(), 3);
  const Row first = row_of(rows, 0, 6), second = row_of(rows, 1, 6), third = row_of(rows, 2, 6);
  EXPECT_THAT(first.inputs, ElementsAre(1, 1, 3, 3, 3, 0));
  EXPECT_THAT(first.targets, ElementsAre(-1, 1, -1, -1, 3, -1));
  EXPECT_THAT(first.starts, ElementsAre(0, 0, 2, 2, 2, 5));
  EXPECT_THAT(second.inputs, ElementsAre(2, 2, 2, 2, 2, 5));
  EXPECT_THAT(second.targets, ElementsAre(-1, -1, -1, -1, 2, 5));
  EXPECT_THAT(second.starts, ElementsAre(0, 0, 0, 0, 0, 5));
  EXPECT_THAT(third.starts, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_EQ(rows.learned(0), 2);
  EXPECT_EQ(rows.places(0), 5);
  EXPECT_EQ(rows.places(2), 6);
  EXPECT_DOUBLE_EQ(rows.filled(), 17.0 / 18);
}

TEST(ExampleRows, EveryExampleIsInOneRow) {
  const TemporaryFolder folder;
  std::vector<Tokens> examples;
  for (int32_t i = 0; i < 500; ++i) examples.push_back(example_of(2 + i * 7919 % 60, i));
  const auto tokens = stream_of(folder, examples);
  for (const bool packed : {false, true}) {
    const ExampleRows rows(*tokens, {.seq = 64, .vocab = 1000, .packed = packed, .hold_out = true});
    std::multiset<int32_t> learned, held_out;
    for (int64_t r = 0; r < rows.train_count() + rows.held_out_count(); ++r)
      for (const int32_t t : row_of(rows, r, 64).targets)
        if (t >= 0) (r < rows.train_count() ? learned : held_out).insert(t);
    ASSERT_EQ(learned.size(), 490u);
    ASSERT_EQ(held_out.size(), 10u);
    for (int32_t i = 0; i < 500; ++i) EXPECT_EQ((i < 490 ? learned : held_out).count(i), 1u) << i;
    EXPECT_EQ(rows.train_count() == 490, !packed);
    if (packed) {
      EXPECT_GT(rows.filled(), 0.98);
    }
  }
}

TEST(ExampleRows, ExamplesThatCannotBeTrainedOnAreRefusedWithTheirCount) {
  const TemporaryFolder folder;
  const auto tokens = stream_of(
      folder,
      {example_of(3), Tokens{context(1), context(2)}, example_of(9), {7}, example_of(12), {context(1), 50}});
  const std::string message = message_of<IoError>([&] { ExampleRows(*tokens, {.seq = 6, .vocab = 10}); });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("1 example with tokens outside of the vocabulary of 10, the first of them number 6"),
            HasSubstr("2 examples without a token to learn, the first of them number 2"),
            HasSubstr(
                "2 examples of more than --seq 6 + 1 tokens, the first of them number 3: raise --seq to 11"),
            HasSubstr("--max-tokens 7")));
}

TEST(ExampleRows, FilesWithoutAMaskAreRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "raw", std::ios::binary) << "abcdefgh";
  const TokenStream tokens("raw", {open_token_file(folder.path() / "raw", TokenFormat::u16)});
  EXPECT_THAT(message_of<IoError>([&] { ExampleRows(tokens, {.seq = 6, .vocab = 10}); }),
              HasSubstr("are of u16, without a mask; make them with scripts/tokenize.py --chat"));
}

TEST(TokenWindows, RowsOfExamplesAreTakenOncePerEpochInRandomOrder) {
  const TemporaryFolder folder;
  std::vector<Tokens> examples;
  for (int32_t i = 0; i < 100; ++i) examples.push_back(example_of(2 + i % 9, i));
  const TokenWindows windows(
      {{stream_of(folder, examples), 1}}, nullptr,
      {.seq = 16, .vocab = 100, .order = TokenOrder::shuffled, .examples = true, .packed = true});
  const int64_t rows = windows.train_count();
  EXPECT_EQ(windows.held_out_count(), 1);
  for (const int64_t epoch : {0, 1}) {
    std::set<int64_t> seen;
    int64_t learned = 0;
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t w = windows.train_window(epoch * rows + n, 3);
      seen.insert(w);
      learned += windows.learned(w);
    }
    EXPECT_EQ(std::ssize(seen), rows);
    EXPECT_EQ(learned, 98);
  }
  EXPECT_NE(windows.train_window(0, 3) == windows.train_window(rows, 3) &&
                windows.train_window(1, 3) == windows.train_window(rows + 1, 3),
            true);
  EXPECT_THAT(windows.summary(), AllOf(HasSubstr("100 examples of"), HasSubstr("% filled, shuffled")));
  EXPECT_THAT(windows.describe(), HasSubstr("windows of 16, packed examples, shuffled"));
}

TEST(TokenWindows, SetsOfEvaluationDataAreRowsOfExamplesToo) {
  const TemporaryFolder train, web, code;
  const auto data = stream_of(train, std::vector<Tokens>(100, example_of(4)));
  const std::vector<EvaluationTokens> sets{
      {"web", stream_of(web, {example_of(9, 7), example_of(3, 8), example_of(3, 9)}), 3},
      {"code", stream_of(code, {example_of(9, 5)}), 1}};
  for (const bool packed : {false, true}) {
    const TokenWindows windows({{data, 1}}, sets,
                               {.seq = 8, .vocab = 100, .examples = true, .packed = packed});
    EXPECT_EQ(windows.train_count(), packed ? 50 : 100) << "nothing of the data is held out";
    const auto all = windows.evaluation_sets();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].weight, 0.75);
    ASSERT_EQ(std::ssize(all[0].windows), packed ? 2 : 3);
    ASSERT_EQ(std::ssize(all[1].windows), 1);
    EXPECT_EQ(windows.learned(all[0].windows.back()), packed ? 2 : 1);
    EXPECT_EQ(windows.learned(all[1].windows[0]), 1);
    Tokens inputs(8), targets(8), starts(8);
    windows.fill(all[0].windows.back(), inputs.data(), targets.data(), starts.data());
    EXPECT_EQ(targets[packed ? 3 : 1], 9);
    windows.fill(all[1].windows[0], inputs.data(), targets.data(), starts.data());
    EXPECT_EQ(targets[7], 5);
    EXPECT_THAT(windows.summary(), HasSubstr("validation data web, chats: 3 examples of 15 tokens"));
    EXPECT_THAT(windows.describe_evaluation(), testing::EndsWith(packed ? "packed examples" : ", examples"));
  }
}

}  // namespace
}  // namespace sherd
