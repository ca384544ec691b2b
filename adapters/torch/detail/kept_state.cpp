#include <sherd/torch/detail/kept_state.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include <ATen/ATen.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/elementwise/elementwise.h>
#include <sherd/torch/detail/tensor_memory.h>

namespace sherd::torch::detail {
namespace {

namespace optim = ::torch::optim;

constexpr const char* kKeepAll =
    "give LocalShards::keep_state() all optimizers of the model, in one call, each with shards of "
    "LocalShards::parameters()";

// Returns the options that decide about the update, as far as every optimizer has them. Ranks compare the
// text.
std::string settings_of(const std::vector<KeptOptimizer>& optimizers) {
  std::string text;
  for (const KeptOptimizer& o : optimizers)
    for (const optim::OptimizerParamGroup& group : o.optimizer->param_groups())
      text += fmt::format("{} x {}; ", group.params().size(), group.options().get_lr());
  return text;
}

}  // namespace

std::vector<KeptState::Slot> KeptState::slots_of(const std::vector<KeptOptimizer>& optimizers,
                                                 const std::vector<NamedShard>& shards) {
  std::map<const at::TensorImpl*, std::vector<std::pair<size_t, size_t>>> places;
  for (const auto& [parameter, shard] : shards) places[shard.unsafeGetTensorImpl()];
  size_t foreign = 0;
  for (size_t o = 0; o < optimizers.size(); ++o) {
    const auto& groups = optimizers[o].optimizer->param_groups();
    for (size_t g = 0; g < groups.size(); ++g)
      for (const at::Tensor& t : groups[g].params()) {
        const auto found = places.find(t.unsafeGetTensorImpl());
        if (found == places.end()) {
          ++foreign;
        } else {
          found->second.emplace_back(o, g);
        }
      }
  }
  std::vector<Slot> slots;
  std::vector<std::string> missing, twice, wrong;
  for (const auto& [parameter, shard] : shards) {
    const auto& in = places[shard.unsafeGetTensorImpl()];
    if (in.size() == 1)
      slots.push_back({parameter, shard, in.front().first, in.front().second});
    else
      (in.empty() ? missing : twice).push_back(parameter.name());
  }
  if (!missing.empty())
    wrong.push_back(fmt::format("parameters in none of the optimizers: {}", fmt::join(missing, ", ")));
  if (!twice.empty())
    wrong.push_back(fmt::format("parameters in an optimizer twice: {}", fmt::join(twice, ", ")));
  if (foreign > 0) wrong.push_back(fmt::format("{} tensors that are not shards of this model", foreign));
  if (!wrong.empty())
    throw InvalidArgument(
        fmt::format("sherd::torch::LocalShards::keep_state(): {}; {}", fmt::join(wrong, "; "), kKeepAll));
  return slots;
}

UpdateRuleFactory KeptState::factory(std::vector<KeptOptimizer> optimizers, std::vector<NamedShard> shards,
                                     std::shared_ptr<TorchDevice> device) {
  Source source{std::move(optimizers), {}, std::move(device)};
  source.slots = slots_of(source.optimizers, shards);
  return {.algorithm = kName,
          .settings = settings_of(source.optimizers),
          .make = [source](Device& of, const std::vector<UpdateItem>&) {
            return std::unique_ptr<UpdateRule>(new KeptState(of, source));
          }};
}

KeptState::KeptState(Device& device, Source source) : device_(device), source_(std::move(source)) {
  Stream& compute = device.compute();
  counts_ = Tensor::empty(device, {static_cast<int64_t>(source_.slots.size())}, DType::f32,
                          MemoryClass::optimizer, "optimizer step");
  ops::fill(compute, counts_, 0);
  for (Slot& slot : source_.slots) {
    const auto example = source_.optimizers[slot.optimizer].make();
    const StateFields fields = fields_of(slot, *example);
    slot.begins_with_zeros = fields.step != nullptr;
    for (const auto& [key, tensor] : fields.tensors) {
      const Tensor memory = Tensor::empty(device, {slot.parameter.shard_range().size()}, DType::f32,
                                          MemoryClass::optimizer, "optimizer " + key);
      ops::fill(compute, memory, 0);
      slot.fields.push_back(
          {key, memory, view_of(memory, slot.shard.sizes(), at::kFloat, source_.torch_device->place())});
    }
  }
  source_.torch_device->join();
  std::vector<float> counts;
  const auto on_compute = source_.torch_device->on_compute();
  for (const Slot& slot : source_.slots) {
    optim::OptimizerParamState* state = state_of(slot);
    if (state == nullptr && slot.begins_with_zeros) state = &make_state(slot);
    if (state != nullptr) adopt(slot, *state);
    const bool counted = state != nullptr && slot.begins_with_zeros;
    counts.push_back(counted ? static_cast<float>(*fields_of(slot, *state).step) : state ? 1.0f : 0.0f);
  }
  ops::copy_from_host(compute, counts_, counts.data(), counts_.nbytes());
}

// The optimizers may outlive the memory, or may be destroyed already.
KeptState::~KeptState() {
  for (const Slot& slot : source_.slots)
    for (const Field& f : slot.fields)
      if (f.view.numel() > 0)
        take_memory_away(*f.view.storage().unsafeGetStorageImpl(),
                         "state of a torch::optim optimizer whose sherd::torch::LocalShards is gone, and its "
                         "memory with it");
}

optim::OptimizerParamState* KeptState::state_of(const Slot& slot) const {
  const auto& all = source_.optimizers[slot.optimizer].optimizer->state();
  const auto found = all.find(slot.shard.unsafeGetTensorImpl());
  return found == all.end() ? nullptr : found->second.get();
}

StateFields KeptState::fields_of(const Slot& slot, optim::OptimizerParamState& state) const {
  const KeptOptimizer& o = source_.optimizers[slot.optimizer];
  return o.fields(state, o.optimizer->param_groups().at(slot.group).options());
}

optim::OptimizerParamState& KeptState::make_state(const Slot& slot) {
  const KeptOptimizer& o = source_.optimizers[slot.optimizer];
  auto& state = o.optimizer->state()[slot.shard.unsafeGetTensorImpl()];
  state = o.make();
  const StateFields fields = fields_of(slot, *state);
  for (size_t i = 0; i < slot.fields.size(); ++i) *fields.tensors.at(i).second = slot.fields[i].view;
  return *state;
}

void KeptState::adopt(const Slot& slot, optim::OptimizerParamState& state) const {
  const StateFields fields = fields_of(slot, state);
  bool same = fields.tensors.size() == slot.fields.size();
  for (size_t i = 0; same && i < slot.fields.size(); ++i)
    same = fields.tensors[i].first == slot.fields[i].key;
  if (!same)
    throw InvalidArgument(fmt::format(
        "the optimizer of parameter '{}' keeps other state than at LocalShards::keep_state(): its "
        "options have changed; set momentum, amsgrad and so on before",
        slot.parameter.name()));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slot.fields.size(); ++i) {
    at::Tensor& tensor = *fields.tensors[i].second;
    const at::Tensor& view = slot.fields[i].view;
    if (tensor.is_same(view)) continue;
    if (!tensor.defined() || tensor.sizes() != view.sizes() || tensor.scalar_type() != at::kFloat)
      throw InvalidArgument(fmt::format(
          "state '{}' of parameter '{}' is not an f32 tensor of the shard's sizes; only optimizers "
          "that update element by element can be kept",
          slot.fields[i].key, slot.parameter.name()));
    if (tensor.numel() > 0 && tensor.const_data_ptr() != view.const_data_ptr()) view.copy_(tensor);
    tensor = view;
  }
}

void KeptState::restore(const std::vector<float>& counts) {
  for (size_t i = 0; i < source_.slots.size(); ++i) {
    const Slot& slot = source_.slots[i];
    optim::OptimizerParamState* state = state_of(slot);
    if (slot.begins_with_zeros || counts[i] > 0) {
      if (state == nullptr) state = &make_state(slot);
      if (int64_t* const step = fields_of(slot, *state).step) *step = static_cast<int64_t>(counts[i]);
    } else if (state != nullptr) {
      source_.optimizers[slot.optimizer].optimizer->state().erase(slot.shard.unsafeGetTensorImpl());
    }
  }
}

void KeptState::step(Stream& compute, double /*lr*/, const Tensor& skip) {
  if (!update_)
    throw InvalidArgument(
        "step() of the optimizer that LocalShards::keep_state() returned: it is for checkpoints; call "
        "LocalShards::step(), which runs the torch::optim optimizers");
  int64_t skipped = 0;
  if (skip.defined()) ops::copy_to_host(compute, &skipped, skip);
  stepped_ = skipped == 0;
  source_.torch_device->join();
  if (!stepped_) return;
  std::vector<float> counts(source_.slots.size());
  ops::copy_to_host(compute, counts.data(), counts_);
  const auto on_compute = source_.torch_device->on_compute();
  restore(counts);
  update_();
  std::vector<size_t> kept(source_.optimizers.size());
  for (size_t i = 0; i < source_.slots.size(); ++i) {
    const Slot& slot = source_.slots[i];
    optim::OptimizerParamState* const state = state_of(slot);
    if (state == nullptr) continue;
    adopt(slot, *state);
    ++kept[slot.optimizer];
    const int64_t* const step = fields_of(slot, *state).step;
    if (step != nullptr)
      counts[i] = static_cast<float>(*step);
    else if (!slot.parameter.frozen())
      ++counts[i];
  }
  for (size_t o = 0; o < kept.size(); ++o)
    if (source_.optimizers[o].optimizer->state().size() != kept[o])
      throw InvalidArgument(fmt::format(
          "a torch::optim optimizer has got parameters since LocalShards::keep_state(); {}", kKeepAll));
  ops::copy_from_host(compute, counts_, counts.data(), counts_.nbytes());
}

std::vector<StateTensor> KeptState::state() const {
  std::vector<StateTensor> all;
  for (const Slot& slot : source_.slots)
    for (const Field& f : slot.fields) all.push_back({slot.parameter, f.key, f.memory});
  return all;
}

std::vector<StateCounter> KeptState::counters() const {
  std::vector<StateCounter> all;
  for (size_t i = 0; i < source_.slots.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (!source_.slots[i].fields.empty())
      all.push_back({source_.slots[i].parameter, "step", counts_.flat(at, at + 1)});
  }
  return all;
}

}  // namespace sherd::torch::detail
