// Products of small matrices in programs with libtorch: bits do not depend on where a matrix is stored.
#include <algorithm>
#include <array>
#include <random>

#include <sherd/kernels/gemm/gemm.h>
#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>
#include <sherd/torch/optimizer.h>

#include "torch/support.h"

namespace torch_test {
namespace {

constexpr int64_t kShifts[] = {0, 1, 2, 3, 4, 9};  // elements

/// Memory for a tensor at an address that is shifted by so many elements.
sherd::Tensor placed(sherd::Device& device, const sherd::Shape& shape, int64_t shift, int seed) {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  const sherd::Tensor memory = sherd::Tensor::empty(device, {size + 16}, sherd::DType::f32, "small matrices");
  const sherd::Tensor at = memory.flat(shift, shift + size).view(shape);
  const torch::Tensor values = random({size}, seed);
  sherd::ops::copy_from_host(device.compute(), at, values.data_ptr<float>(), 4 * size);
  return at;
}

std::vector<float> product_at(sherd::Device& device, const std::array<int64_t, 3>& size, bool trans_a,
                              bool trans_b, const std::array<int64_t, 3>& shifts) {
  const auto [m, n, k] = size;
  const sherd::Tensor a = placed(device, trans_a ? sherd::Shape{k, m} : sherd::Shape{m, k}, shifts[0], 1);
  const sherd::Tensor b = placed(device, trans_b ? sherd::Shape{n, k} : sherd::Shape{k, n}, shifts[1], 2);
  const sherd::Tensor c = placed(device, {m, n}, shifts[2], 3);
  for (const float beta : {0.0f, 1.0f})
    sherd::ops::gemm(device.compute(), c, a, trans_a, b, trans_b, 1, beta);
  return sherd::ops::to_floats(device.compute(), c);
}

TEST(TorchSmallMatrices, ProductsHaveTheSameBitsAtEveryAddress) {
  launch(1, [](RankContext& rank) {
    std::mt19937 draw(1);
    for (int i = 0; i < 150; ++i) {
      const auto side = [&] { return int64_t{1} + static_cast<int64_t>(draw() % (i % 3 == 0 ? 100 : 12)); };
      const std::array<int64_t, 3> size = {side(), side(), side()};
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true}) {
          const auto at = [&](int64_t a, int64_t b, int64_t c) {
            return product_at(*rank.device, size, trans_a, trans_b, {a, b, c});
          };
          const std::vector<float> want = at(0, 0, 0);
          for (const int64_t s : kShifts)
            for (const auto& have : {at(s, 0, 0), at(0, s, 0), at(0, 0, s), at(s, 2 * s % 7, 3 * s % 5)})
              ASSERT_TRUE(same_bits(want, have)) << fmt::format("m {}, n {}, k {}, {} {}, shift {}", size[0],
                                                                size[1], size[2], trans_a, trans_b, s);
        }
    }
  });
}

// A batch of equal matrices, none at the address of another: alone, by the gram form, and by the parts of that.
TEST(TorchSmallMatrices, OrthogonalFactorsHaveTheSameBitsAtEveryAddress) {
  constexpr int64_t kBatch = 4;
  launch(1, [](RankContext& rank) {
    sherd::Device& device = *rank.device;
    sherd::Stream& compute = device.compute();
    const auto expect_equal = [&](const sherd::Tensor& batch, const std::string& what) {
      const std::vector<float> all = sherd::ops::to_floats(compute, batch);
      const auto size = static_cast<std::ptrdiff_t>(all.size() / kBatch);
      for (int64_t i = 1; i < kBatch; ++i)
        EXPECT_TRUE(same_bits({all.begin(), all.begin() + size},
                              {all.begin() + i * size, all.begin() + (i + 1) * size}))
            << what << ", matrix " << i;
    };
    const sherd::Tensor status = sherd::Tensor::empty(device, {kBatch}, sherd::DType::i32, "small matrices");
    for (int64_t m = 1; m <= 12; ++m)
      for (const int64_t n : {1, 3, 7, 11, 17, 30, 67, 131}) {
        const sherd::Tensor x = placed(device, {kBatch, m, n}, 0, 1),
                            out = placed(device, {kBatch, m, n}, 3, 2);
        for (int64_t i = 1; i < kBatch; ++i)
          sherd::ops::copy(compute, x.flat(i * m * n, (i + 1) * m * n), x.flat(0, m * n));
        sherd::OrthogonalizeOptions o;
        for (const auto form : {sherd::IterationForm::standard, sherd::IterationForm::gram})
          for (const auto working : {sherd::DType::f32, sherd::DType::f16}) {
            o.form = form;
            o.working = working;
            sherd::ops::orthogonalize(compute, out, x, status, o);
            expect_equal(out, fmt::format("[{}, {}], form {}, {}", m, n, static_cast<int>(form),
                                          sherd::name_of(working)));
          }
        o = {.method = sherd::Orthogonalizer::svd};
        sherd::ops::orthogonalize(compute, out, x, status, o);
        expect_equal(out, fmt::format("[{}, {}], svd", m, n));
        for (const bool columns : {false, true}) {
          const int64_t side = columns ? n : m;
          const sherd::Tensor gram = placed(device, {kBatch, side, side}, 1, 3);
          const sherd::Tensor q = placed(device, {kBatch, side, side}, 2, 4);
          const std::string what = fmt::format("[{}, {}], {}", m, n, columns ? "x^T x" : "x x^T");
          sherd::ops::gram_product(compute, gram, x, columns);
          expect_equal(gram, what);
          sherd::ops::gram_iterate(compute, q, gram, status, 0, 5, {.form = sherd::IterationForm::gram});
          expect_equal(q, what + ", q");
          sherd::ops::gram_apply(compute, out, x, q, columns);
          expect_equal(out, what + ", q x");
        }
        if (HasFailure()) return;
      }
  });
}

/// Matrices whose gradients are the given values, whatever the weights are.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    // Several of a shape, which are updated together, at the addresses that follow.
    for (const int64_t rows : {1, 5, 8, 9, 10, 11})
      for (const int64_t cols : {7, 9, 10, 11, 29})
        for (int i = 0; i < 4; ++i)
          all.push_back(register_parameter(fmt::format("w{}", all.size()), random({rows, cols}, 100 + i)));
    all.push_back(register_parameter("tall", random({131, 9}, 101)));
    all.push_back(register_parameter("wide", random({11, 203}, 102)));
  }
  torch::Tensor forward(const torch::Tensor& gradients) {
    torch::Tensor sum = torch::zeros({1});
    int64_t at = 0;
    for (const torch::Tensor& w : all) {
      sum = sum + (w * gradients.slice(0, at, at + w.numel()).view(w.sizes())).sum();
      at += w.numel();
    }
    return sum;
  }
  std::vector<torch::Tensor> all;
};
SHERD_TORCH_MODULE(SmallNet);

struct SmallRun {
  sherd::Algorithm algorithm;
  double fraction = 1;
  sherd::OrthogonalizeOptions orthogonalize = {};
};

/// Trains two steps with the same gradients on every rank, multiples of 1/256: their mean over 2, 3 and 4 ranks is exact.
void train_small(const SmallRun& run, SmallNet& model, const RankContext& rank,
                 const FullyShardOptions& options) {
  sherd::torch::route(*model, {.rules = {{.pattern = "", .algorithm = run.algorithm}}});
  sherd::torch::fully_shard(*model, mesh_of(rank), options);
  sherd::OptimizerOptions o{.muon = {.orthogonalize = run.orthogonalize, .fraction = run.fraction}};
  if (run.algorithm == sherd::NorMuon::kName) o.further.push_back(sherd::NorMuon::factory());
  if (run.algorithm == sherd::Soap::kName) o.further.push_back(sherd::Soap::factory());
  sherd::torch::Optimizer optimizer(*model, o);
  for (int step = 0; step < 2; ++step) {
    model((random({30000}, step) * 256).round() / 256).backward();
    optimizer.step(1e-2);
  }
}

TEST(TorchSmallMatrices, OptimizersGiveTheBitsOfOneRank) {
  std::vector<SmallRun> runs;
  for (const sherd::Algorithm& a : {sherd::Algorithm::muon, sherd::NorMuon::kName, sherd::Soap::kName})
    runs.push_back({.algorithm = a});
  runs.push_back({.algorithm = sherd::Algorithm::muon, .fraction = 0.3});
  runs.push_back(
      {.algorithm = sherd::Algorithm::muon, .orthogonalize = {.method = sherd::Orthogonalizer::svd}});
  runs.push_back(
      {.algorithm = sherd::Algorithm::muon, .orthogonalize = {.form = sherd::IterationForm::gram}});
  for (size_t r = 0; r < runs.size(); ++r) {
    Values want;
    launch(1, [&](RankContext& rank) {
      SmallNet model;
      train_small(runs[r], model, rank, {.strategy = Strategy::no_shard});
      for (auto& [name, p] : sherd::torch::root_of(*model).named_parameters())
        want[name] = torch::tensor(sherd::ops::to_floats(rank.device->compute(), p.shard()));
    });
    for (const int ranks : {2, 3, 4})
      for (const Strategy strategy : strategies())
        for (const sherd::LayoutPolicy layout : {sherd::LayoutPolicy::ragged, sherd::LayoutPolicy::even_rows,
                                                 sherd::LayoutPolicy::whole_param}) {
          if ((ranks < 4 || layout != sherd::LayoutPolicy::ragged) && strategy != Strategy::optim_grads)
            continue;
          launch(ranks, [&](RankContext& rank) {
            SmallNet model;
            train_small(runs[r], model, rank, {.strategy = strategy, .layout = layout});
            expect_weights(*model, want, fmt::format("run {}, {}", r, where(rank, strategy)));
          });
          if (HasFailure()) return;
        }
  }
}

}  // namespace
}  // namespace torch_test
