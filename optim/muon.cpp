#include <sherd/optim/muon.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sherd {

Muon::Muon(Device& device, std::vector<Item> items, MuonOptions options)
    : device_(device), options_(std::move(options)) {
  std::vector<std::string> wrong;
  for (auto& item : items)
    if (item.param.shape().size() != 2)
      wrong.push_back(fmt::format("{} {}", item.param.name(), to_string(item.param.shape())));
  if (!wrong.empty())
    throw ShapeMismatch(
        fmt::format("Muon updates matrices only; route these to AdamW: {}", fmt::join(wrong, ", ")));

  for (auto& item : items)
    if (item.param.tensor_shard() && item.param.tensor_shard()->parts > 1) wrong.push_back(item.param.name());
  if (!wrong.empty())
    throw NotSupported(fmt::format("Muon has no pieces of tensor-parallel matrices; route these to AdamW: {}",
                                   fmt::join(wrong, ", ")));

  for (auto& item : items) {
    ParamGroup& group = item.param.group();
    auto batch = std::find_if(batches_.begin(), batches_.end(), [&](auto& b) { return b.group == &group; });
    if (batch == batches_.end()) {
      batches_.push_back({&group, group.mesh().flatten(group.sharded_over()), {}, {}, 0});
      batch = batches_.end() - 1;
      batch->counts.assign(static_cast<size_t>(group.layout().world()), 0);
    }
    Slot slot{
        item,
        Tensor::empty(device, {item.param.shard_range().size()}, DType::f32, "optimizer momentum_buffer"),
        batch->counts[static_cast<size_t>(group.cell())]};
    ops::fill(device.compute(), slot.momentum, 0);
    for (int r = 0; r < group.layout().world(); ++r)
      batch->counts[static_cast<size_t>(r)] += group.layout().piece(item.param.index_in_group(), r).size();
    batch->slots.push_back(std::move(slot));
  }
  for (auto& b : batches_) b.total = std::accumulate(b.counts.begin(), b.counts.end(), int64_t{0});
}

void Muon::step(Stream& stream, double lr) {
  for (auto& batch : batches_) step_batch(stream, batch, lr);
}

void Muon::step_batch(Stream& stream, Batch& batch, double lr) {
  const ShardLayout& layout = batch.group->layout();
  const size_t me = static_cast<size_t>(batch.group->cell());
  const int64_t mine =
      std::accumulate(batch.counts.begin(), batch.counts.begin() + static_cast<long>(me), int64_t{0});
  // Rank-major: the pieces of rank 0, then those of rank 1, ...; this rank writes its own in place.
  const Tensor packed = Tensor::empty(device_, {batch.total}, DType::f32, "muon gathered");
  for (auto& s : batch.slots) {
    const int64_t at = mine + s.packed_begin;
    ops::muon_momentum(stream, packed.flat(at, at + s.momentum.numel()), s.momentum,
                       s.item.param.grad_shard(), options_.momentum, options_.nesterov);
  }
  if (layout.world() > 1)
    batch.comm->all_gather_v(stream, packed, batch.counts, packed.flat(mine, mine + batch.counts[me]));

  std::vector<int64_t> next(batch.counts.size(), 0);  // where each rank's next piece starts
  std::exclusive_scan(batch.counts.begin(), batch.counts.end(), next.begin(), int64_t{0});
  for (auto& s : batch.slots) {
    const Parameter& p = s.item.param;
    const Tensor whole = Tensor::empty(device_, p.shape(), DType::f32, "muon matrix");
    for (int r = 0; r < layout.world(); ++r) {
      const ParamRange piece = layout.piece(p.index_in_group(), r);
      if (piece.empty()) continue;
      int64_t& at = next[static_cast<size_t>(r)];
      ops::copy(stream, whole.flat(piece.begin.value, piece.end.value), packed.flat(at, at + piece.size()));
      at += piece.size();
    }
    update(stream, s, whole, lr);
  }
}

void Muon::update(Stream& stream, const Slot& slot, const Tensor& whole, double lr) {
  const Parameter& p = slot.item.param;
  const int64_t cols = p.shape()[1];
  std::vector<int64_t> blocks;
  for (auto& b : p.row_blocks()) blocks.push_back(b.rows());
  if (blocks.empty()) blocks = {p.shape()[0]};
  const ParamRange mine = p.shard_range();
  const Tensor weights = p.shard();
  const float decay = static_cast<float>(1.0 - lr * slot.item.weight_decay);
  int64_t row = 0;
  for (const int64_t rows : blocks) {
    const Tensor in = whole.rows(row, row + rows);
    const Tensor out = Tensor::empty(device_, in.shape(), DType::f32, "muon matrix");
    ops::newton_schulz(stream, out, in, options_.steps, options_.eps);
    const ParamRange block{ParamIndex(row * cols), ParamIndex((row + rows) * cols)};
    const ParamRange both = intersect(mine, block);
    if (!both.empty()) {
      const double scale = options_.scale_factor * std::sqrt(static_cast<double>(std::max(rows, cols)));
      ops::scale_and_add(stream, weights.flat(both.begin - mine.begin, both.end - mine.begin), decay,
                         static_cast<float>(-lr * scale),
                         out.flat(both.begin - block.begin, both.end - block.begin));
    }
    row += rows;
  }
}

void Muon::collect(std::vector<StateTensor>& out) const {
  for (auto& b : batches_)
    for (auto& s : b.slots) out.push_back({s.item.param, "momentum_buffer", s.momentum});
}

}  // namespace sherd
