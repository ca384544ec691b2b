#include <sherd/nn/models/detail/rope_table.h>

#include <sherd/nn/models/detail/family_names.h>
#include <sherd/nn/rope.h>

namespace sherd::nn::detail {

RopeTable::RopeTable(const ModelDescription& m) {
  if (is_gpt2(m)) return;
  const int64_t width = m.latent.kv_rank > 0 ? m.latent.rope
                        : m.rope.columns > 0 ? m.rope.columns
                                             : m.head_dim;
  if (m.rope.yarn)
    frequencies_ = ops::yarn_frequencies(width, m.rope.theta, *m.rope.yarn);
  else if (m.rope.scaling)
    frequencies_ = ops::rope_frequencies(width, m.rope.theta, *m.rope.scaling);
  else
    frequencies_ = ops::rope_frequencies(width, m.rope.theta);
}

Tensor RopeTable::on(Device& device) {
  if (!table_.defined() || &table_.device() != &device) table_ = rope_table(device, frequencies_);
  return table_;
}

}  // namespace sherd::nn::detail
