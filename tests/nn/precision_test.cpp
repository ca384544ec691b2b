// Units that compute in different dtypes, and parameters that differ within one.
#include <fmt/format.h>

#include "support/message_of.h"
#include "training.h"

namespace sherd::test {
namespace {

using nn::Tape;
using nn::Var;

// Block 0 in f32, block 1 in bf16 with its norm in f32 and a frozen matrix, block 2 in bf16 with results in
// f32.
void prepare(TapeNet& net) {
  net.block(1).norm_.set_compute_dtype(DType::f32);
  net.block(1).up_.freeze();
}

void shard_mixed(TapeNet& net, RankContext& rank, FullyShardOptions o) {
  const DeviceMesh mesh(rank.world, {{"shard", rank.world->size()}});
  fully_shard(net.block(0), mesh, o);
  FullyShardOptions narrow = o;
  narrow.compute_dtype = DType::bf16;
  fully_shard(net.block(1), mesh, narrow);
  narrow.output_dtype = DType::f32;
  narrow.reduce_dtype = DType::bf16;
  fully_shard(net.block(2), mesh, narrow);
  fully_shard(net, mesh, o);
}

std::map<std::string, std::vector<float>> masters(TapeNet& net, RankContext& rank) {
  std::map<std::string, std::vector<float>> all;
  for (auto& [name, p] : net.named_parameters()) {
    std::vector<float> whole(static_cast<size_t>(p.numel()), 0);
    const std::vector<float> mine = ops::to_floats(rank.device->compute(), p.shard());
    std::copy(mine.begin(), mine.end(), whole.begin() + p.shard_range().begin.value);
    Tensor t = Tensor::empty(*rank.device, {p.numel()}, DType::f32, "test");
    ops::copy_from_host(rank.device->compute(), t, whole.data(), t.nbytes());
    if (!p.group().sharded_over().empty())
      rank.world->all_reduce(rank.device->compute(), t);  // disjoint pieces
    all[name] = ops::to_floats(rank.device->compute(), t);
  }
  return all;
}

std::map<std::string, std::vector<float>> train_mixed(int ranks, const FullyShardOptions& options,
                                                      bool recompute) {
  std::map<std::string, std::vector<float>> weights;
  launch(ranks, [&](RankContext& rank) {
    TapeNet net;
    prepare(net);
    for (auto& b : net.blocks) b->set_recompute(recompute);
    const Routing routing = route(net, {.optimizer = Algorithm::muon});
    shard_mixed(net, rank, options);
    Optimizer optimizer(net, routing, {});
    Tape tape;
    for (int i = 0; i < 3; ++i) {
      plain_step(net, tape, rank, i);
      clip_grad_norm(net, 1);
      optimizer.step(0.05);
    }
    for (auto& u : runtime_of(net).units()) u->unshard();
    // The memory is as planned.
    auto planned = runtime_of(net).plan().bytes();
    for (const MemoryClass kind : {MemoryClass::parameter, MemoryClass::master, MemoryClass::gathered})
      EXPECT_EQ(rank.device->allocator().live_bytes(kind), planned[kind]) << name_of(kind);
    auto all = masters(net, rank);
    if (rank.world->rank() == 0) weights = std::move(all);
  });
  return weights;
}

TEST(Precision, UnitsAndParametersOfSeveralDtypesHaveOneSetOfBitsUnderAllStrategiesAndLayouts) {
  for (const int ranks : {1, 3, 4}) {
    const auto want = train_mixed(ranks, {.strategy = Strategy::no_shard}, false);
    EXPECT_TRUE(std::isfinite(want.at("head.weight")[0]));
    for (const Strategy s : kStrategies)
      for (const LayoutPolicy layout :
           {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, layout {}", ranks, name_of(s), static_cast<int>(layout)));
        EXPECT_EQ(train_mixed(ranks, {.strategy = s, .layout = layout}, s == Strategy::optim_grads_params),
                  want);
      }
  }
}

TEST(Precision, CallsCastWhatTheyTakeAndReturn) {
  launch(2, [](RankContext& rank) {
    TapeNet net;
    prepare(net);
    std::vector<DType> results;
    net.use = [&](TapeNet& n, Var x) {
      for (auto& b : n.blocks) {
        x = (*b)(x);
        results.push_back(x.dtype());
      }
      return x;
    };
    shard_mixed(net, rank, {});
    Tape tape;
    const Var y = net(tape.input(rows(rank, 1)));
    EXPECT_THAT(results, testing::ElementsAre(DType::f32, DType::bf16, DType::f32));
    EXPECT_EQ(y.dtype(), DType::f32);
    tape.backward(loss_of(y, 0));
    // A unit of three kinds: bf16 trained, f32 trained, bf16 frozen.
    std::vector<std::string> kinds;
    for (auto& g : net.block(1).unit()->groups())
      kinds.push_back(fmt::format("{}{}", name_of(g->plan().dtype), g->trainable() ? "" : " frozen"));
    EXPECT_THAT(kinds, testing::UnorderedElementsAre("f32", "bf16", "bf16 frozen"));
  });
}

TEST(Precision, ANormInF32RoundsOnce) {
  launch(1, [](RankContext& rank) {
    struct Norm : nn::Module<Norm> {
      Parameter w = param("weight", {kWidth}, normal(1)).set_compute_dtype(DType::f32);
      Var forward(const Var& x) { return nn::rms_norm(x, w); }
    } norm;
    fully_shard(norm, DeviceMesh(rank.world, {{"shard", 1}}), {.compute_dtype = DType::bf16});
    Stream& s = rank.device->compute();
    Tensor narrow = Tensor::empty(*rank.device, {kRows, kWidth}, DType::bf16, "test"), wide = rows(rank, 1);
    ops::cast(s, narrow, wide);
    ops::cast(s, wide, narrow);
    Tape tape;
    const Var y = norm(tape.leaf(narrow));
    EXPECT_EQ(y.dtype(), DType::bf16);
    norm.unit()->unshard();
    const std::vector<float> x = ops::to_floats(s, wide), got = ops::to_floats(s, y.value()),
                             w = ops::to_floats(s, norm.w.data());
    for (int64_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < kWidth; ++c) squares += std::pow(x[static_cast<size_t>(r * kWidth + c)], 2);
      const double rstd = 1 / std::sqrt(squares / kWidth + 1e-6);
      for (int64_t c = 0; c < kWidth; ++c) {
        const auto i = static_cast<size_t>(r * kWidth + c);
        const double want = x[i] * rstd * w[static_cast<size_t>(c)];
        EXPECT_NEAR(got[i], want, std::abs(want) * (0x1p-8 + 1e-5));  // rounding to 8 bits
      }
    }
  });
}

TEST(Precision, DtypesThatCannotBeAreNamed) {
  Parameter p("p", {2, 2}, constant(0));
  EXPECT_THROW(p.set_compute_dtype(DType::i32), InvalidArgument);
  launch(1, [](RankContext& rank) {
    TapeNet net;
    EXPECT_THAT(message_of<InvalidArgument>([&] { shard(net, rank, {.output_dtype = DType::f64}); }),
                testing::HasSubstr("output dtype f64 (use f32 or bf16)"));
  });
}

TEST(Precision, AnInputOfAnotherDtypeThanTheUnitsIsNamedWithTheRemedy) {
  launch(1, [](RankContext& rank) {
    TapeNet net;
    const DeviceMesh mesh(rank.world, {{"shard", 1}});
    fully_shard(net.blocks, mesh, {});
    fully_shard(net, mesh, {.compute_dtype = DType::bf16});
    Tape tape;
    EXPECT_THAT(message_of<ShapeMismatch>([&] { net(tape.input(rows(rank, 1))); }),
                testing::AllOf(testing::HasSubstr("parameter 'head.weight'"),
                               testing::HasSubstr("unit 'root' computes in bf16, and this input is f32"),
                               testing::HasSubstr("one FullyShardOptions::compute_dtype"),
                               testing::HasSubstr("output_dtype bf16")));
  });
}

TEST(Precision, ACastBringsItsGradientBack) {
  auto device = make_cpu_device();
  Tensor x = Tensor::empty(*device, {3, 5}, DType::f32, "test");
  ops::random_normal(device->compute(), x, 0, 4, "x", 0, 1);
  Tape tape;
  const Var leaf = tape.leaf(x), wide = nn::cast(nn::cast(leaf, DType::bf16), DType::f32);
  tape.backward(nn::sum(nn::gelu(wide)));
  Tape plain;
  const Var same = plain.leaf(wide.value());
  plain.backward(nn::sum(nn::gelu(same)));
  const std::vector<float> got = ops::to_floats(device->compute(), tape.gradient(leaf)),
                           want = ops::to_floats(device->compute(), plain.gradient(same));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-8 + 1e-12);
}

}  // namespace
}  // namespace sherd::test
