#include <sherd/dtensor/dtensor.h>

#include "rank_helpers.h"
#include "support/message_of.h"

namespace sherd {
namespace {

TEST(DTensor, EvenShardsKnowTheirPlace) {
  launch(4, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"x", 4}});
    const int r = rank.world->rank();
    const int64_t rows[] = {2, 2, 1, 0}, offsets[] = {0, 2, 4, 5};
    const Tensor local = Tensor::empty(*rank.device, {rows[r], 3}, DType::f32, "local");
    const auto t = DTensor::from_local(mesh, {5, 3}, {Shard(0)}, local);
    EXPECT_EQ(t.local_shape(), (Shape{rows[r], 3}));
    EXPECT_EQ(t.global_offset(), (Shape{offsets[r], 0}));
    EXPECT_FALSE(t.ragged());
    if (r == 3)
      EXPECT_TRUE(t.boxes().empty());
    else
      EXPECT_EQ(t.boxes(), (std::vector<Box>{{{offsets[r], 0}, {rows[r], 3}}}));
  });
}

TEST(DTensor, TheInnermostMeshDimensionCutsFirst) {
  launch(4, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"outer", 2}, {"inner", 2}});
    // 7 rows: inner cuts 4 + 3, outer cuts those into 2 + 2 and 2 + 1.
    const int64_t offsets[2][2] = {{0, 4}, {2, 6}}, sizes[2][2] = {{2, 2}, {2, 1}};
    const int o = mesh.coordinate("outer"), i = mesh.coordinate("inner");
    const Tensor full = make_tensor(rank, {7}, counting(7));
    Stream& stream = rank.device->compute();
    const auto t = DTensor::distribute(stream, mesh, full, {Shard(0), Shard(0)});
    EXPECT_EQ(t.global_offset(), Shape{offsets[o][i]});
    EXPECT_EQ(ops::to_floats(stream, t.local()),
              counting(sizes[o][i], static_cast<float>(offsets[o][i] + 1)));
    EXPECT_EQ(ops::to_floats(stream, t.full_tensor(stream)), counting(7));
  });
}

TEST(DTensor, AnEmptyPieceOfAPieceIsAtTheEndOfTheTensor) {
  launch(6, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"outer", 3}, {"inner", 2}});
    const bool empty = mesh.coordinate("outer") == 2;  // both inner pieces have 2 rows
    const Tensor local = Tensor::empty(*rank.device, {empty ? 0 : 1}, DType::f32, "local");
    const auto t = DTensor::from_local(mesh, {4}, {Shard(0), Shard(0)}, local);
    EXPECT_EQ(t.global_offset(), Shape{empty ? 4 : mesh.coordinate("inner") * 2 + mesh.coordinate("outer")});
  });
}

TEST(DTensor, DistributeNeedsNoCommunication) {
  launch(2, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"x", 2}});
    Stream& stream = rank.device->compute();
    const auto before = rank.world->counts();
    const Tensor full = make_tensor(rank, {3, 2}, counting(6));
    const auto columns = DTensor::distribute(stream, mesh, full, {Shard(1)});
    const auto partial = DTensor::distribute(stream, mesh, full, {Partial()});
    const auto whole = DTensor::distribute(stream, mesh, full, {Replicate()});
    const auto after = rank.world->counts();
    for (const auto& [op, count] : after)
      EXPECT_EQ(count.calls, before.contains(op) ? before.at(op).calls : 0) << op;
    const bool first = rank.world->rank() == 0;
    EXPECT_EQ(ops::to_floats(stream, columns.local()),
              first ? (std::vector<float>{1, 3, 5}) : (std::vector<float>{2, 4, 6}));
    EXPECT_EQ(ops::to_floats(stream, partial.local()), first ? counting(6) : std::vector<float>(6));
    EXPECT_EQ(whole.local().raw(), full.raw());
    EXPECT_EQ(ops::to_floats(stream, columns.full_tensor(stream)), counting(6));
    EXPECT_EQ(ops::to_floats(stream, partial.full_tensor(stream)), counting(6));
  });
}

TEST(DTensor, ScalarsReplicateOrSum) {
  launch(3, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"x", 3}});
    Stream& stream = rank.device->compute();
    const auto t = DTensor::from_local(mesh, {}, {Partial()}, make_tensor(rank, {}, {2}));
    EXPECT_EQ(ops::to_floats(stream, t.full_tensor(stream)), std::vector<float>{6});
    EXPECT_EQ(t.boxes(), (std::vector<Box>{{{0}, {1}}}));
    EXPECT_THROW((void)t.redistribute(stream, {Shard(0)}), InvalidArgument);
  });
}

class RaggedDTensor : public testing::TestWithParam<std::tuple<LayoutPolicy, int>> {};

TEST_P(RaggedDTensor, RoundTripsThroughALayout) {
  const auto [policy, inner] = GetParam();
  launch(2 * inner, [&, policy = policy, inner = inner](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"replicate", 2}, {"shard", inner}});
    Stream& stream = rank.device->compute();
    LayoutOptions options;
    options.policy = policy;
    options.align = 4;
    const std::vector<LayoutParam> params = {{"w", {5, 7}, CutClass::row},
                                             {"e", {11, 2}},
                                             {"s", {}},
                                             {"one", {1}},
                                             {"none", {0, 4}},
                                             {"c", {2, 3, 3}}};
    for (const auto& over :
         {std::vector<std::string>{"shard"}, {"replicate", "shard"}, {"shard", "replicate"}}) {
      int world = 1, r = 0;
      for (const auto& name : over) {
        world *= mesh.size(name);
        r = r * mesh.size(name) + mesh.coordinate(name);
      }
      const auto layout = std::make_shared<const ShardLayout>(ShardLayout::make(params, world, options));
      for (int p = 0; p < static_cast<int>(params.size()); ++p) {
        const ParamRange piece = layout->piece(ParamId(p), RankId(r));
        const auto values = counting(piece.size(), static_cast<float>(piece.begin.value + 1));
        const Tensor local = make_tensor(rank, {piece.size()}, values);
        const auto t = DTensor::from_layout(mesh, over, layout, p, local);
        EXPECT_TRUE(t.ragged());
        EXPECT_EQ(t.shape(), params[p].shape);
        EXPECT_EQ(t.placements()[1], Shard(0));
        EXPECT_EQ(t.placements()[0], over.size() == 1 ? Replicate() : Shard(0));
        EXPECT_EQ(t.boxes(), layout->boxes(ParamId(p), RankId(r)));
        const Tensor full = t.full_tensor(stream);
        EXPECT_EQ(full.shape(), params[p].shape);
        EXPECT_EQ(ops::to_floats(stream, full), counting(numel_of(params[p].shape)));
        if (policy == LayoutPolicy::even_rows && !piece.empty()) {
          EXPECT_EQ(numel_of(t.local_shape()), piece.size());
          EXPECT_EQ(t.global_offset()[0] * row_size(params[p].shape), piece.begin.value);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, RaggedDTensor,
                         testing::Combine(testing::Values(LayoutPolicy::ragged, LayoutPolicy::even_rows,
                                                          LayoutPolicy::whole_param),
                                          testing::Values(1, 2, 3)));

TEST(DTensor, ARaggedPieceThatCutsARowHasBoxesButNoShape) {
  launch(2, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"x", 2}});
    LayoutOptions options;
    options.align = 1;
    options.padding_budget = 0;
    const auto layout = std::make_shared<const ShardLayout>(ShardLayout::make({{"w", {3, 4}}}, 2, options));
    const Tensor local = Tensor::empty(*rank.device, {6}, DType::f32, "local");
    const auto t = DTensor::from_layout(mesh, {"x"}, layout, 0, local);
    EXPECT_THROW(t.local_shape(), NotSupported);
    EXPECT_THROW(t.global_offset(), NotSupported);
    EXPECT_EQ(t.boxes().size(), 2u);
    ops::fill(rank.device->compute(), local, 1 + rank.world->rank());
    const DTensor columns = t.redistribute(rank.device->compute(), {Shard(1)});
    // Rows 1111, 1122, 2222: the left two columns, the right two.
    const bool left = rank.world->rank() == 0;
    EXPECT_EQ(ops::to_floats(rank.device->compute(), columns.local()),
              (left ? std::vector<float>{1, 1, 1, 1, 2, 2} : std::vector<float>{1, 1, 2, 2, 2, 2}));
  });
}

TEST(DTensor, BadArgumentsAreNamed) {
  launch(2, [](RankContext& rank) {
    const DeviceMesh mesh(rank.world, {{"x", 2}});
    const Tensor local = Tensor::empty(*rank.device, {2, 3}, DType::f32, "local");
    EXPECT_THAT(message_of<ShapeMismatch>([&] {
                  (void)DTensor::from_local(mesh, {5, 3}, {Shard(1)}, local);
                }),
                ::testing::AllOf(
                    testing::HasSubstr(rank.world->rank() == 0 ? "local shape [5, 2]" : "local shape [5, 1]"),
                    testing::HasSubstr("has [2, 3]")));
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, 3}, {}, local), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, 3}, {Shard(0), Shard(0)}, local), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, 3}, {Shard(2)}, local), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, 3}, {Shard(-1)}, local), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, -3}, {Shard(0)}, local), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_local(mesh, {4, 3}, {Shard(0)}, Tensor()), InvalidArgument);
    const auto t = DTensor::from_local(mesh, {4, 3}, {Shard(0)}, local);
    EXPECT_THROW((void)t.redistribute(rank.device->compute(), {Shard(2)}), InvalidArgument);
    EXPECT_THROW((void)t.redistribute(rank.device->compute(), {}), InvalidArgument);

    const auto layout = std::make_shared<const ShardLayout>(ShardLayout::make({{"w", {4, 3}}}, 2));
    const Tensor piece = Tensor::empty(
        *rank.device, {layout->piece(ParamId(0), RankId(rank.world->rank())).size()}, DType::f32, "p");
    EXPECT_NO_THROW((void)DTensor::from_layout(mesh, {"x"}, layout, 0, piece));
    EXPECT_THROW((void)DTensor::from_layout(mesh, {"x"}, layout, 0, local), ShapeMismatch);
    EXPECT_THROW((void)DTensor::from_layout(mesh, {"x"}, layout, 1, piece), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_layout(mesh, {"y"}, layout, 0, piece), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_layout(mesh, {"x", "x"}, layout, 0, piece), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_layout(mesh, {}, layout, 0, piece), InvalidArgument);
    EXPECT_THROW((void)DTensor::from_layout(mesh, {"x"}, nullptr, 0, piece), InvalidArgument);
  });
}

}  // namespace
}  // namespace sherd
