#include <sherd/nn/models/detail/rope_table.h>

#include <cmath>

#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/rope.h>

namespace sherd::nn::detail {

RopeTable::RopeTable(const ModelDescription& m, const RopeDescription& rope) {
  if (is_gpt2(m)) return;
  const int64_t width = m.latent.kv_rank > 0 ? m.latent.rope : rope.columns > 0 ? rope.columns : m.head_dim;
  if (rope.yarn)
    frequencies_ = ops::yarn_frequencies(width, rope.theta, *rope.yarn);
  else if (rope.scaling)
    frequencies_ = ops::rope_frequencies(width, rope.theta, *rope.scaling);
  else
    frequencies_ = ops::rope_frequencies(width, rope.theta);
  for (float& f : frequencies_) f /= static_cast<float>(rope.factor);
  // Scores of rotated rows have its square.
  if (m.query_scalar > 0)
    scale_ = static_cast<float>(std::pow(static_cast<double>(m.head_dim) / m.query_scalar, 0.25));
  if (rope.yarn) scale_ *= static_cast<float>(rope.yarn->rotation_scale());
}

Tensor RopeTable::on(Device& device) {
  if (!table_.defined() || &table_.device() != &device) table_ = rope_table(device, frequencies_);
  return table_;
}

}  // namespace sherd::nn::detail
