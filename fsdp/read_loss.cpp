#include <sherd/fsdp/read_loss.h>

#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/fully_shard.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

std::shared_ptr<Communicator> data_parallel_ranks(const ShardRuntime& runtime) {
  const FullyShardOptions& o = runtime.options();
  std::vector<std::string> dims;
  for (auto& d : runtime.mesh().dims())
    if (o.averages_over(d.name)) dims.push_back(d.name);
  return runtime.mesh().flatten(dims);
}

}  // namespace

double read_loss(const ModuleBase& root, const Tensor& losses) {
  const ShardRuntime& runtime = runtime_of(root);
  Device& device = runtime.device();
  Stream& stream = device.compute();
  const Tensor sums = Tensor::empty(device, {2}, DType::f64, MemoryClass::scratch, "loss");
  ops::fill(stream, sums.flat(0, 1), 0);
  // Sum and count travel in one all-reduce: ranks may have different numbers of elements.
  ops::fill(stream, sums.flat(1, 2), static_cast<double>(losses.numel()));
  if (losses.numel() > 0) ops::accumulate_sum(stream, sums.flat(0, 1), losses);
  const auto ranks = data_parallel_ranks(runtime);
  if (ranks->size() > 1) ranks->all_reduce(stream, sums);
  double host[2] = {0, 0};
  // Blocks the host until the forward and the all-reduce are done.
  ops::copy_to_host(stream, host, sums);
  return host[0] / host[1];
}

double mean_over_ranks(const ModuleBase& root, double value) {
  const ShardRuntime& runtime = runtime_of(root);
  const auto ranks = data_parallel_ranks(runtime);
  if (ranks->size() == 1) return value;
  Stream& stream = runtime.device().compute();
  const Tensor sum = Tensor::empty(runtime.device(), {1}, DType::f64, MemoryClass::scratch, "loss");
  ops::fill(stream, sum, value);
  ranks->all_reduce(stream, sum);
  double total = 0;
  ops::copy_to_host(stream, &total, sum);
  return total / ranks->size();
}

}  // namespace sherd
