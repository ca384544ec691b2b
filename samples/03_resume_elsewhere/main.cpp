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

struct Linear : Module {
  Parameter w = param("weight", {kWidth, kWidth}, normal(0.1f));
  Tensor x;

 protected:
  Tensor forward(const Tensor& in) override {
    x = in;
    Tensor y = Tensor::empty(x.device(), x.shape(), DType::f32, "activations");
    ops::gemm(x.device().compute(), y, x, false, w.data(), true);
    return y;
  }
  Tensor backward(const Tensor& dy) override {
    ops::gemm(x.device().compute(), w.grad(), dy, true, x, false, 1, 1);
    return {};
  }
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
    const int64_t rows = kRows / run.ranks;
    Tensor x = Tensor::empty(*rank.device, {rows, kWidth}, DType::f32, "data");
    for (int64_t step = optimizer.steps(); step < run.steps; ++step) {
      // Ranks divide the rows of a step among them, so that the batch is the same on any number of ranks.
      const int64_t first_row = step * kRows + rank.world->rank() * rows;
      ops::random_normal(stream, x, first_row * kWidth, 1, "data", 0, 1);
      Tensor error = model(x);
      ops::scaled_add(stream, error, -1, x);
      float sum = 0;
      for (const float e : ops::to_floats(stream, error)) sum += e * e / 2;
      ops::scale(stream, error, 1.0f / static_cast<float>(rows));  // gradients are averaged over ranks, too
      model.run_backward(error);
      optimizer.step(0.02);

      Tensor total = Tensor::empty(*rank.device, {1}, DType::f32, "loss");
      ops::copy_from_host(stream, total, &sum, sizeof sum);
      rank.world->all_reduce(stream, total);
      const float loss = ops::to_floats(stream, total)[0] / kRows;
      if (rank.world->rank() == 0) losses.push_back(loss);
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
