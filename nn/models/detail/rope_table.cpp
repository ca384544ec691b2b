#include <sherd/nn/models/detail/rope_table.h>

#include <cmath>

#include <sherd/nn/rope.h>

namespace sherd::nn::detail {

RopeTable::RopeTable(const ModelDescription& m, const RopeDescription& rope) {
  if (is_gpt(m)) return;
  scaling_ = rope.scaling;
  const auto of = [&](int64_t positions) {
    return ops::rope_frequencies(m.rotated(rope), rope.theta, scaling_, positions);
  };
  frequencies_ = {of(0)};
  if (scaling_.type == RopeType::longrope)
    frequencies_.push_back(of(scaling_.original_max_position_embeddings + 1));
  tables_.resize(frequencies_.size());
  // Scores of rotated rows have its square.
  if (m.query_scalar > 0)
    scale_ = static_cast<float>(std::pow(static_cast<double>(m.head_dim) / m.query_scalar, 0.25));
  scale_ *= static_cast<float>(rope.scaling.rotation_scale());
}

Tensor RopeTable::on(Device& device, int64_t positions) {
  const size_t i = scaling_.is_long(positions) ? 1 : 0;
  Tensor& table = tables_[i];
  if (!table.defined() || &table.device() != &device) table = rope_table(device, frequencies_[i]);
  return table;
}

}  // namespace sherd::nn::detail
