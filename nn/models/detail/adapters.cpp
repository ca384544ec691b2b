#include <sherd/nn/models/detail/adapters.h>

#include <cmath>

#include <sherd/fsdp/runtime.h>
#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/kernels/gemm/gemm.h>
#include <sherd/kernels/rest/rest.h>
#include <sherd/nn/detail/memory.h>

namespace sherd::nn::detail {

Adapters::Adapters(const LoraOptions& options) : options_(options), targets_(options.targets) {}

void Adapters::add(std::vector<Adapter>& to, const std::string& path, const std::string& name,
                   const Parameter& weight, WeightCut cut, int64_t column, const TensorParallel& tp,
                   const Declare& declare) {
  if (options_.rank == 0 || !targets_.matches(path + name)) return;
  const Shape& shape = weight.shape();
  Adapter p{.a = declare(name + ".lora_A.weight", {options_.rank, shape[1]},
                         kaiming_uniform(Fan::in, std::sqrt(1.0f / 3))),
            .b = declare(name + ".lora_B.weight", {shape[0], options_.rank}, constant(0)),
            .scale = static_cast<float>(options_.alpha / static_cast<double>(options_.rank)),
            .column = column,
            .used = used_};
  if (tp.size() > 1 && cut == WeightCut::out) {
    p.b = tp.cut(p.b, 0);
    p.sum_a = tp.comm;
  } else if (tp.size() > 1 && cut == WeightCut::in) {
    p.a = tp.cut(p.a, 1);
    p.sum_b = tp.comm;
  }
  to.push_back(p);
  all_.emplace_back(weight, p);
}

void Adapters::fold(ShardRuntime& runtime) const {
  Stream& s = runtime.device().compute();
  WeightsChange change(runtime);
  change.begin_update();
  for (const auto& [weight, p] : all_) {
    const Tensor a = p.a.dtensor().full_tensor(s), b = p.b.dtensor().full_tensor(s);
    const Tensor product = like(a, weight.shape());
    ops::gemm(s, product, b, false, a, false, p.scale);
    const ParamRange own = weight.shard_range();
    if (own.size() == 0) continue;
    const Tensor folded = ops::weights_as_f32(s, weight.shard(), weight.shard_low());
    ops::scaled_add(s, folded, 1, product.flat(own.begin.value, own.end.value));
    if (folded.raw() != weight.shard().raw())
      ops::write_weights(s, weight.shard(), weight.shard_low(), folded);
  }
  for (const auto& [weight, p] : all_)
    for (const Tensor& t : {p.b.shard(), p.b.shard_low()})
      if (t.defined() && t.numel() > 0) ops::fill(s, t, 0);
  s.synchronize();
  change.end();
}

}  // namespace sherd::nn::detail
