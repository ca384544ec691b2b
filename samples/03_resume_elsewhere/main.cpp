// Saves on four ranks and resumes elsewhere: on four ranks with another strategy and layout, which gives the
// same bits, and on two, which gives the same losses to rounding. Then writes the weights for other programs.
//
//   sample_03_resume_elsewhere [FOLDER]     where to save [out/sample_03]
#include <cstdio>
#include <filesystem>
#include <vector>

#include <sherd/sherd.h>

using namespace sherd;

constexpr int64_t kWidth = 48, kRows = 64;  // rows of a step, over all ranks

struct Linear : nn::Module<Linear> {
  Parameter w = param("weight", {kWidth, kWidth}, normal(0.1f));
  nn::Var forward(const nn::Var& x) { return nn::linear(x, w); }
};

struct Run {
  int ranks = 4;
  FullyShardOptions options = {};
  int steps = 0;                       // counted from the run's very beginning
  std::filesystem::path save = {};     // a folder of checkpoints, written after the last step
  std::filesystem::path resume = {};   // such a folder, read before the first one
  std::filesystem::path weights = {};  // a file of whole tensors, written at the end
};

// The losses of the steps that were made here.
std::vector<float> train(const Run& run) {
  std::vector<float> losses;
  launch(run.ranks, [&](RankContext& rank) {
    Linear model;
    const Routing routing = route(model, {.optimizer = Algorithm::adamw});
    fully_shard(model, DeviceMesh(rank.world, {{"shard", run.ranks}}), run.options);
    Optimizer optimizer(model, routing, {});
    // Each rank reads its own elements, on whatever rank they were saved. The program restores the learning
    // rate, the data and its other state itself: here they follow from the number of steps.
    if (!run.resume.empty()) resume(run.resume, model, &optimizer);

    Stream& stream = rank.device->compute();
    nn::Tape tape;
    const int64_t rows = kRows / run.ranks;
    Tensor x = Tensor::empty(*rank.device, {rows, kWidth}, DType::f32, "data");
    for (int64_t step = optimizer.steps(); step < run.steps; ++step) {
      // Ranks divide the rows of a step among them, so that the batch is the same on any number of ranks.
      const int64_t first_row = step * kRows + rank.world->rank() * rows;
      ops::random_normal(stream, x, first_row * kWidth, 1, "data", 0, 1);
      // Half the squared error of a row, averaged over this rank's rows. Gradients are averaged over ranks, too.
      const nn::Var error = nn::mean_squared_error(model(tape.input(x)), x);
      const nn::Var loss = nn::scale(error, kWidth / 2.0f);
      tape.backward(loss);
      optimizer.step(0.02);

      rank.world->all_reduce(stream, loss.value());
      const float sum = ops::to_floats(stream, loss.value())[0];
      if (rank.world->rank() == 0) losses.push_back(sum / static_cast<float>(run.ranks));
    }
    if (!run.save.empty()) {
      CheckpointSaver saver(rank.world, checkpoint_tensors(model, &optimizer),
                            {.folder = run.save, .overwrite = true});
      saver.save({.step = optimizer.steps(), .sequences = optimizer.steps() * kRows});
    }
    if (!run.weights.empty()) export_weights(model, run.weights);
  });
  return losses;
}

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "out/sample_03";
  std::filesystem::create_directories(folder);

  const auto whole = train({.steps = 20});
  train({.steps = 10, .save = folder / "run"});
  const auto four = train({.options = {.strategy = Strategy::no_shard, .layout = LayoutPolicy::even_rows},
                           .steps = 20,
                           .resume = folder / "run"});
  const auto two = train({.ranks = 2,
                          .options = {.strategy = Strategy::optim},
                          .steps = 20,
                          .resume = folder / "run",
                          .weights = folder / "weights.safetensors"});

  std::printf("step  not stopped, 4 ranks, zero3  resumed on 4, zero0  resumed on 2, zero1\n");
  bool equal = true;
  for (size_t i = 0; i < four.size(); ++i) {
    std::printf("%4zu  %29.2f  %19.2f  %19.2f\n", i + 10, whole[i + 10], four[i], two[i]);
    equal = equal && whole[i + 10] == four[i];
  }
  std::printf("4 ranks: %s\n", equal ? "every bit is equal" : "bits differ");
  return equal ? 0 : 1;
}
