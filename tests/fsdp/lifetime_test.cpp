// Models that end before what they are made of, names that cannot be saved, parameters without elements.

#include "support/chain.h"
#include "support/message_of.h"

namespace sherd::test {
namespace {

// A root of blocks that others own.
struct Borrowing : nn::Module<Borrowing> {
  explicit Borrowing(ToyBlock& b) : block(b) {
    child("block", block);
    gain = param("gain.weight", {1}, constant(1));
  }
  ToyBlock& block;
  Parameter gain;
  nn::Var forward(const nn::Var& x) {
    return block(with_gradients(x, {gain}, [this] { gain.grad(); }));
  }
};

TEST(Lifetime, PartsThatOutliveTheRootThrowAndMayBeWrappedAgain) {
  for (Strategy s : kEveryStrategy) {
    launch(2, [&](RankContext& r) {
      const DeviceMesh mesh = mesh_of(r);
      ToyBlock block(12, 20);
      const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
      ops::fill(r.device->compute(), x, 1);
      std::shared_ptr<Unit> unit;
      Parameter gain;
      Taped taped;
      for (int life = 0; life < 2; ++life) {
        Borrowing model(block);
        fully_shard(block, mesh, {.strategy = s});
        fully_shard(model, mesh, {.strategy = s});
        taped.forward(model, x);
        if (life == 1) break;
        unit = block.unit();
        gain = model.gain;
      }
      const std::string gone = "the root that it was sharded with is gone";
      EXPECT_THAT(message_of<InvalidArgument>([&] { block(x); }),
                  AllOf(HasSubstr("unit 'block'"), HasSubstr(gone)));
      for (auto verb : {&Unit::sync, &Unit::unshard, &Unit::wait, &Unit::reshard, &Unit::post_forward,
                        &Unit::pre_backward})
        EXPECT_THAT(message_of<InvalidArgument>([&] { ((*unit).*verb)(); }), HasSubstr(gone));
      EXPECT_THAT(message_of<InvalidArgument>([&] { unit->post_backward(); }), HasSubstr(gone));
      EXPECT_FALSE(unit->attached());
      EXPECT_FALSE(unit->unsharded());
      EXPECT_FALSE(gain.sharded());
      EXPECT_THAT(message_of<InvalidArgument>([&] { block.up_.data(); }), HasSubstr("has no memory"));
      EXPECT_TRUE(block.is_root());
      EXPECT_EQ(block.named_parameters().size(), 3u);
      fully_shard(block, mesh, {.strategy = s});
      taped.forward(block, x);
      r.device->compute().synchronize();
    });
  }
}

TEST(Lifetime, AModelThatEndsBeforeItsOptimizerIsNamedByTheNextStep) {
  launch(1, [](RankContext& r) {
    std::optional<Optimizer> optimizer;
    {
      ToyBlock block(12, 20);
      Borrowing model(block);
      const Routing routes = route(model, {.optimizer = Algorithm::adamw});
      fully_shard(model, mesh_of(r));
      optimizer.emplace(model, routes, OptimizerOptions{});
    }
    EXPECT_THAT(message_of<InvalidArgument>([&] { optimizer->step(0.1); }),
                HasSubstr("the root module is gone"));
  });
}

TEST(Lifetime, AChildThatEndsBeforeItsRootLeavesIt) {
  launch(1, [](RankContext& r) {
    auto block = std::make_unique<ToyBlock>(12, 20);
    Borrowing model(*block);
    EXPECT_EQ(model.named_parameters().size(), 4u);
    block.reset();
    EXPECT_EQ(model.named_parameters().size(), 1u);
    fully_shard(model, mesh_of(r));
  });
}

TEST(Lifetime, TwoModelsTrainSideBySideButShareNoParameter) {
  launch(2, [](RankContext& r) {
    ChainRig one(r, {}), two(r, {.strategy = Strategy::optim});
    for (int step = 0; step < 2; ++step) {
      one.step(step);
      two.step(step);
    }
    EXPECT_EQ(one.weights(), two.weights());
    struct Thief : ModuleBase {
      explicit Thief(const Parameter& p) {
        param("own.weight", {3}, constant(0));
        tie("taken.weight", p);
      }
    } thief(one.model.gain);
    EXPECT_THAT(message_of<InvalidArgument>([&] { fully_shard(thief, mesh_of(r)); }),
                HasSubstr("parameter 'taken.weight' belongs to unit 'root' of another sharded model"));
    EXPECT_EQ(one.model.gain.name(), "gain.weight");
    one.step(2);
    EXPECT_THAT(message_of<InvalidArgument>([&] { fully_shard(one.model, mesh_of(r)); }),
                HasSubstr("wrapped already"));
  });
}

struct Named : ModuleBase {
  void add(const std::string& name) { param(name, {2}, constant(0)); }
  void add(const std::string& name, ModuleBase& m) { child(name, m); }
  void add(const std::string& name, const Parameter& p) { tie(name, p); }
  Parameter first() { return own_parameters().front(); }
};

TEST(Names, ThatCheckpointsCannotHoldAreRefusedWhereTheyAreGiven) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "no name"},
      {"caf\xe9", R"(name 'caf\xe9' is not UTF-8 from byte 3 on)"},
      {"\xc0\xaf", "not UTF-8"},                   // a long form of '/'
      {"a\xed\xa0\x80", "not UTF-8 from byte 1"},  // a surrogate
      {"\xf4\x90\x80\x80", "not UTF-8"},           // past U+10FFFF
      {"\xe2\x82", "not UTF-8"},                   // cut off
      {std::string("w\0x", 3), R"('w\u0000x' has control characters)"},
      {"two\nlines", R"('two\u000alines')"},
      {"del\x7f", R"(\u007f)"},
  };
  for (auto& [bad_name, said] : bad) {
    const std::string& name = bad_name;  // clang 14 does not capture structured bindings
    Named m, inner;
    EXPECT_THAT(message_of<InvalidArgument>([&] { m.add(name); }),
                AllOf(HasSubstr("parameter"), HasSubstr(said)));
    EXPECT_THAT(message_of<InvalidArgument>([&] { m.add(name, inner); }),
                AllOf(HasSubstr("child module"), HasSubstr(said)));
    m.add("good");
    EXPECT_THAT(message_of<InvalidArgument>([&] { m.add(name, m.first()); }), HasSubstr(said));
    EXPECT_EQ(m.named_parameters().size(), 1u);
    EXPECT_TRUE(inner.is_root());
  }
  Named good;
  for (const char* name : {"w", "größe.重み", "a/b", "with space", "\xf0\x9f\x8f\xba"}) good.add(name);
  EXPECT_EQ(good.named_parameters().size(), 5u);
  launch(1, [](RankContext& r) {
    Named m;
    m.add("__metadata__");
    EXPECT_THAT(message_of<InvalidArgument>([&] { fully_shard(m, mesh_of(r)); }), HasSubstr("safetensors"));
  });
}

TEST(Empty, ParametersUnitsAndRootsWithoutElementsTrain) {
  // A unit of empty parameters, one without any parameter, and a root that has none of its own.
  struct Nothing : nn::Module<Nothing> {
    explicit Nothing(bool has) {
      if (!has) return;
      matrix = param("matrix.weight", {0, 4}, normal(1));
      vector = param("vector.weight", {0}, constant(1));
    }
    Parameter matrix, vector;
    nn::Var forward(const nn::Var& x) {
      EXPECT_TRUE(!matrix.defined() || matrix.data().numel() + vector.data().numel() == 0);
      return with_gradients(x, own_parameters(), [this] {
        EXPECT_TRUE(!matrix.defined() || matrix.grad().numel() + vector.grad().numel() == 0);
      });
    }
  };
  struct Root : nn::Module<Root> {
    Root() : empty(true), bare(false), block(12, 20) {
      child("empty", empty);
      child("bare", bare);
      child("block", block);
    }
    Nothing empty, bare;
    ToyBlock block;
    nn::Var forward(const nn::Var& x) { return block(bare(empty(x))); }
  };
  std::vector<float> want;
  for (Strategy s : kEveryStrategy) {
    for (const LayoutPolicy layout :
         {LayoutPolicy::ragged, LayoutPolicy::even_rows, LayoutPolicy::whole_param}) {
      for (const Algorithm algorithm : {Algorithm::adamw, Algorithm::muon}) {
        launch(2, [&](RankContext& r) {
          Root model;
          const Routing routes = route(model, {.optimizer = algorithm});
          const DeviceMesh mesh = mesh_of(r);
          for (ModuleBase* m :
               std::initializer_list<ModuleBase*>{&model.empty, &model.bare, &model.block, &model})
            fully_shard(*m, mesh, {.strategy = s, .layout = layout});
          Optimizer optimizer(model, routes, {});
          const Tensor x = Tensor::empty(*r.device, {4, 12}, DType::f32, "test");
          Stream& stream = r.device->compute();
          ops::random_normal(stream, x, 48 * r.world->rank(), 1, "x", 0, 1);
          for (int step = 0; step < 2; ++step) {
            run_pass(model, x, x);
            clip_grad_norm(model, 1);
            optimizer.step(0.01);
          }
          const auto w = ops::to_floats(stream, model.block.up_.dtensor().full_tensor(stream));
          EXPECT_EQ(model.empty.matrix.dtensor().full_tensor(stream).numel(), 0);
          if (r.world->rank() != 0 || algorithm == Algorithm::muon) return;
          if (want.empty()) want = w;
          EXPECT_EQ(w, want) << name_of(s) << " " << name_of(layout);
        });
      }
    }
  }
}

}  // namespace
}  // namespace sherd::test
