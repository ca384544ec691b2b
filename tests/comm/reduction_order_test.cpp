// The bits of sums: one fixed pairwise tree over ranks, and what follows from it for hierarchical sums.
#include <bit>
#include <cstring>
#include <random>

#include "comm/integer_tensors.h"

namespace sherd::test {
namespace {

/// Numbers of very different sizes: almost every order of adding them rounds differently.
std::vector<double> rough_numbers(int rank, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(rank) + 1);
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-6, 6);
  std::vector<double> v;
  for (int64_t i = 0; i < count; ++i) v.push_back(std::ldexp(normal(random), exponent(random)));
  return v;
}

/// The contract, literally: add neighbours, carry an odd one up, until one is left.
template <class A>
A pairwise(std::vector<A> level) {
  while (level.size() > 1) {
    std::vector<A> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2) next.push_back(level.back());
    level = next;
  }
  return level[0];
}

template <class T>
constexpr bool kHalf = std::is_class_v<T>;

template <class T>
std::vector<T> rough(int rank, int64_t count) {
  std::vector<T> v;
  for (double x : rough_numbers(rank, count))
    v.push_back(static_cast<T>(static_cast<std::conditional_t<kHalf<T>, float, T>>(x)));
  return v;
}

template <class T>
Tensor to_tensor(Device& device, const std::vector<T>& v) {
  const Tensor t = Tensor::empty(device, {static_cast<int64_t>(v.size())}, dtype_of<T>(), "test");
  std::memcpy(t.raw(), v.data(), v.size() * sizeof(T));
  return t;
}

/// Elements whose bits differ.
template <class T>
int64_t differing(const Tensor& t, const std::vector<T>& expected, int64_t begin = 0) {
  int64_t n = 0;
  for (int64_t i = 0; i < t.numel(); ++i)
    n += std::memcmp(t.data<T>() + i, expected.data() + begin + i, sizeof(T)) != 0;
  return n;
}

class ReductionOrder : public testing::TestWithParam<int> {};

template <class T>
void expect_tree_bits(int ranks) {
  SCOPED_TRACE(name_of(dtype_of<T>()));
  using A = std::conditional_t<kHalf<T>, float, T>;
  const int64_t n = 2 * 1024 + 33;
  std::vector<T> expected, folded;
  std::vector<std::vector<T>> data;
  for (int r = 0; r < ranks; ++r) data.push_back(rough<T>(r, ranks * n));
  for (size_t i = 0; i < data[0].size(); ++i) {
    std::vector<A> column;
    for (const auto& d : data) column.push_back(static_cast<A>(d[i]));
    A fold = column[0];
    for (size_t r = 1; r < column.size(); ++r) fold = static_cast<A>(static_cast<T>(fold + column[r]));
    expected.push_back(static_cast<T>(pairwise(column)));
    folded.push_back(static_cast<T>(fold));
  }
  // The data can tell the tree from adding up in a row, and fp32 sums from 16-bit ones.
  if (ranks > 3) {
    EXPECT_NE(std::memcmp(expected.data(), folded.data(), expected.size() * sizeof(T)), 0);
  }
  run_ranks(ranks, [&](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank();
    const Tensor send = to_tensor(*c.device, data[static_cast<size_t>(rank)]);
    const Tensor recv = Tensor::empty(*c.device, {n}, dtype_of<T>(), "test");
    c.world->reduce_scatter(s, recv, send);
    c.world->all_reduce(s, send);
    s.synchronize();
    EXPECT_EQ(differing(recv, expected, rank * n), 0);
    EXPECT_EQ(differing(send, expected), 0);
  });
}

TEST_P(ReductionOrder, SumsFollowThePairwiseTree) {
  expect_tree_bits<float>(GetParam());
  expect_tree_bits<double>(GetParam());
  expect_tree_bits<bf16>(GetParam());
  expect_tree_bits<f16>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReductionOrder, testing::Range(1, 9));

struct Hierarchy {
  int ranks, group;
};

class HierarchicalSum : public testing::TestWithParam<Hierarchy> {};

/// Reduce-scatter inside groups of neighbours, then all-reduce across groups: what hybrid sharding does.
TEST_P(HierarchicalSum, HasTheBitsOfTheFlatSum) {
  const auto [ranks, group] = GetParam();
  run_ranks(ranks, [group = group](RankContext& c) {
    Stream& s = c.device->compute();
    const int rank = c.world->rank();
    const int64_t n = 1500;
    const auto data = rough<float>(rank, group * n);
    const auto shard = c.world->split(rank / group, rank);
    const auto replicate = c.world->split(rank % group, rank);
    const Tensor flat = to_tensor(*c.device, data);
    const Tensor send = to_tensor(*c.device, data);
    const Tensor slice = send.flat(shard->rank() * n, (shard->rank() + 1) * n);
    c.world->all_reduce(s, flat);
    shard->reduce_scatter(s, slice, send);
    replicate->all_reduce(s, slice);
    s.synchronize();
    const float* expected = flat.data<float>() + shard->rank() * n;
    EXPECT_EQ(std::memcmp(slice.raw(), expected, static_cast<size_t>(slice.nbytes())), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, HierarchicalSum,
                         testing::Values(Hierarchy{4, 2}, Hierarchy{8, 2}, Hierarchy{8, 4}, Hierarchy{6, 2}),
                         [](const auto& p) {
                           return std::to_string(p.param.ranks) + "RanksInGroupsOf" +
                                  std::to_string(p.param.group);
                         });

}  // namespace
}  // namespace sherd::test
