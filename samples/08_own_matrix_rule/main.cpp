// An optimizer of one's own that needs whole matrices: momentum divided by its largest singular value. The rule is all
// that is written. It trains sharded over three ranks, and is saved and resumed on two.
//
//   sample_08_own_matrix_rule [FOLDER]     where to save [out/sample_08]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

#include <sherd/sherd.h>
using namespace sherd;

// y = x / sigma_max(x), x [rows, cols]: power iteration on x^T x.
void normalise(float* y, const float* x, size_t rows, size_t cols) {
  std::vector<double> u(rows), v(cols, 1);
  double sigma = 0;
  for (int step = 0; step < 30; ++step) {
    std::fill(u.begin(), u.end(), 0);
    for (size_t i = 0; i < rows * cols; ++i) u[i / cols] += x[i] * v[i % cols];
    std::fill(v.begin(), v.end(), 0);
    for (size_t i = 0; i < rows * cols; ++i) v[i % cols] += x[i] * u[i / cols];
    double norm = 0;
    for (const double a : v) norm += a * a;
    sigma = std::sqrt(std::sqrt(norm));  // |x^T x v| is sigma^2
    for (double& a : v) a /= norm > 0 ? std::sqrt(norm) : 1;
  }
  for (size_t i = 0; i < rows * cols; ++i) y[i] = sigma > 0 ? static_cast<float>(x[i] / sigma) : 0;
}

struct SpectralRule : MatrixRule {
  std::string name() const override { return "spectral"; }
  std::string settings() const override { return "30 iterations"; }
  double matrix_flops(int64_t rows, int64_t cols) const override {
    return 120.0 * static_cast<double>(rows * cols);
  }
  void compute(Stream& s, const Tensor& out, const Tensor& in, const Tensor&) override {
    s.submit("spectral", [=](ExecutionContext&) {
      const auto rows = static_cast<size_t>(in.size(1)), cols = static_cast<size_t>(in.size(2));
      for (size_t at = 0; at < static_cast<size_t>(in.numel()); at += rows * cols)
        normalise(out.data<float>() + at, in.data<float>() + at, rows, cols);
    });
  }
};
constexpr Algorithm kSpectral("spectral", CutClass::row, true);

struct Net : nn::Module<Net> {
  Parameter in = param("in.weight", {40, 16}, normal(0.3f));
  Parameter out = param("out.weight", {16, 40}, normal(0.3f));
  nn::Var forward(const nn::Var& x) { return nn::linear(nn::gelu(nn::linear(x, in)), out); }
};

// The losses from the last checkpoint in `folder`, if there is one, to step `last`; then saves there.
std::vector<float> train(int ranks, const std::filesystem::path& folder, int64_t last) {
  std::vector<float> losses;
  launch(ranks, [&](RankContext& rank) {
    Net model;
    const Routing routing = route(model, {.optimizer = kSpectral});
    fully_shard(model, DeviceMesh(rank.world, {{"shard", ranks}}));
    const auto make_rule = [] { return std::make_shared<SpectralRule>(); };
    Optimizer optimizer(model, routing, {.further = {WholeMatrices::factory(kSpectral, make_rule)}});
    if (std::filesystem::exists(folder)) resume(folder, model, &optimizer);

    Stream& stream = rank.device->compute();
    Tensor x = Tensor::empty(*rank.device, {32, 16}, DType::f32, "data");
    nn::Tape tape;
    for (int64_t step = optimizer.steps(); step < last; ++step) {
      ops::random_normal(stream, x, step * x.numel(), 1, "data", 0, 1);  // the same on every rank
      const nn::Var loss = nn::mean_squared_error(model(tape.input(x)), x);
      tape.backward(loss);
      optimizer.step(0.05);
      if (rank.world->rank() == 0) losses.push_back(ops::to_floats(stream, loss.value())[0]);
    }
    CheckpointSaver saver(rank.world, checkpoint_tensors(model, &optimizer),
                          {.folder = folder, .overwrite = true});
    saver.save({.step = optimizer.steps()});
  });
  return losses;
}

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "out/sample_08";
  std::filesystem::remove_all(folder);
  const std::vector<float> whole = train(1, folder / "one", 40);
  train(3, folder / "run", 20);
  const std::vector<float> rest = train(2, folder / "run", 40);
  std::printf("step  one rank  three ranks, then two\n");
  for (size_t i = 20; i < whole.size(); i += 5)
    std::printf("%4zu  %8.4f  %8.4f\n", i, whole[i], rest[i - 20]);
}
