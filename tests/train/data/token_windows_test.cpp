// Windows of token streams: orders, mixtures, validation files.
#include <sherd/train/data/token_windows.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <sherd/base/error.h>
#include <sherd/train/data/keyed_permutation.h>
#include <sherd/train/data/mixture.h>

#include "support/message_of.h"
#include "temporary_folder.h"
#include "train/memory_bytes.h"

namespace sherd {
namespace {

using test::counting_stream;

std::vector<uint64_t> images(uint64_t size, uint64_t key, uint64_t number) {
  const KeyedPermutation permutation(size, key, number);
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < size; ++i) all.push_back(permutation(i));
  return all;
}

TEST(KeyedPermutation, TakesEachPlaceOnce) {
  std::vector<uint64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const uint64_t power : {128u, 256u, 1024u, 4096u, 65536u})
    for (const uint64_t size : {power - 1, power, power + 1}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (const uint64_t number : {0u, 1u, 77u}) {
      std::vector<uint64_t> all = images(size, 5 * size, number);
      std::sort(all.begin(), all.end());
      for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(all[i], i) << size << " " << number;
    }
  }
  EXPECT_THROW(KeyedPermutation(0, 1, 1), InvalidArgument);
  EXPECT_THROW(KeyedPermutation(3, 1, 1)(3), InvalidArgument);
}

// Distinct, in range, and no smaller than a random sample would be spread.
TEST(KeyedPermutation, TakesSizesOfMoreThan32Bits) {
  for (const uint64_t size : {(uint64_t{1} << 32) - 1, uint64_t{1} << 32, (uint64_t{1} << 32) + 1,
                              uint64_t{1} << 40, (uint64_t{1} << 63) + 12345, ~uint64_t{0}}) {
    const KeyedPermutation permutation(size, 3, 4);
    std::set<uint64_t> seen;
    double mean = 0;
    constexpr int kSamples = 3000;
    for (int i = 0; i < kSamples; ++i) {
      const uint64_t at =
          permutation(i % 2 == 0 ? static_cast<uint64_t>(i) : size - static_cast<uint64_t>(i));
      ASSERT_LT(at, size);
      seen.insert(at);
      mean += static_cast<double>(at) / static_cast<double>(size) / kSamples;
    }
    EXPECT_EQ(seen.size(), kSamples);
    EXPECT_NEAR(mean, 0.5,
                5 * std::sqrt(1.0 / 12 / kSamples));  // five deviations of a mean of uniform numbers
  }
}

// Over many epochs each window comes equally often at each place: Pearson's chi squared of n - 1 degrees of
// freedom, whose deviation is sqrt(2 (n - 1)), within five of them.
TEST(KeyedPermutation, NumbersGiveOrdersThatDiffer) {
  for (const uint64_t size : {2u, 3u, 5u, 8u, 13u}) {
    constexpr int kEpochs = 4000;
    for (const uint64_t window : {uint64_t{0}, size - 1}) {
      std::vector<double> count(size);
      for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) ++count[KeyedPermutation(size, 9, epoch)(window)];
      double chi = 0;
      for (const double c : count) chi += std::pow(c - kEpochs / double(size), 2) / (kEpochs / double(size));
      EXPECT_LT(chi, double(size - 1) + 5 * std::sqrt(2.0 * double(size - 1))) << size << " " << window;
    }
  }
  EXPECT_NE(images(50, 1, 0), images(50, 2, 0));
  EXPECT_NE(images(50, 1, 0), images(50, 1, uint64_t{1} << 32));
}

// A period takes exactly the shares, each source's numbers in order; any beginning is near the proportion.
TEST(Mixture, KeepsItsProportions) {
  for (const std::vector<int64_t>& shares : std::vector<std::vector<int64_t>>{{1},
                                                                              {7},
                                                                              {1, 1},
                                                                              {3, 1},
                                                                              {2, 3, 5},
                                                                              {1, 1, 1, 1},
                                                                              {999, 1},
                                                                              {700, 299, 1},
                                                                              {13, 8, 5, 3, 2, 1, 1}}) {
    const Mixture mixture(shares);
    const int64_t period = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    ASSERT_EQ(mixture.period(), period);
    std::vector<int64_t> counts(shares.size());
    double worst = 0;
    for (int64_t n = 0; n < 3 * period; ++n) {
      for (size_t f = 0; f < shares.size(); ++f) ASSERT_EQ(mixture.drawn(f, n), counts[f]) << n << " " << f;
      const Mixture::Draw draw = mixture.draw(n);
      ASSERT_LT(draw.source, shares.size());
      ASSERT_EQ(draw.number, counts[draw.source]++);
      for (size_t f = 0; f < shares.size(); ++f)
        worst = std::max(worst, std::abs(double(counts[f]) - double((n + 1) * shares[f]) / double(period)));
      if ((n + 1) % period == 0) {
        for (size_t f = 0; f < shares.size(); ++f) ASSERT_EQ(counts[f], (n + 1) / period * shares[f]);
      }
    }
    EXPECT_LT(worst, 3) << shares.size() << " sources, period " << period;
  }
}

TEST(Mixture, TakesLongPeriodsFarAlong) {
  const Mixture mixture({300'000'001, 400'000'003, 373'741'820});  // 2^30 in all
  ASSERT_EQ(mixture.period(), int64_t{1} << 30);
  for (const int64_t n :
       {int64_t{0}, int64_t{12345}, (int64_t{1} << 30) - 1, int64_t{1} << 30, int64_t{1} << 50}) {
    int64_t sum = 0;
    for (size_t f = 0; f < 3; ++f) sum += mixture.drawn(f, n);
    EXPECT_EQ(sum, n);
    const Mixture::Draw draw = mixture.draw(n);
    for (size_t f = 0; f < 3; ++f)
      EXPECT_EQ(mixture.drawn(f, n + 1), mixture.drawn(f, n) + (f == draw.source)) << n << " " << f;
  }
  EXPECT_THROW(Mixture({}), InvalidArgument);
  EXPECT_THROW(Mixture({1, 0}), InvalidArgument);
  EXPECT_THROW(Mixture({int64_t{1} << 30, 1}), InvalidArgument);
}

/// Windows of `seq` tokens over streams of so many windows, with shares.
TokenWindows windows_over(const std::vector<std::pair<int64_t, int64_t>>& windows_and_shares,
                          TokenOrder order, int64_t seq = 3) {
  std::vector<SharedTokens> data;
  for (const auto& [windows, share] : windows_and_shares)
    data.push_back(
        {counting_stream(windows * seq + 1, std::string(1, static_cast<char>('a' + data.size()))), share});
  return TokenWindows(std::move(data), nullptr, {.seq = seq, .vocab = 50000, .order = order});
}

TEST(TokenWindows, SequentialIsByTheFormula) {
  const TokenWindows windows = windows_over({{50, 1}}, TokenOrder::sequential);
  ASSERT_EQ(windows.train_count(), 49);
  ASSERT_EQ(windows.held_out_count(), 1);
  const int64_t batch = 8;
  for (int64_t step = 0; step < 30; ++step)
    for (int64_t i = 0; i < batch; ++i)
      ASSERT_EQ(windows.train_window(step * batch + i, 7), (step * batch + i) % 49);
}

// Whatever the number of ranks, and wherever a run was stopped and resumed: what matters is the sequences'
// numbers.
TEST(TokenWindows, ShuffledVisitsEachWindowOncePerEpochAtAnyRanksAndAcrossResumes) {
  for (const int64_t count : {1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 49}) {
    const TokenWindows windows = windows_over({{count, 1}}, TokenOrder::shuffled);
    ASSERT_EQ(windows.train_count(), count);
    constexpr int64_t kBatch = 12, kSteps = 40;
    std::vector<int64_t> plain;  // one rank, never stopped
    for (int64_t n = 0; n < kBatch * kSteps; ++n) plain.push_back(windows.train_window(n, 11));
    for (int64_t epoch = 0; (epoch + 1) * count <= kBatch * kSteps; ++epoch) {
      const std::set<int64_t> seen(plain.begin() + epoch * count, plain.begin() + (epoch + 1) * count);
      ASSERT_EQ(static_cast<int64_t>(seen.size()), count) << "epoch " << epoch;
      ASSERT_EQ(*seen.rbegin(), count - 1);
    }
    std::vector<int64_t> stopped(plain.size(), -1);
    int64_t sequences = 0;
    for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {  // each part of the run on other ranks, reopened
      const TokenWindows again = windows_over({{count, 1}}, TokenOrder::shuffled);
      for (int64_t step = 0; step < 6; ++step, sequences += kBatch)
        for (int64_t rank = ranks - 1; rank >= 0; --rank)
          for (int64_t i = 0; i < kBatch / ranks; ++i) {
            const int64_t n = sequences + rank * (kBatch / ranks) + i;
            stopped[static_cast<size_t>(n)] = again.train_window(n, 11);
          }
    }
    EXPECT_TRUE(std::equal(plain.begin(), plain.begin() + sequences, stopped.begin()));
  }
}

TEST(TokenWindows, ShufflesDifferByEpochSeedAndStream) {
  const TokenWindows one = windows_over({{40, 1}}, TokenOrder::shuffled);
  const TokenWindows two = windows_over({{40, 1}, {40, 1}}, TokenOrder::shuffled);
  const auto epoch = [](const TokenWindows& w, int64_t first, int64_t count, uint64_t seed) {
    std::vector<int64_t> all;
    for (int64_t n = first; n < first + count; ++n) all.push_back(w.train_window(n, seed));
    return all;
  };
  EXPECT_NE(epoch(one, 0, 40, 1), epoch(one, 40, 40, 1));
  EXPECT_NE(epoch(one, 0, 40, 1), epoch(one, 0, 40, 2));
  std::vector<int64_t> a, b;
  for (const int64_t w : epoch(two, 0, 80, 1)) (w < 40 ? a : b).push_back(w % 40);
  EXPECT_EQ(a.size(), 40);
  EXPECT_NE(a, b);
}

TEST(TokenWindows, MixedStreamsKeepShareAndOrder) {
  // 49, 10 and 98 windows to train on, 1, 0 and 2 held out.
  const std::vector<std::pair<int64_t, int64_t>> parts = {{50, 5}, {10, 2}, {100, 3}};
  const int64_t train[] = {49, 10, 98}, first[] = {0, 49, 59};
  for (const TokenOrder order : {TokenOrder::sequential, TokenOrder::hashed, TokenOrder::shuffled}) {
    const TokenWindows windows = windows_over(parts, order);
    ASSERT_EQ(windows.train_count(), 157);
    ASSERT_EQ(windows.held_out_count(), 3);
    std::vector<std::vector<int64_t>> of(3);
    for (int64_t n = 0; n < 1000; ++n) {
      const int64_t w = windows.train_window(n, 3);
      ASSERT_GE(w, 0);
      ASSERT_LT(w, 157);
      const size_t f = w < 49 ? 0 : w < 59 ? 1 : 2;
      of[f].push_back(w - first[f]);
    }
    for (size_t f = 0; f < 3; ++f) {
      ASSERT_EQ(static_cast<int64_t>(of[f].size()), 100 * parts[f].second);
      EXPECT_DOUBLE_EQ(windows.epochs(1000, f), 100.0 * double(parts[f].second) / double(train[f]));
      const auto count = static_cast<int64_t>(of[f].size());
      if (order == TokenOrder::sequential) {
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(of[f][static_cast<size_t>(i)], i % train[f]);
      }
      if (order == TokenOrder::shuffled) {
        for (int64_t i = 0; i + train[f] <= count; i += train[f]) {
          const std::set<int64_t> epoch(of[f].begin() + i, of[f].begin() + i + train[f]);
          ASSERT_EQ(static_cast<int64_t>(epoch.size()), train[f]);
        }
      }
    }
    EXPECT_EQ(windows.progress(1000), "epochs 10.20 of a, 20.00 of b, 3.06 of c");
  }
}

TEST(TokenWindows, FillsWindowsOfEveryPart) {
  const TokenWindows windows = windows_over({{50, 1}, {100, 2}}, TokenOrder::shuffled, 4);
  // Stream, and window in it, of some numbers: 49 + 98 to train on, 1 + 2 held out.
  for (const auto& [number, own] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {48, 48}, {49, 0}, {146, 97}, {147, 49}, {148, 98}, {149, 99}}) {
    int32_t inputs[4], targets[4];
    windows.fill(number, inputs, targets);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(inputs[i], own * 4 + i) << number;
      EXPECT_EQ(targets[i], own * 4 + i + 1) << number;
    }
  }
  int32_t out[4];
  EXPECT_THROW(windows.fill(150, out, out), InvalidArgument);
}

TEST(TokenWindows, AnEvaluationReadsWindowsAtEqualDistances) {
  const TokenWindows windows = windows_over({{500, 1}}, TokenOrder::hashed);
  ASSERT_EQ(windows.train_count(), 490);
  EXPECT_THAT(windows.evaluation_windows(), ElementsAre(490, 491, 492, 493, 494, 495, 496, 497, 498, 499));
  EXPECT_EQ(windows.evaluation_windows(10), windows.evaluation_windows());
  EXPECT_EQ(windows.evaluation_windows(1'000'000'000'000'000), windows.evaluation_windows());
  EXPECT_THAT(windows.evaluation_windows(5), ElementsAre(490, 492, 494, 496, 498));
  EXPECT_THAT(windows.evaluation_windows(3), ElementsAre(490, 493, 496));
  EXPECT_THAT(windows.evaluation_windows(1), ElementsAre(490));
  EXPECT_TRUE(windows_over({{49, 1}}, TokenOrder::hashed).evaluation_windows(5).empty());
}

TEST(TokenWindows, HashedVisitsEachWindowOncePerEpochInOneOrder) {
  for (const int64_t count : {1, 2, 3, 7, 8, 33, 49}) {
    const TokenWindows windows = windows_over({{count, 1}}, TokenOrder::hashed);
    std::vector<int64_t> first;
    for (int64_t n = 0; n < count; ++n) first.push_back(windows.train_window(n));
    EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), static_cast<size_t>(count));
    for (const int64_t epoch : {1, 100, 1'000'000})
      for (int64_t n = 0; n < count; ++n)
        ASSERT_EQ(windows.train_window(epoch * count + n), first[static_cast<size_t>(n)])
            << count << " " << epoch;
  }
}

TEST(TokenWindows, ValidationFilesAreHeldOutAlone) {
  const TokenWindows windows({{counting_stream(100 * 4 + 1, "train"), 1}},
                             counting_stream(5 * 4 + 3, "valid"),
                             {.seq = 4, .vocab = 50000, .order = TokenOrder::shuffled});
  EXPECT_EQ(windows.train_count(), 100);
  EXPECT_EQ(windows.held_out_count(), 5);
  int32_t inputs[4], targets[4];
  windows.fill(104, inputs, targets);
  EXPECT_THAT(targets, ElementsAre(17, 18, 19, 20));
  EXPECT_EQ(windows.summary(),
            "data train: 401 tokens, 100 windows of 4 to train on, 0 held out, shuffled\n"
            "validation data valid: 23 tokens, 5 windows of 4");
  EXPECT_THAT(windows.describe(),
              AllOf(HasSubstr("; validation 23 tokens in 1 file"), HasSubstr("windows of 4, shuffled")));
  EXPECT_THAT(
      message_of<IoError>([] {
        TokenWindows({{counting_stream(100), 1}}, counting_stream(4, "valid"), {.seq = 4, .vocab = 50000});
      }),
      AllOf(HasSubstr("validation data 'valid' has 4 tokens"), HasSubstr("--valid-tokens")));
}

TEST(TokenWindows, SetsOfEvaluationDataHaveWindowsAndWeightsOfTheirOwn) {
  std::vector<EvaluationTokens> sets = {{"web", counting_stream(23, "w"), 3},
                                        {"code", counting_stream(41, "c"), 1}};
  const TokenWindows windows({{counting_stream(401, "train"), 1}}, sets, {.seq = 4, .vocab = 50000});
  EXPECT_EQ(windows.train_count(), 100);
  EXPECT_EQ(windows.held_out_count(), 15);
  const auto all = windows.evaluation_sets();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "web");
  EXPECT_EQ(all[0].weight, 0.75);
  EXPECT_THAT(all[0].windows, ElementsAre(100, 101, 102, 103, 104));
  EXPECT_EQ(all[1].weight, 0.25);
  EXPECT_THAT(windows.evaluation_sets(2)[1].windows, ElementsAre(105, 110));
  EXPECT_THAT(windows.summary(), AllOf(HasSubstr("validation data web, w: 23 tokens, 5 windows of 4"),
                                       HasSubstr("validation data code, c: 41 tokens")));
  sets[1].weight = 2;
  const TokenWindows other({{counting_stream(401, "train"), 1}}, sets, {.seq = 4, .vocab = 50000});
  EXPECT_NE(other.describe(), windows.describe());
  EXPECT_NE(other.describe_evaluation(), windows.describe_evaluation());
  EXPECT_NE(other.copies()[2].digest, windows.copies()[2].digest) << "ranks with other weights are refused";
  EXPECT_THAT(windows.copies()[1].name, HasSubstr("--eval-data"));
  sets[0].tokens = counting_stream(4, "short");
  EXPECT_THAT(message_of<IoError>([&] {
                TokenWindows({{counting_stream(100), 1}}, sets, {.seq = 4, .vocab = 50000});
              }),
              AllOf(HasSubstr("'short' has 4 tokens"), HasSubstr("--eval-data")));
}

TEST(TokenWindows, TakeMoreThan32BitsOfWindows) {
  const int64_t count = (int64_t{1} << 33) + 5, seq = 1000;
  const TokenWindows windows = windows_over({{count, 1}}, TokenOrder::shuffled, seq);
  const int64_t train = count - count / 50;
  ASSERT_EQ(windows.train_count(), train);
  std::set<int64_t> seen;
  bool far = false;
  for (int64_t n = 0; n < 2000; ++n) {
    const int64_t w = windows.train_window(train + n, 1);
    ASSERT_LT(w, train);
    far = far || w > int64_t{1} << 32;
    seen.insert(w);
  }
  EXPECT_EQ(seen.size(), 2000);
  EXPECT_TRUE(far);
  std::vector<int32_t> inputs(seq), targets(seq);
  windows.fill(count - 1, inputs.data(), targets.data());
  EXPECT_EQ(targets.back(), static_cast<int32_t>(count * seq % 50000));
}

TEST(TokenWindows, TooLittleDataIsNamed) {
  const std::string message = message_of<IoError>([] {
    windows_over({{50, 1}, {0, 1}}, TokenOrder::shuffled);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("'b' has 1 tokens"), HasSubstr("at least 4"), HasSubstr("--tokens")));
  EXPECT_THROW(windows_over({{5, 1}}, TokenOrder::shuffled, 0), InvalidArgument);
}

TEST(TokenWindows, TokensOutsideTheVocabularyAreNamed) {
  std::vector<uint16_t> tokens(100, 1);
  tokens[90] = 300;
  const auto late = test::stream_of("late", test::memory_tokens("late.bin", tokens));
  const TokenWindows windows({{late, 1}}, nullptr,
                             {.seq = 10, .vocab = 300, .order = TokenOrder::sequential});
  int32_t inputs[10], targets[10];
  windows.fill(7, inputs, targets);
  // Window 8 has it as its last target.
  {
    EXPECT_THAT(
        message_of<IoError>([&] { windows.fill(8, inputs, targets); }),
        AllOf(HasSubstr("token 300 at position 90 of 'late.bin' (u16)"), HasSubstr("vocabulary of 300")));
  }
  // In a file's beginning it is found when the file is opened, also in the second of a stream.
  tokens[90] = 1;
  std::vector<uint16_t> other = tokens;
  other[10] = 301;
  const auto early = std::make_shared<const TokenStream>(
      "both",
      std::vector<TokenFile>{test::memory_tokens("one.bin", tokens), test::memory_tokens("two.bin", other)});
  EXPECT_THAT(message_of<IoError>([&] {
                TokenWindows({{early, 1}}, nullptr, {.seq = 10, .vocab = 301});
              }),
              HasSubstr("token 301 at position 10 of 'two.bin'"));
}

TEST(TokenWindows, AFileOf32BitsReadAs16IsNoticed) {
  std::vector<uint16_t> tokens(400, 0);
  const auto open = [&] {
    const auto stream = test::stream_of("wide", test::memory_tokens("wide.bin", tokens));
    TokenWindows({{stream, 1}}, nullptr, {.seq = 10, .vocab = 300});
  };
  open();  // of zeros alone
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = 7;
  EXPECT_THAT(message_of<IoError>(open),
              AllOf(HasSubstr("'wide.bin' (u16) is 0"), HasSubstr("--token-format u32")));
  tokens[101] = 1;
  open();
}

TEST(TokenWindows, CrossFilesOfAStream) {
  const auto stream = std::make_shared<const TokenStream>(
      "three", std::vector<TokenFile>{test::memory_tokens("a", {0, 1, 2}), test::memory_tokens("b", {}),
                                      test::memory_tokens("c", {3}), test::memory_tokens("d", {4, 5, 6})});
  const TokenWindows windows({{stream, 1}}, nullptr, {.seq = 5, .vocab = 7, .order = TokenOrder::sequential});
  int32_t inputs[5], targets[5];
  windows.fill(0, inputs, targets);
  EXPECT_THAT(inputs, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(targets, ElementsAre(1, 2, 3, 4, 5));
  int32_t last;
  stream->read(6, 1, &last, 7);
  EXPECT_EQ(last, 6);
  EXPECT_THROW(stream->read(6, 2, inputs, 7), InvalidArgument);
  EXPECT_THROW(stream->read(-1, 2, inputs, 7), InvalidArgument);
  stream->read(7, 0, inputs, 7);
}

TEST(TokenWindows, DescriptionsDifferBetweenData) {
  std::vector<uint16_t> tokens(3'000'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 7 % 1000);
  const auto describe = [](const std::vector<uint16_t>& t, const std::string& name = "a") {
    return test::stream_of(name, test::memory_tokens(name, t))->describe();
  };
  const std::string plain = describe(tokens);
  EXPECT_EQ(describe(tokens, "another name"), plain);
  for (const size_t at : {size_t{0}, tokens.size() - 1}) {  // in the first and the last block
    std::vector<uint16_t> other = tokens;
    ++other[at];
    EXPECT_NE(describe(other), plain) << at;
  }
  std::vector<uint16_t> shorter(tokens.begin(), tokens.end() - 1);
  EXPECT_NE(describe(shorter), plain);
  // Small files are hashed as a whole.
  std::vector<uint16_t> small(tokens.begin(), tokens.begin() + 20'000);
  const std::string before = describe(small);
  ++small[12'345];
  EXPECT_NE(describe(small), before);
  // Shares and order belong to it.
  EXPECT_NE(windows_over({{50, 1}, {50, 2}}, TokenOrder::shuffled).describe(),
            windows_over({{50, 1}, {50, 3}}, TokenOrder::shuffled).describe());
  EXPECT_NE(windows_over({{50, 1}}, TokenOrder::shuffled).describe(),
            windows_over({{50, 1}}, TokenOrder::sequential).describe());
  EXPECT_EQ(windows_over({{50, 1}}, TokenOrder::shuffled).progress(75), "epoch 1.53");
}

}  // namespace
}  // namespace sherd
