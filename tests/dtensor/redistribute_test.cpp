// Every change of placements, against a serial model: small integers, so that sums are exact.
#include <algorithm>
#include <future>
#include <random>

#include <gtest/gtest.h>

#include <sherd/dtensor/dtensor.h>

#include "rank_helpers.h"

namespace sherd {
namespace {

using Placements = std::vector<Placement>;

/// A mesh of ranks without communication.
struct Grid {
  std::vector<MeshDim> dims;
  int size() const {
    int n = 1;
    for (const auto& d : dims) n *= d.size;
    return n;
  }
  std::vector<int> coordinates(int rank) const {
    std::vector<int> c(dims.size());
    for (size_t i = dims.size(); i-- > 0; rank /= dims[i].size) c[i] = rank % dims[i].size;
    return c;
  }
};

/// Indices along each tensor dimension that `rank` holds.
std::vector<std::vector<int64_t>> held(const Grid& grid, const Shape& shape, const Placements& placements,
                                       int rank) {
  std::vector<std::vector<int64_t>> indices(shape.size());
  for (size_t d = 0; d < shape.size(); ++d)
    for (int64_t i = 0; i < shape[d]; ++i) indices[d].push_back(i);
  const auto c = grid.coordinates(rank);
  for (size_t i = placements.size(); i-- > 0;) {
    if (!placements[i].is_shard()) continue;
    auto& list = indices[static_cast<size_t>(placements[i].dim)];
    const auto parts = static_cast<size_t>(grid.dims[i].size), chunk = (list.size() + parts - 1) / parts;
    const auto begin = std::min(list.size(), static_cast<size_t>(c[i]) * chunk);
    list = {list.begin() + static_cast<std::ptrdiff_t>(begin),
            list.begin() + static_cast<std::ptrdiff_t>(std::min(list.size(), begin + chunk))};
  }
  return indices;
}

/// Flat numbers, from 1, of the elements that `rank` holds.
std::vector<float> piece(const Grid& grid, const Shape& shape, const Placements& placements, int rank) {
  std::vector<float> flat = {0};
  const auto indices = held(grid, shape, placements, rank);
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<float> next;
    for (float f : flat)
      for (int64_t i : indices[d]) next.push_back(f * static_cast<float>(shape[d]) + static_cast<float>(i));
    flat = std::move(next);
  }
  for (float& f : flat) f += 1;
  return flat;
}

/// Number of this rank among those that hold terms of the same sum.
int term(const Grid& grid, const Placements& placements, int rank) {
  int k = 0;
  const auto c = grid.coordinates(rank);
  for (size_t i = 0; i < placements.size(); ++i)
    if (placements[i].is_partial()) k = k * grid.dims[i].size + c[i];
  return k;
}

int terms(const Grid& grid, const Placements& placements) {
  int n = 1;
  for (size_t i = 0; i < placements.size(); ++i)
    if (placements[i].is_partial()) n *= grid.dims[i].size;
  return n;
}

/// A rank's local tensor: term k of a sum is (k + 1) times the element's number.
std::vector<float> local_of(const Grid& grid, const Shape& shape, const Placements& placements, int rank) {
  auto values = piece(grid, shape, placements, rank);
  for (float& v : values) v *= static_cast<float>(term(grid, placements, rank) + 1);
  return values;
}

struct Change {
  Shape shape;
  Placements from, to;
};

/// The values of all ranks after the change are right: pieces of the sum, or terms that add up to them.
void verify(const Grid& grid, const Change& change, const std::vector<std::vector<float>>& locals) {
  const int n = terms(grid, change.from);
  const auto whole = static_cast<float>(n * (n + 1) / 2);  // sum of the factors of all terms
  for (int rank = 0; rank < grid.size(); ++rank) {
    std::vector<float> sum(locals[rank].size());
    const auto mine = grid.coordinates(rank);
    for (int other = 0; other < grid.size(); ++other) {
      const auto c = grid.coordinates(other);
      bool same_sum = true;
      for (size_t i = 0; i < c.size(); ++i) same_sum &= c[i] == mine[i] || change.to[i].is_partial();
      if (!same_sum) continue;
      ASSERT_EQ(locals[other].size(), sum.size());
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += locals[other][e];
    }
    auto expected = piece(grid, change.shape, change.to, rank);
    for (float& v : expected) v *= whole;
    ASSERT_EQ(sum, expected) << to_string(change.shape) << " " << to_string(change.from) << " -> "
                             << to_string(change.to) << " rank " << rank;
    // A sum that was not owed before is on coordinate 0.
    for (size_t i = 0; i < mine.size(); ++i)
      if (change.to[i].is_partial() && !change.from[i].is_partial() && mine[i] > 0) {
        ASSERT_EQ(locals[rank], std::vector<float>(locals[rank].size())) << to_string(change.from);
      }
  }
}

void run(const Grid& grid, const std::vector<Change>& changes) {
  std::vector<std::vector<std::vector<float>>> results(changes.size());
  for (auto& r : results) r.resize(grid.size());
  launch(grid.size(), [&](RankContext& rank) {
    const int r = rank.world->rank();
    Stream& stream = rank.device->compute();
    const DeviceMesh mesh(rank.world, grid.dims);
    for (size_t i = 0; i < changes.size(); ++i) {
      const Change& c = changes[i];
      Shape local_shape;
      for (const auto& indices : held(grid, c.shape, c.from, r))
        local_shape.push_back(static_cast<int64_t>(indices.size()));
      const auto values = local_of(grid, c.shape, c.from, r);
      const auto t = DTensor::from_local(mesh, c.shape, c.from, make_tensor(rank, local_shape, values));
      const DTensor changed = t.redistribute(stream, c.to);
      results[i][r] = ops::to_floats(stream, changed.local());
      EXPECT_EQ(changed.placements(), c.to);
      EXPECT_EQ(ops::to_floats(stream, t.local()), values);  // the source keeps its values
    }
  });
  for (size_t i = 0; i < changes.size(); ++i) {
    verify(grid, changes[i], results[i]);
    if (testing::Test::HasFatalFailure()) return;
  }
}

/// All ways to place a tensor of `ndim` dimensions on `mesh_dims`.
std::vector<Placements> all_placements(size_t mesh_dims, int ndim) {
  std::vector<Placements> all = {{}};
  for (size_t i = 0; i < mesh_dims; ++i) {
    std::vector<Placements> next;
    for (const auto& p : all) {
      const auto add = [&](Placement x) {
        next.push_back(p);
        next.back().push_back(x);
      };
      add(Replicate());
      add(Partial());
      for (int d = 0; d < ndim; ++d) add(Shard(d));
    }
    all = std::move(next);
  }
  return all;
}

std::vector<Change> all_changes(size_t mesh_dims, const Shape& shape) {
  std::vector<Change> changes;
  const auto all = all_placements(mesh_dims, static_cast<int>(shape.size()));
  for (const auto& from : all)
    for (const auto& to : all) changes.push_back({shape, from, to});
  return changes;
}

class Redistribute1D : public testing::TestWithParam<int> {};

TEST_P(Redistribute1D, AllPairs) {
  const Grid grid{{{"x", GetParam()}}};
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{5, 3}, Shape{4, 6}, Shape{0, 3}, Shape{3, 2, 5}})
    run(grid, all_changes(1, shape));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Redistribute1D, testing::Range(1, 6));

TEST(Redistribute, AllPairsOnTwoMeshDimensions) {
  run({{{"x", 2}, {"y", 2}}}, all_changes(2, {5, 3}));
  run({{{"x", 2}, {"y", 2}}}, all_changes(2, {4, 8}));
  run({{{"x", 2}, {"y", 3}}}, all_changes(2, {7, 5}));
}

TEST(Redistribute, SamplesOnThreeMeshDimensions) {
  std::mt19937 random(1);
  const auto all = all_placements(3, 2);
  std::vector<Change> changes;
  for (int i = 0; i < 150; ++i)
    changes.push_back({{5, 9}, all[random() % all.size()], all[random() % all.size()]});
  run({{{"x", 2}, {"y", 2}, {"z", 2}}}, changes);
}

TEST(Redistribute, MovesNoMoreThanItMust) {
  launch(2, [](RankContext& rank) {
    Stream& stream = rank.device->compute();
    const DeviceMesh mesh(rank.world, {{"x", 2}});
    const auto calls = [&](const char* op) {
      const auto counts = rank.world->counts();
      return counts.contains(op) ? counts.at(op).calls : 0;
    };
    const auto sharded =
        DTensor::from_local(mesh, {4, 3}, {Shard(0)}, make_tensor(rank, {2, 3}, counting(6)));
    const auto whole = sharded.redistribute(stream, {Replicate()});
    EXPECT_EQ(calls("all_gather"), 1);
    EXPECT_EQ(rank.device->copied_bytes(), 0);
    EXPECT_EQ(whole.redistribute(stream, {Replicate()}).local().raw(), whole.local().raw());
    const auto partial =
        DTensor::from_local(mesh, {4, 3}, {Partial()}, make_tensor(rank, {4, 3}, counting(12)));
    (void)partial.redistribute(stream, {Shard(0)});
    EXPECT_EQ(calls("reduce_scatter"), 1);
    EXPECT_EQ(rank.device->copied_bytes(), 0);
    (void)sharded.redistribute(stream, {Shard(1)});
    EXPECT_EQ(calls("all_to_all_v"), 1);
    EXPECT_EQ(calls("all_gather") + calls("all_gather_v") + calls("all_reduce"), 1);
    stream.synchronize();
  });
}

TEST(Redistribute, OnAnotherStreamKeepsItsTemporaries) {
  launch(4, [](RankContext& rank) {
    const auto side = rank.device->make_stream("side");
    const DeviceMesh mesh(rank.world, {{"x", 2}, {"y", 2}});
    const Tensor full = make_tensor(rank, {2, 8}, counting(16));
    side->wait(rank.device->compute().record());
    std::promise<void> go;
    side->submit("hold", [&](ExecutionContext&) { go.get_future().wait(); });
    const auto cut = DTensor::distribute(*side, mesh, full, {Shard(1), Shard(1)});
    // Cut along y, then along x: memory of the first step must not serve anyone else before the second has
    // run.
    EXPECT_EQ(rank.device->allocator().live_bytes("redistribute"), 2 * 128);
    go.set_value();
    side->synchronize();
    EXPECT_EQ(rank.device->allocator().live_bytes("redistribute"), 128);
    const auto first = static_cast<float>(mesh.coordinate("y") * 4 + mesh.coordinate("x") * 2 + 1);
    EXPECT_EQ(ops::to_floats(*side, cut.local()),
              (std::vector<float>{first, first + 1, first + 8, first + 9}));
  });
}

}  // namespace
}  // namespace sherd
