#include <sherd/fsdp/parameter.h>

#include <fmt/format.h>

#include <sherd/kernels/quantize/quantize.h>

namespace sherd {

Parameter::Parameter(std::string name, Shape shape, Init init) : state_(std::make_shared<State>()) {
  for (int64_t d : shape)
    if (d < 0)
      throw InvalidArgument(
          fmt::format("parameter '{}': shape {} has a negative size", name, to_string(shape)));
  if (const std::string wrong = check_init(init, shape); !wrong.empty())
    throw InvalidArgument(
        fmt::format("parameter '{}' of shape {}: first values: {}", name, to_string(shape), wrong));
  state_->name = std::move(name);
  state_->shape = std::move(shape);
  state_->init = std::move(init);
}

Parameter::Parameter(std::string name, Shape shape, ParameterViews& views, int index)
    : Parameter(std::move(name), std::move(shape), Init{}) {
  state_->views = &views;
  state_->index = index;
}

Parameter::State& Parameter::state() const {
  if (!state_)
    throw InvalidArgument("an undefined Parameter was used; make parameters with ModuleBase::param()");
  return *state_;
}

void Parameter::require_unsharded_tree(const char* what) const {
  if (sharded())
    throw InvalidArgument(
        fmt::format("parameter '{}': {} must come before fully_shard() of the root", name(), what));
}

bool Parameter::frozen() const {
  return !trainable() || (state().views != nullptr && state().views->frozen(index_in_group()));
}

ForwardRecorder* Parameter::recorder() const {
  return state().views != nullptr ? state().views->recorder() : nullptr;
}

Parameter& Parameter::freeze() {
  require_unsharded_tree("freeze()");
  state().trainable = false;
  return *this;
}

Parameter& Parameter::set_cut(CutClass cut) {
  require_unsharded_tree("set_cut(), which route() calls,");
  state().cut = cut;
  return *this;
}

Parameter& Parameter::set_compute_dtype(DType dtype) {
  require_unsharded_tree("set_compute_dtype()");
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw InvalidArgument(
        fmt::format("parameter '{}': compute dtype {} (use f32 or bf16)", name(), name_of(dtype)));
  state().compute_dtype = dtype;
  return *this;
}

Parameter& Parameter::set_master(Master master) {
  require_unsharded_tree("set_master(), which route() calls,");
  state().master = master;
  return *this;
}

Parameter& Parameter::set_master_place(Place place) {
  require_unsharded_tree("set_master_place(), which route() calls,");
  state().master_place = place;
  return *this;
}

Parameter& Parameter::set_row_blocks(RowBlocks blocks) {
  require_unsharded_tree("set_row_blocks()");
  const int64_t rows = shape().size() == 3 ? shape()[1] : row_count(shape());
  if (const std::string wrong = check_blocks(blocks, rows); !wrong.empty())
    throw ShapeMismatch(
        fmt::format("parameter '{}' of shape {}: its row blocks {}", name(), to_string(shape()), wrong));
  if (!blocks.empty() && tensor_shard() && tensor_shard()->size != 0)
    throw InvalidArgument(
        fmt::format("parameter '{}': row blocks of a parameter that is cut unevenly", name()));
  state().row_blocks = std::move(blocks);
  return *this;
}

Parameter& Parameter::set_tensor_shard(TensorShard shard) {
  require_unsharded_tree("set_tensor_shard()");
  if (shard.dim < 0 || shard.dim >= static_cast<int>(shape().size()) || shard.parts < 1 || shard.index < 0 ||
      shard.index >= shard.parts)
    throw InvalidArgument(
        fmt::format("parameter '{}' of shape {}: piece {} of {} along dimension {} does not exist", name(),
                    to_string(shape()), shard.index, shard.parts, shard.dim));
  const int64_t rows = shape()[static_cast<size_t>(shard.dim)];
  if (shard.size != 0 && (shard.dim != 0 || !row_blocks().empty() || shard.size < 0 ||
                          rows != (shard.size + shard.parts - 1) / shard.parts))
    throw InvalidArgument(
        fmt::format("parameter '{}' of shape {}: {} pieces of a size of {} along dimension {}; uneven pieces "
                    "are those of "
                    "dimension 0 of a parameter without row blocks, each of {} rows, the quotient rounded up",
                    name(), to_string(shape()), shard.parts, shard.size, shard.dim,
                    (shard.size + shard.parts - 1) / shard.parts));
  state().tensor_shard = std::move(shard);
  return *this;
}

Shape Parameter::global_shape() const {
  return tensor_shard() ? sherd::global_shape(shape(), *tensor_shard()) : shape();
}

int64_t Parameter::state_block() const { return sherd::state_block(global_shape()); }

std::vector<Box> Parameter::global_boxes(ParamRange range) const {
  return tensor_shard() ? sherd::global_boxes(shape(), row_blocks(), *tensor_shard(), range)
                        : boxes_of(shape(), range);
}

std::vector<GlobalRun> Parameter::global_runs(ParamRange range) const {
  if (tensor_shard()) return sherd::global_runs(shape(), row_blocks(), *tensor_shard(), range);
  if (range.empty()) return {};
  return {{range.begin, range.begin, range.size()}};
}

void Parameter::require_memory() const {
  if (sharded()) return;
  throw InvalidArgument(fmt::format(
      "parameter '{}' has no memory; call fully_shard() on the root module, and keep that alive; the "
      "module that made the parameter must be the root or registered below it by child()",
      name()));
}

ParamGroup& Parameter::group() const {
  require_memory();
  return *state_->group;
}

// Returns the views of the group, or those given to the constructor. Throws before fully_shard() and after the
// root's destruction.
ParameterViews& Parameter::views() const {
  if (state().views == nullptr) require_memory();
  return *state_->views;
}

Tensor Parameter::data() const { return views().data(index_in_group()); }
Tensor Parameter::grad() const { return views().grad(index_in_group()); }
GradTarget Parameter::grad_for_overwrite() const { return views().grad_for_overwrite(index_in_group()); }
Tensor Parameter::shard() const { return views().shard(index_in_group()); }
Tensor Parameter::shard_low() const { return views().shard_low(index_in_group()); }
Tensor Parameter::model_copy() const { return views().model_copy(index_in_group()); }
Tensor Parameter::grad_shard() const { return views().grad_shard(index_in_group()); }
ParamRange Parameter::shard_range() const { return views().shard_range(index_in_group()); }
DTensor Parameter::dtensor() const { return views().dtensor(index_in_group()); }

}  // namespace sherd
