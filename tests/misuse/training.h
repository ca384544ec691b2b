// A small training program whose verbs a case can leave out, double, put in another order or break.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "misuse/case.h"
#include "support/toy_model.h"

namespace sherd::misuse {

/// A model and its training; all of it is legal.
struct Plan {
  int ranks = 2, replicas = 1, accumulate = 1, steps = 3, blocks = 2;
  FullyShardOptions options;
  RootOptions root;
  Algorithm algorithm = Algorithm::adamw;
  /// 0: no clipping.
  double clip = 0.5;
  double lr = 0.01;
  OptimizerOptions optimizer;
  std::string describe() const;
};
Plan random_plan(Dice& dice);
/// Returns options of a launch with a short watchdog.
LaunchOptions watched(int milliseconds = 1500);

/// A stack of blocks on inputs and output gradients that are given. Calls `at_point` where a user's forward
/// or backward may do something of its own.
class Stack : public nn::Module<Stack> {
 public:
  static constexpr int64_t kWidth = 8, kRows = 4;
  explicit Stack(int blocks);
  std::function<void(const char* where)> at_point;
  /// Order in which blocks run.
  std::vector<size_t> order;
  test::ToyBlock& block(size_t i) { return *blocks_[i]; }
  const std::shared_ptr<test::ToyBlock>& shared_block(size_t i) { return blocks_[i]; }
  size_t blocks() const { return blocks_.size(); }
  Parameter gain;
  nn::Var forward(const nn::Var& in);

 private:
  void point(const char* where) const {
    if (at_point) at_point(where);
  }
  /// x itself: calls at_point in backward.
  nn::Var backward_point(const nn::Var& x, const char* where) const {
    return test::with_gradients(x, {}, [this, where] { point(where); });
  }
  std::vector<std::shared_ptr<test::ToyBlock>> blocks_;
};

using Weights = std::vector<std::vector<float>>;

/// One rank's program.
class Training {
 public:
  Training(RankContext& rank, const Plan& plan);
  /// The same on a mesh and with options that may be wrong.
  Training(RankContext& rank, const Plan& plan, const DeviceMesh& mesh, const FullyShardOptions& options,
           const DeviceMesh* of_last_block = nullptr);

  void load(int batch);
  void forward() { taped.forward(*stack, in); }
  void backward() { taped.backward(dy); }
  void clip();
  void update() { optimizer->step(plan.lr); }
  /// All verbs of one step on its batches.
  void step(int number);
  /// Aborts a step in its middle.
  void give_up();
  /// Returns all parameters, unsharded. Ends with a synchronisation.
  Weights weights();
  Stream& stream() { return rank.device->compute(); }

  RankContext& rank;
  Plan plan;
  std::unique_ptr<Stack> stack;
  Routing routing;
  std::optional<Optimizer> optimizer;
  Tensor in, dy;
  test::Taped taped;
};

/// Collects every rank's weights and says whether all are the same and as wanted.
class Results {
 public:
  explicit Results(int ranks) : all_(static_cast<size_t>(ranks)) {}
  void put(int rank, Weights weights) { all_[static_cast<size_t>(rank)] = std::move(weights); }
  /// "" when each rank has, in bits, what is wanted.
  std::string compared_with(const Weights& want) const;
  /// Also NaN.
  const Weights& of(int rank) const { return all_[static_cast<size_t>(rank)]; }

 private:
  std::vector<Weights> all_;
};

/// The plan's weights after the steps whose numbers are given, without any misuse.
Weights reference(const Plan& plan, const std::vector<int>& steps);
Weights reference(const Plan& plan);
bool finite(const Weights& weights);

}  // namespace sherd::misuse
