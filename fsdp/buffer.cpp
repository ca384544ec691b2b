#include <sherd/fsdp/buffer.h>

#include <fmt/format.h>

#include <sherd/fsdp/detail/initial_values.h>

namespace sherd {

Buffer::Buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent)
    : state_(std::make_shared<State>()) {
  for (int64_t d : shape)
    if (d < 0)
      throw InvalidArgument(fmt::format("buffer '{}': shape {} has a negative size", name, to_string(shape)));
  if (const std::string wrong = check_init(init, shape); !wrong.empty())
    throw InvalidArgument(
        fmt::format("buffer '{}' of shape {}: first values: {}", name, to_string(shape), wrong));
  state_->name = std::move(name);
  state_->shape = std::move(shape);
  state_->dtype = dtype;
  state_->init = std::move(init);
  state_->persistent = persistent;
}

Buffer::State& Buffer::state() const {
  if (!state_) throw InvalidArgument("an undefined Buffer was used; make buffers with ModuleBase::buffer()");
  return *state_;
}

Tensor Buffer::data() const {
  if (!state().data.defined())
    throw InvalidArgument(
        fmt::format("buffer '{}' has no memory; call fully_shard() on the root module, and keep that alive; "
                    "the module that made "
                    "the buffer must be the root or registered below it by child()",
                    name()));
  return state().data;
}

void Buffer::allocate(Stream& stream, uint64_t seed) {
  State& s = state();
  s.data = Tensor::empty(stream.device(), s.shape, s.dtype, MemoryClass::buffer, s.name);
  initial_values(stream, s.name, s.init, s.data, seed);
}

}  // namespace sherd
