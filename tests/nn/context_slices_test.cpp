// Context parallelism: exchanges of slices for heads, and attention between them.

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "arranged_training.h"
#include "loose_parameters.h"
#include "nets.h"
#include "support/message_of.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

using nn::ContextParallel;
using nn::SequenceSlice;
using nn::Var;
using Floats = std::vector<float>;

Tensor tensor(Device& device, const Shape& shape, const Floats& values, DType dtype = DType::f32) {
  const Tensor t = Tensor::empty(device, shape, DType::f32, "test");
  ops::copy_from_host(device.compute(), t, values.data(), t.nbytes());
  if (dtype == DType::f32) return t;
  const Tensor narrow = Tensor::empty(device, shape, dtype, "test");
  ops::cast(device.compute(), narrow, t);
  return narrow;
}

/// Values near 1, of both signs; of few bits, so that bf16 holds them.
Floats wave(int64_t count, int salt) {
  Floats all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back(static_cast<float>((i * i * 13 + 37 * i + 11 * salt) % 127 - 63) / 32);
  return all;
}

/// Rows of one rank's slices, of rows [batch * seq, columns] of whole sequences.
Floats rows_of_slices(const Floats& whole, int64_t batch, int64_t seq, int64_t columns,
                      const ContextParallel& ranks) {
  Floats own;
  for (int64_t b = 0; b < batch; ++b)
    own.insert(own.end(), whole.begin() + (b * seq + ranks.begin_of(seq, ranks.rank())) * columns,
               whole.begin() + (b * seq + ranks.begin_of(seq, ranks.rank() + 1)) * columns);
  return own;
}

/// Columns of one rank's share of each block.
Floats share_of(const Floats& whole, const std::vector<int64_t>& blocks, const ContextParallel& ranks) {
  int64_t width = 0;
  for (const int64_t b : blocks) width += b;
  Floats own;
  for (size_t row = 0; row < whole.size(); row += static_cast<size_t>(width)) {
    int64_t begin = 0;
    for (const int64_t b : blocks) {
      const int64_t part = b / ranks.size();
      const auto at = whole.begin() + static_cast<std::ptrdiff_t>(row) + begin + ranks.rank() * part;
      own.insert(own.end(), at, at + part);
      begin += b;
    }
  }
  return own;
}

/// Calls body(rank, ranks of "context") on so many ranks.
void on_ranks(int size, const std::function<void(RankContext&, const ContextParallel&)>& body) {
  launch(size, [&](RankContext& rank) {
    body(rank, ContextParallel::of(DeviceMesh(rank.world, {{"context", size}})));
  });
}

TEST(ContextSlices, ExchangesMoveEveryElementToItsPlaceAndBack) {
  for (const int size : {1, 2, 3, 4})
    for (const int64_t batch : {1, 2, 3})
      for (const int64_t seq : {4, 7, 8, 9})
        for (const DType dtype : {DType::f32, DType::bf16})
          on_ranks(size, [&](RankContext& rank, const ContextParallel& ranks) {
            SCOPED_TRACE(fmt::format("{} ranks, batch {}, seq {}", size, batch, seq));
            Stream& s = rank.device->compute();
            const std::vector<int64_t> blocks{24, 12, 12};
            const SequenceSlice slice{ranks, seq};
            const Floats whole = wave(batch * seq * 48, 1), into = wave(batch * seq * 48, 2);
            const Floats own = rows_of_slices(whole, batch, seq, 48, ranks);
            const auto here = static_cast<int64_t>(own.size()) / 48;
            nn::Tape tape;
            const Var x = tape.leaf(tensor(*rank.device, {here, 48}, own, dtype));
            const Var heads = slice.to_heads(x, blocks, batch);
            EXPECT_EQ(heads.shape(), (Shape{batch * seq, 48 / size}));
            EXPECT_EQ(ops::to_floats(s, heads.value()), share_of(whole, blocks, ranks));
            const Var back = slice.to_rows(heads, blocks, batch);
            EXPECT_EQ(ops::to_floats(s, back.value()), own);
            // The gradient of `heads` is another value's, and comes back to the rows that it belongs to.
            const Tensor g = tensor(*rank.device, heads.shape(), share_of(into, blocks, ranks), dtype);
            tape.backward(nn::sum(nn::cast(heads * Var(g), DType::f32)));
            EXPECT_EQ(ops::to_floats(s, tape.gradient(x)), rows_of_slices(into, batch, seq, 48, ranks));

            const Var y = tape.leaf(heads.value());
            const Var rows = slice.to_rows(y, blocks, batch);
            const Tensor h =
                tensor(*rank.device, {here, 48}, rows_of_slices(into, batch, seq, 48, ranks), dtype);
            tape.backward(nn::sum(nn::cast(rows * Var(h), DType::f32)));
            EXPECT_EQ(ops::to_floats(s, tape.gradient(y)), share_of(into, blocks, ranks));
            EXPECT_EQ(ops::to_floats(s, ranks.whole(s, x.value(), seq)), whole);
          });
}

TEST(ContextSlices, TokensAreCutIntoContiguousSlicesThatDifferByOneAtMost) {
  for (const int size : {1, 2, 3, 4})
    for (const int64_t seq : {4, 5, 7, 64})
      on_ranks(size, [&](RankContext& rank, const ContextParallel& ranks) {
        const int64_t here = ranks.begin_of(seq, ranks.rank() + 1) - ranks.begin_of(seq, ranks.rank());
        EXPECT_GE(here, seq / size);
        EXPECT_LE(here, (seq + size - 1) / size);
        EXPECT_EQ(ranks.begin_of(seq, 0), 0);
        EXPECT_EQ(ranks.begin_of(seq, size), seq);
        const Floats whole = wave(2 * seq, 3);
        EXPECT_EQ(ops::to_floats(rank.device->compute(), ranks.slice(tensor(*rank.device, {2, seq}, whole))),
                  rows_of_slices(whole, 2, seq, 1, ranks));
      });
}

TEST(ContextSlices, ValuesThatDoNotFitAreRefusedOnEveryRank) {
  on_ranks(3, [](RankContext& rank, const ContextParallel& ranks) {
    const SequenceSlice slice{ranks, 7};
    const auto rows = [&](int64_t n, int64_t columns) {
      return Var(tensor(*rank.device, {n, columns}, wave(n * columns, 0)));
    };
    const int64_t here = ranks.begin_of(7, ranks.rank() + 1) - ranks.begin_of(7, ranks.rank());
    EXPECT_THAT(message_of<InvalidArgument>([&] { slice.to_heads(rows(here, 4), {4}, 1); }),
                HasSubstr("to_heads: 3 ranks do not divide a block of 4 columns"));
    EXPECT_THAT(message_of<InvalidArgument>([&] { slice.to_rows(rows(7, 2), {4}, 1); }),
                HasSubstr("to_rows: 3 ranks do not divide a block of 4 columns"));
    EXPECT_THAT(
        message_of<ShapeMismatch>([&] { slice.to_heads(rows(here + 1, 6), {6}, 1); }),
        AllOf(HasSubstr("to_heads: the value is"), HasSubstr("1 sequences of 7 positions over 3 ranks")));
    EXPECT_THAT(message_of<ShapeMismatch>([&] { slice.to_rows(rows(7, 3), {6}, 1); }),
                HasSubstr("to_rows: the value is [7, 3], must be [7, 2]"));
    EXPECT_THAT(message_of<ShapeMismatch>([&] { ranks.slice(tensor(*rank.device, {6}, wave(6, 0))); }),
                HasSubstr("must be [batch, seq]"));
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  ranks.slice(tensor(*rank.device, {3, 2}, wave(6, 0)));
                }),
                HasSubstr("sequences of 2 positions over 3 context-parallel ranks: each needs at least one"));
  });
}

// Attention of whole sequences beside that of slices.

struct Seen {
  Floats out, dqkv, dsinks, maxima;
};

struct AttentionCase {
  int64_t heads = 12, kv_heads = 12, window = 0;
  bool sinks = false, documents = false, padding = false;
  DType dtype = DType::f32;
};

constexpr int64_t kAttended = 2, kHeadDim = 4;

/// Each row's document begins at its last multiple of 5, the second sequence's at that of 3.
Tensor starts_of(Device& device, int64_t seq) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < kAttended; ++b)
    for (int64_t i = 0; i < seq; ++i) starts.push_back(static_cast<int32_t>(i - i % (b == 0 ? 5 : 3)));
  const Tensor t = Tensor::empty(device, {kAttended, seq}, DType::i32, "test");
  ops::copy_from_host(device.compute(), t, starts.data(), t.nbytes());
  return t;
}

Seen attended(RankContext& rank, const ContextParallel& ranks, const AttentionCase& c, int64_t seq) {
  Device& device = *rank.device;
  Stream& s = device.compute();
  const int64_t columns = (c.heads + 2 * c.kv_heads) * kHeadDim, out = c.heads * kHeadDim;
  const Floats own = rows_of_slices(wave(kAttended * seq * columns, 1), kAttended, seq, columns, ranks),
               into = rows_of_slices(wave(kAttended * seq * out, 2), kAttended, seq, out, ranks);
  const auto here = static_cast<int64_t>(own.size()) / columns;
  LooseParameters loose;
  nn::Tape tape;
  nn::AttentionOptions o{.batch = kAttended, .heads = c.heads, .kv_heads = c.kv_heads, .window = c.window};
  if (c.sinks) o.sinks = loose.add(tensor(device, {c.heads}, wave(c.heads, 5)));
  if (c.documents) o.starts = starts_of(device, seq);
  if (c.padding) {
    const std::vector<int32_t> lengths{static_cast<int32_t>(seq - 2), 1};
    o.lengths = Tensor::empty(device, {kAttended}, DType::i32, "test");
    ops::copy_from_host(s, o.lengths, lengths.data(), o.lengths.nbytes());
  }
  o.max_logits = tensor(device, {c.heads}, Floats(static_cast<size_t>(c.heads), -INFINITY));
  o.context = {ranks, seq};
  const Var qkv = tape.leaf(tensor(device, {here, columns}, own, c.dtype));
  const Var y = nn::attention(qkv, o);
  tape.backward(nn::sum(nn::cast(y * Var(tensor(device, {here, out}, into, c.dtype)), DType::f32)));
  return {ops::to_floats(s, y.value()), ops::to_floats(s, tape.gradient(qkv)),
          c.sinks ? ops::to_floats(s, loose.grad(0)) : Floats(), ops::to_floats(s, o.max_logits)};
}

TEST(ContextAttention, EachHeadHasTheBitsOfOneRankForwardAndBackward) {
  for (const AttentionCase& c : {AttentionCase{},
                                 {.kv_heads = 12, .window = 3},
                                 {.heads = 24, .kv_heads = 12, .sinks = true},
                                 {.heads = 24, .kv_heads = 12, .window = 4, .sinks = true, .documents = true},
                                 {.documents = true, .padding = true},
                                 {.heads = 24, .kv_heads = 12, .dtype = DType::bf16},
                                 {.window = 2, .sinks = true, .padding = true, .dtype = DType::bf16}})
    for (const int64_t seq : {4, 9, 40}) {
      Seen want;
      on_ranks(1, [&](RankContext& rank, const ContextParallel& one) { want = attended(rank, one, c, seq); });
      for (const int size : {2, 3, 4})
        on_ranks(size, [&](RankContext& rank, const ContextParallel& ranks) {
          SCOPED_TRACE(fmt::format("{} heads, window {}, sinks {}, documents {}, seq {}, rank {} of {}",
                                   c.heads, c.window, c.sinks, c.documents, seq, ranks.rank(), size));
          const Seen got = attended(rank, ranks, c, seq);
          EXPECT_EQ(got.out, rows_of_slices(want.out, kAttended, seq, c.heads * kHeadDim, ranks));
          EXPECT_EQ(got.dqkv,
                    rows_of_slices(want.dqkv, kAttended, seq, (c.heads + 2 * c.kv_heads) * kHeadDim, ranks));
          // Of the heads that the rank computes, and of no other.
          for (size_t h = 0; h < want.maxima.size(); ++h) {
            const bool own = static_cast<int64_t>(h) * size / c.heads == ranks.rank();
            EXPECT_EQ(got.maxima[h], own ? want.maxima[h] : -INFINITY) << h;
            if (c.sinks) {
              EXPECT_EQ(got.dsinks[h], own ? want.dsinks[h] : 0) << h;
            }
          }
        });
    }
}

TEST(ContextAttention, HeadsThatTheRanksDoNotDivideAndCachesAreRefused) {
  on_ranks(2, [](RankContext& rank, const ContextParallel& ranks) {
    const auto message = [&](int64_t heads, int64_t kv_heads, nn::KvCache::Layer* cache) {
      const int64_t columns = (heads + 2 * kv_heads) * kHeadDim;
      return message_of<InvalidArgument>([&] {
        nn::attention(Var(tensor(*rank.device, {3, columns}, wave(3 * columns, 0))),
                      {.heads = heads, .kv_heads = kv_heads, .cache = cache, .context = {ranks, 6}});
      });
    };
    EXPECT_THAT(message(3, 3, nullptr),
                HasSubstr("attention: 2 context-parallel ranks do not divide 3 heads and 3 key heads"));
    EXPECT_THAT(message(4, 1, nullptr), HasSubstr("do not divide 4 heads and 1 key heads"));
    nn::KvCache cache(*rank.device, 1, 8, 4, kHeadDim, DType::f32);
    EXPECT_THAT(message(4, 4, &cache.layer(0)), HasSubstr("a cache keeps whole sequences"));
  });
}

}  // namespace
}  // namespace sherd::test
