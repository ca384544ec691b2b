// Tensors and gradients of sherd in the hands of a program of libtorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include <sherd/torch/convert.h>
#include <sherd/torch/gradients.h>
#include <sherd/torch/local_shards.h>
#include <sherd/torch/optimizer.h>

#include "torch/net.h"

namespace torch_test {
namespace {

using ::testing::HasSubstr;

TEST(TorchConvert, BothSidesShareTheMemory) {
  launch(1, [](RankContext& rank) {
    sherd::Stream& compute = rank.device->compute();
    const torch::Tensor own = torch::arange(6, torch::kFloat).reshape({2, 3});
    const sherd::Tensor lent = sherd::torch::from_torch(own, *rank.device);
    EXPECT_EQ(lent.raw(), own.data_ptr());
    EXPECT_EQ(lent.shape(), (sherd::Shape{2, 3}));
    const torch::Tensor back = sherd::torch::to_torch(compute, lent);
    back[1][2] = 42;
    EXPECT_EQ(own[1][2].item<float>(), 42);

    torch::Tensor kept;
    {
      const sherd::Tensor memory = sherd::Tensor::empty(*rank.device, {3}, sherd::DType::bf16, "test");
      kept = sherd::torch::to_torch(compute, memory);
    }
    kept.fill_(2);  // the memory is there as long as libtorch's tensor
    EXPECT_EQ(kept.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(kept.sum().item<float>(), 6);

    EXPECT_THAT(message_of([&] { (void)sherd::torch::from_torch(own.t(), *rank.device); }),
                HasSubstr("give tensor.contiguous()"));
    EXPECT_NE(message_of([&] { (void)sherd::torch::from_torch(own > 1, *rank.device); }), "");
  });
}

TEST(TorchConvert, PlacementsOfATensorOfLibtorchMayChange) {
  const torch::Tensor whole = random({8, 6}, 1);
  for (const int ranks : {1, 3, 4})
    launch(ranks, [&](RankContext& rank) {
      sherd::Stream& compute = rank.device->compute();
      const sherd::DeviceMesh mesh = mesh_of(rank);
      const int64_t at = rank.world->rank();
      const sherd::DTensor rows = sherd::torch::distribute(whole, mesh, {sherd::Shard(0)});
      const sherd::EvenChunk chunk = sherd::even_chunk(8, ranks, static_cast<int>(at));
      const torch::Tensor piece = sherd::torch::to_torch(compute, rows);
      EXPECT_TRUE(torch::equal(piece, whole.slice(0, chunk.offset, chunk.offset + chunk.size)));

      const sherd::DTensor mine =
          sherd::torch::from_torch((piece * 2).contiguous(), mesh, {8, 6}, {sherd::Shard(0)});
      const sherd::DTensor columns = mine.redistribute(compute, {sherd::Shard(1)});
      const sherd::EvenChunk wide = sherd::even_chunk(6, ranks, static_cast<int>(at));
      EXPECT_TRUE(torch::equal(sherd::torch::to_torch(compute, columns),
                               whole.slice(1, wide.offset, wide.offset + wide.size) * 2));
      EXPECT_TRUE(torch::equal(sherd::torch::full_tensor(compute, columns), whole * 2));

      const sherd::DTensor terms = sherd::torch::from_torch(whole.clone(), mesh, {8, 6}, {sherd::Partial()});
      EXPECT_TRUE(torch::allclose(sherd::torch::full_tensor(compute, terms), whole * ranks));
      EXPECT_NE(message_of([&] {
                  (void)sherd::torch::from_torch(whole.clone(), mesh, {9, 6}, {sherd::Shard(0)});
                }),
                "");
    });
}

TEST(TorchConvert, ParametersAreThereAsAWhole) {
  torch::manual_seed(3);
  const Net first;
  const Values want = [&] {
    Values all;
    for (auto& p : first->named_parameters()) all[p.key()] = p.value().detach();
    return all;
  }();
  launch(3, [&](RankContext& rank) {
    Net model = sharded(first, rank, Strategy::optim_grads_params);
    for (const auto& [name, p] : sherd::torch::root_of(*model).named_parameters()) {
      const torch::Tensor full = sherd::torch::full_tensor(rank.device->compute(), p.dtensor());
      EXPECT_TRUE(torch::equal(full.reshape(want.at(name).sizes()), want.at(name))) << name;
    }
  });
}

TEST(TorchConvert, GradientsArePiecesWithTheirPlace) {
  torch::manual_seed(3);
  const Net first;
  for (const int ranks : {1, 3, 4}) {
    const Values want = mean_gradients(first, ranks, [](Net& net, int r) { net_backward(net, r); });
    for (const Strategy strategy : strategies())
      launch(ranks, [&](RankContext& rank) {
        Net model = sharded(first, rank, strategy);
        const std::string at = where(rank, strategy);
        EXPECT_THAT(message_of([&] { (void)sherd::torch::gradient_pieces(*model); }),
                    HasSubstr("sherd::torch::gradient_pieces"));
        model->blocks[0]->as<Block>()->norm->weight.set_requires_grad(false);
        torch::Tensor seen;  // by a hook: what this rank has brought
        model->head->weight.register_hook([&](const torch::Tensor& g) { seen = g.clone(); });
        net_backward(model, rank.world->rank());
        Net plain;
        copy_weights(*first, *plain);
        net_backward(plain, rank.world->rank());
        EXPECT_TRUE(torch::equal(seen, plain->head->weight.grad())) << at;
        double squares = 0;
        const auto pieces = sherd::torch::gradient_pieces(*model);
        const auto norms = sherd::torch::gradient_norms(*model);
        ASSERT_EQ(pieces.size(), model->named_parameters().size() - 1);
        ASSERT_EQ(norms.size(), pieces.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
          const torch::Tensor& whole = want.at(pieces[i].name);
          EXPECT_TRUE(same_bits(
              part_of(pieces[i].values, {sherd::ParamIndex(0), sherd::ParamIndex(pieces[i].values.numel())}),
              part_of(whole, pieces[i].range)))
              << pieces[i].name << ", " << at;
          int64_t in_boxes = 0;
          for (const sherd::Box& box : pieces[i].boxes) in_boxes += sherd::numel_of(box.size);
          EXPECT_EQ(in_boxes, pieces[i].values.numel());
          EXPECT_EQ(norms[i].first, pieces[i].name);
          // The sum of up to 300 squares in f64, in another order: 300 roundings of 1.1e-16 at most.
          const double norm = whole.to(torch::kDouble).norm().item<double>();
          EXPECT_NEAR(norms[i].second, norm, 4e-14 * norm) << pieces[i].name << ", " << at;
          squares += norms[i].second * norms[i].second;
        }
        const float all = sherd::torch::read_stats(*model, sherd::torch::clip_grad_norm(*model, 0)).norm;
        EXPECT_NEAR(std::sqrt(squares), all, 1e-6 * all) << at;  // clip_grad_norm() rounds to f32
      });
  }
}

}  // namespace
}  // namespace torch_test
