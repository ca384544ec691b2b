#include "support/toy_model.h"

#include <mutex>

namespace sherd::test {

ToyResult run_toy(const ToyRun& run) {
  ToyResult result;
  const auto body = [&](RankContext& rank) {
    Stream& s = rank.device->compute();
    ToyModel model(run.width, run.hidden, run.blocks);
    if (run.before) run.before(model);
    RoutingOptions routing;
    routing.optimizer = run.optimizer;
    const Routing routes = route(model, routing);
    const DeviceMesh mesh = mesh_of(rank, run.replicas);
    for (auto& b : model.blocks_) fully_shard(*b, mesh, run.options);
    fully_shard(model, mesh, run.options, run.root);
    Optimizer optimizer(model, routes, {.adamw = {}, .muon = run.muon, .weight_decay = 0.1});
    const int64_t micro = run.rows / (run.ranks * run.accumulate);
    Taped taped;
    model.loss_scale = 1.0f / static_cast<float>(run.rows / run.ranks);
    for (int step = 0; step < run.steps; ++step) {
      const Tensor sum = Tensor::empty(*rank.device, {1}, DType::f64, "test");
      ops::fill(s, sum, 0);
      for (int m = 0; m < run.accumulate; ++m) {
        const int64_t first = (rank.world->rank() * run.accumulate + m) * micro;
        std::vector<int32_t> tokens(static_cast<size_t>(micro)), targets(tokens.size());
        for (size_t i = 0; i < tokens.size(); ++i) {
          const int64_t at = step * run.rows + first + static_cast<int64_t>(i);
          tokens[i] = static_cast<int32_t>((at * at + 3 * at) % ToyModel::kVocab);
          targets[i] = static_cast<int32_t>((5 * at + 1) % (ToyModel::kVocab - 2));
        }
        const Tensor in = Tensor::empty(*rank.device, {1, micro}, DType::i32, "test");
        model.targets = Tensor::empty(*rank.device, {1, micro}, DType::i32, "test");
        ops::copy_from_host(s, in, tokens.data(), in.nbytes());
        ops::copy_from_host(s, model.targets, targets.data(), in.nbytes());
        runtime_of(model).set_last_microbatch(m + 1 == run.accumulate);
        taped.forward(model, in);
        ops::accumulate_sum(s, sum, model.losses);
        taped.backward();
      }
      const auto stats = clip_grad_norm(model, run.clip, {.in_update = run.clip_in_update});
      optimizer.step(0.02);
      rank.world->all_reduce(s, sum);
      double total = 0;
      ops::copy_to_host(s, &total, sum);
      if (rank.world->rank() == 0) {
        result.losses.push_back(total / static_cast<double>(run.rows));
        result.norms.push_back(stats->norm);
        result.zeros.push_back(stats->zeros);
      }
      if (run.after_step) run.after_step(model);
    }
    for (auto& [name, p] : model.named_parameters()) {
      const std::vector<float> whole = ops::to_floats(s, p.dtensor().full_tensor(s));
      if (rank.world->rank() == 0) result.weights.push_back(whole);
    }
    if (run.at_end) run.at_end(model, rank);
  };
  run.launcher ? run.launcher(run.ranks, body) : launch(run.ranks, body);
  return result;
}

}  // namespace sherd::test
