#include <sherd/optim/adamw.h>

#include <sherd/kernels/ops.h>

namespace sherd {

AdamW::AdamW(Device& device, std::vector<Item> items, AdamWOptions options) : options_(options) {
  for (auto& item : items) {
    const int64_t n = item.param.shard_range().size();
    Slot slot{std::move(item), Tensor::empty(device, {n}, DType::f32, "optimizer exp_avg"),
              Tensor::empty(device, {n}, DType::f32, "optimizer exp_avg_sq")};
    ops::fill(device.compute(), slot.exp_avg, 0);
    ops::fill(device.compute(), slot.exp_avg_sq, 0);
    slots_.push_back(std::move(slot));
  }
}

void AdamW::step(Stream& stream, double lr) {
  for (auto& s : slots_) {
    ops::adamw(stream, s.item.param.shard(), s.exp_avg, s.exp_avg_sq, s.item.param.grad_shard(),
               {.lr = lr,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.eps,
                .weight_decay = s.item.weight_decay,
                .step = ++*s.steps},
               s.item.writes_copy ? s.item.param.model_copy() : Tensor());
  }
}

void AdamW::collect(std::vector<StateTensor>& out) const {
  for (auto& s : slots_) {
    out.push_back({s.item.param, "exp_avg", s.exp_avg});
    out.push_back({s.item.param, "exp_avg_sq", s.exp_avg_sq});
  }
}

void AdamW::collect(std::vector<StateCounter>& out) const {
  for (auto& s : slots_) out.push_back({s.item.param, "step", s.steps});
}

}  // namespace sherd
