// Buffers: values that every rank holds whole and that are not trained.

#include <mutex>

#include "support/message_of.h"
#include "support/rig.h"

namespace sherd::test {
namespace {

// y = x * 1; its buffers are what is looked at.
struct Kept : ModuleBase {
  explicit Kept(float stddev = 1, bool persistent = true) {
    weight = param("weight", {3, 2}, normal(1));
    table = buffer("table", {4, 3}, DType::f32,
                   from_function([](int64_t i) { return 0.5f * static_cast<float>(i); }));
    mean = buffer("mean", {5}, DType::bf16, normal(stddev), persistent);
    count = buffer("count", {}, DType::i64, constant(7));
    child("inner", inner);
  }
  struct Inner : ModuleBase {
    Buffer mask = buffer("mask", {2, 2}, DType::u8, constant(255)),
           none = buffer("none", {0, 3}, DType::f64, constant(1));
  } inner;
  Parameter weight;
  Buffer table, mean, count;
};

template <class T>
std::vector<T> read(Stream& s, const Buffer& b) {
  std::vector<T> values(static_cast<size_t>(b.numel()));
  ops::copy_to_host(s, values.data(), b.data());
  return values;
}

TEST(Buffers, EveryRankHasThemWholeWithTheSameFirstValues) {
  std::vector<float> want;
  for (const int ranks : {1, 3}) {
    std::mutex mutex;
    std::vector<std::vector<float>> means;
    launch(ranks, [&](RankContext& r) {
      Kept model;
      fully_shard(model, mesh_of(r), {}, {.seed = 3});
      Stream& s = r.device->compute();
      EXPECT_EQ(read<float>(s, model.table),
                (std::vector<float>{0, .5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5}));
      EXPECT_THAT(read<int64_t>(s, model.count), ElementsAre(7));
      EXPECT_THAT(read<uint8_t>(s, model.inner.mask), ElementsAre(255, 255, 255, 255));
      EXPECT_EQ(model.inner.none.data().shape(), (Shape{0, 3}));
      EXPECT_GT(r.device->allocator().live_bytes(MemoryClass::buffer), 0);
      const std::lock_guard lock(mutex);
      means.push_back(ops::to_floats(s, model.mean.data()));
    });
    for (const auto& mean : means) {
      if (want.empty()) want = mean;
      EXPECT_EQ(mean, want);
    }
  }
}

TEST(Buffers, AreListedByTheirFullNames) {
  launch(1, [](RankContext& r) {
    Kept model;
    const auto names = [&] {
      std::vector<std::string> all;
      for (auto& [name, b] : model.named_buffers()) all.push_back(name);
      return all;
    };
    EXPECT_THAT(names(), ElementsAre("table", "mean", "count", "inner.mask", "inner.none"));
    EXPECT_EQ(model.inner.mask.name(), "mask");
    fully_shard(model, mesh_of(r));
    EXPECT_EQ(model.inner.mask.name(), "inner.mask");
    EXPECT_EQ(runtime_of(model).buffers_of_model().size(), 5u);
    EXPECT_EQ(model.named_parameters().size(), 1u) << "buffers are no parameters";
  });
}

TEST(Buffers, KeepWhatTheProgramWritesUntilTheRootIsGone) {
  launch(2, [](RankContext& r) {
    Buffer handle;
    EXPECT_THROW(handle.name(), InvalidArgument);
    {
      Kept model;
      handle = model.mean;
      EXPECT_THROW(handle.data(), InvalidArgument) << "described, not allocated";
      fully_shard(model, mesh_of(r));
      ops::fill(r.device->compute(), handle.data(), 2 + r.world->rank());
      reset_step(model);
      for (const float v : ops::to_floats(r.device->compute(), model.mean.data()))
        EXPECT_EQ(v, static_cast<float>(2 + r.world->rank())) << "each rank its own";
    }
    EXPECT_THROW(handle.data(), InvalidArgument) << "the root is gone";
  });
}

TEST(Buffers, WhatCannotBeIsRefusedWithTheName) {
  struct Twice : ModuleBase {
    Twice() { buffer("a", {1}, DType::f32, constant(0)), buffer("a", {1}, DType::f32, constant(0)); }
  };
  EXPECT_THROW(Twice(), InvalidArgument);
  EXPECT_THROW(Buffer("a", {-1}, DType::f32, constant(0), true), InvalidArgument);
  EXPECT_THROW(Buffer("a", {1}, DType::f32, kaiming_normal(), true), InvalidArgument);
  launch(1, [](RankContext& r) {
    struct Both : Kept {
      Both() { buffer("weight", {1}, DType::f32, constant(0)); }
    } both;
    struct TooLarge : Kept {
      TooLarge() { buffer("large", {1}, DType::u8, constant(256)); }
    } large;
    const DeviceMesh mesh = mesh_of(r);
    const auto refused = [&](ModuleBase& model) {
      return message_of<InvalidArgument>([&] { fully_shard(model, mesh); });
    };
    EXPECT_THAT(refused(both), HasSubstr("two parameters or buffers are named 'weight'"));
    EXPECT_THAT(refused(large), AllOf(HasSubstr("'large'"), HasSubstr("256"), HasSubstr("u8")));
  });
}

TEST(Buffers, DifferentDescriptionsOfRanksAreReported) {
  for (const bool of_persistence : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    try {
      launch(3, [&](RankContext& r) {
        const bool odd = r.world->rank() == 1;
        Kept model(odd && !of_persistence ? 2.0f : 1.0f, !(odd && of_persistence));
        try {
          fully_shard(model, mesh_of(r));
        } catch (const ShapeMismatch& e) {
          std::lock_guard lock(mutex);
          texts.emplace_back(e.what());
          throw;
        }
      });
    } catch (const ShapeMismatch&) {
    }
    EXPECT_THAT(texts, ::testing::SizeIs(3));
    EXPECT_THAT(texts, ::testing::Each(AllOf(HasSubstr("rank 1 ("), HasSubstr("what buffer 'mean' is"))));
  }
}

}  // namespace
}  // namespace sherd::test
