#include <sherd/nn/expert_exchange.h>

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/kernels/experts/experts.h>

namespace sherd::nn {
namespace {

using detail::like;

Tensor permuted(Stream& s, const Tensor& rows, const Tensor& order) {
  if (!order.defined()) return rows;
  Tensor out = like(rows);
  ops::expand_rows(s, out, rows, order, {});
  return out;
}

Tensor to_host(Stream& s, const Tensor& on_device) {
  if (s.device().dry()) return on_device;  // the host has predicted them
  Tensor host = Tensor::host(on_device.device(), on_device.shape(), on_device.dtype(), detail::kActivations);
  ops::copy(s, host, on_device);
  return host;
}

}  // namespace

// Collectives get unowned views of their memory: all of it is used on the compute stream alone.
ExpertExchange::ExpertExchange(std::shared_ptr<Communicator> ranks, const Tensor& counts) {
  if (ranks && ranks->size() > 1) ranks_ = std::move(ranks);
  const int64_t parts = ranks_ ? ranks_->size() : 1;
  if (counts.numel() % parts != 0)
    throw InvalidArgument(fmt::format("{} experts cannot be shared out evenly over {} ranks; take a multiple",
                                      counts.numel(), parts));
  const auto local = static_cast<size_t>(counts.numel() / parts);
  Stream& s = counts.device().compute();
  // [rank][its expert]: rows that go there; [rank][expert of this one]: rows that come from there.
  const Tensor going = to_host(s, counts);
  Tensor coming = going;
  if (ranks_) {
    const std::vector<int64_t> each(static_cast<size_t>(parts), static_cast<int64_t>(local));
    const Tensor arriving = like(counts);
    ranks_->all_to_all_v(s, arriving.unowned_view(), each, counts.unowned_view(), each);
    if (!s.device().dry()) coming = to_host(s, arriving);  // else as many come as go
  }
  s.synchronize();
  const int32_t *go = going.data<int32_t>(), *come = coming.data<int32_t>();
  offsets_.assign(local + 1, 0);
  for (int64_t p = 0; p < parts; ++p, go += local, come += local) {
    here_.push_back(std::reduce(go, go + local, int64_t{0}));
    away_.push_back(std::reduce(come, come + local, int64_t{0}));
    for (size_t e = 0; e < local; ++e) offsets_[e + 1] += come[e];
  }
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  if (parts > 1 && local > 1) arrange_by_expert(counts, coming.data<int32_t>());
}

// Rows arrive by rank, then by expert.
void ExpertExchange::arrange_by_expert(const Tensor& counts, const int32_t* arriving) {
  std::vector<int32_t> arrange(static_cast<size_t>(offsets_.back())), restore(arrange.size());
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  size_t at = 0;
  for (size_t p = 0; p < away_.size(); ++p)
    for (int64_t& place : next)
      for (int32_t i = *arriving++; i > 0; --i, ++at) {
        arrange[static_cast<size_t>(place)] = static_cast<int32_t>(at);
        restore[at] = static_cast<int32_t>(place++);
      }
  arrange_ = like(counts, {offsets_.back()});
  restore_ = like(counts, {offsets_.back()});
  Stream& s = counts.device().compute();
  ops::copy_from_host(s, arrange_, arrange.data(), arrange_.nbytes());
  ops::copy_from_host(s, restore_, restore.data(), restore_.nbytes());
}

Tensor ExpertExchange::send(Stream& s, const Tensor& rows, const std::vector<int64_t>& sent,
                            const std::vector<int64_t>& received) const {
  const int64_t width = rows.size(1);
  const auto elements = [&](std::vector<int64_t> counts) {
    for (int64_t& n : counts) n *= width;
    return counts;
  };
  Tensor arrived = like(rows, {std::reduce(received.begin(), received.end()), width});
  ranks_->all_to_all_v(s, arrived.unowned_view(), elements(received), rows.unowned_view(), elements(sent));
  return arrived;
}

Tensor ExpertExchange::there(Stream& s, const Tensor& rows) const {
  return permuted(s, send(s, rows, here_, away_), arrange_);
}

Tensor ExpertExchange::back(Stream& s, const Tensor& rows) const {
  return send(s, permuted(s, rows, restore_), away_, here_);
}

Var ExpertExchange::to_experts(const Var& rows) const {
  if (!ranks_) return rows;
  return function(
      {rows}, [&](Stream& s) { return there(s, rows.value()); },
      [exchange = *this, device = &rows.device(), shape = Shape{offsets_.back(), rows.size(1)},
       dtype = rows.dtype()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {exchange.back(s, call.output().tensor(*device, shape, dtype))};
      });
}

Var ExpertExchange::from_experts(const Var& rows) const {
  if (!ranks_) return rows;
  return function(
      {rows}, [&](Stream& s) { return back(s, rows.value()); },
      [exchange = *this, device = &rows.device(),
       shape = Shape{std::reduce(here_.begin(), here_.end()), rows.size(1)},
       dtype = rows.dtype()](Stream& s, const BackwardCall& call) -> std::vector<Gradient> {
        return {exchange.there(s, call.output().tensor(*device, shape, dtype))};
      });
}

}  // namespace sherd::nn
