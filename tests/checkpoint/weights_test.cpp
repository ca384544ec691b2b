// Weights of tensor- and expert-parallel models go out whole and come back anywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/safetensors.h>
#include <sherd/checkpoint/weights.h>

#include "support/pieces.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

const Spread kSpreads[] = {{},
                           {.tp = 2},
                           {.tp = 4, .experts = 4},
                           {.shard = 3, .tp = 2, .experts = 2},
                           {.replicas = 2, .shard = 2, .tp = 2, .experts = 4}};

TEST(Weights, TheFileDoesNotShowHowTheModelWasSpread) {
  const TemporaryFolder folder;
  std::string want;
  for (const Spread& spread : kSpreads) {
    for (const Strategy strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
      for (const LayoutPolicy layout : {LayoutPolicy::ragged, LayoutPolicy::even_rows}) {
        const auto path = folder / "w.safetensors";
        launch(spread.ranks(), [&](RankContext& r) {
          Pieces model(r, spread);
          model.wrap({.strategy = strategy, .outer = Outer::optim, .layout = layout, .seed = 3});
          export_weights(model, path);
        });
        if (want.empty()) {
          want = read_bytes(path);
          EXPECT_EQ(SafetensorsReader(path).find("qkv")->shape, (Shape{24, 5}));
          EXPECT_EQ(SafetensorsReader(path).find("experts.up")->shape, (Shape{4, 3, 2}));
        }
        EXPECT_TRUE(read_bytes(path) == want) << spread.ranks() << " ranks, tp " << spread.tp;
      }
    }
  }
}

TEST(Weights, EveryRankReadsItsPieces) {
  const TemporaryFolder folder;
  const auto first = folder / "first.safetensors", again = folder / "again.safetensors";
  launch(1, [&](RankContext& r) {
    Pieces model(r, {});
    model.wrap({.seed = 3});
    export_weights(model, first);
  });
  for (const Spread& spread : kSpreads) {
    launch(spread.ranks(), [&](RankContext& r) {
      Pieces model(r, spread);
      model.wrap({.seed = 4});
      import_weights(model, first);
      export_weights(model, again);
    });
    EXPECT_TRUE(read_bytes(again) == read_bytes(first)) << spread.ranks() << " ranks, tp " << spread.tp;
  }
}

}  // namespace
}  // namespace sherd::test
