#include <sherd/torch/detail/written_tensors.h>

#include <algorithm>
#include <string>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>

namespace sherd::torch::detail {
namespace {

using RunsWithWrites = std::pair<WrittenTensors::FirstRun*, WrittenTensors::SecondRun*>;

RunsWithWrites& runs_with_writes() {
  static thread_local RunsWithWrites runs;
  return runs;
}

/// Scope that hides operations of the bookkeeping itself.
class Unseen {
 public:
  Unseen() = default;
  ~Unseen() { runs_with_writes() = before_; }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  const RunsWithWrites before_ = std::exchange(runs_with_writes(), {});
};

const c10::StorageImpl* memory_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

at::Tensor bytes_of(const c10::Storage& memory) {
  return at::empty({0}, at::TensorOptions(memory.device()).dtype(at::kByte))
      .set_(memory, 0, {static_cast<int64_t>(memory.nbytes())}, {1});
}

/// Returns whether an argument is one that batch or instance normalization writes to: their schemas do not
/// declare these writes.
bool running_statistic(const std::string& name) { return name == "running_mean" || name == "running_var"; }

bool is_written(const c10::Argument& a) {
  return (a.alias_info() != nullptr && a.alias_info()->isWrite()) || running_statistic(a.name());
}

/// Calls f for every tensor with memory, and replaces the tensor where f returns a defined one.
template <class F>
void visit_tensors(c10::IValue& value, F f) {
  const auto replacement = [&](const c10::IValue& v) {
    return v.isTensor() && v.toTensor().defined() && v.toTensor().has_storage() ? f(v.toTensor())
                                                                                : at::Tensor();
  };
  if (value.isTensor()) {
    if (at::Tensor other = replacement(value); other.defined()) value = std::move(other);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    c10::List<c10::IValue> list = value.toList();
    bool own = false;  // the caller's list stays unchanged
    for (size_t i = 0; i < list.size(); ++i) {
      at::Tensor other = replacement(list.get(i));
      if (!other.defined()) continue;
      if (!std::exchange(own, true)) list = list.copy();
      list.set(i, std::move(other));
    }
    if (own) value = list;
  }
}

}  // namespace

WrittenTensors::FirstRun::FirstRun(WrittenTensors& to)
    : to_(to), around_(std::exchange(runs_with_writes().first, this)) {}
WrittenTensors::FirstRun::~FirstRun() { runs_with_writes().first = around_; }

WrittenTensors::SecondRun::SecondRun(const WrittenTensors& first) : around_(runs_with_writes()) {
  {
    const Unseen unseen;
    // For overlapping ranges, the earlier write has the values from before the run.
    for (auto r = first.ranges_.rbegin(); r != first.ranges_.rend(); ++r) {
      const auto [place, added] = copies_.try_emplace(r->of.front().unsafeGetStorageImpl());
      Copy& copy = place->second;
      if (added) {
        copy.of = r->of;
        copy.memory = bytes_of(r->of.back()).clone().storage();
        for (const c10::Storage& memory : copy.of) by_memory_[memory.unsafeGetStorageImpl()] = &copy;
        by_memory_[copy.memory.unsafeGetStorageImpl()] = &copy;
      }
      bytes_of(copy.memory).slice(0, r->begin, r->end).copy_(r->values);
    }
  }
  runs_with_writes() = {nullptr, this};
}
WrittenTensors::SecondRun::~SecondRun() { runs_with_writes() = around_; }

const WrittenTensors::Copy* WrittenTensors::SecondRun::copy_of(const at::Tensor& tensor) const {
  const auto found = by_memory_.find(memory_of(tensor));
  return found == by_memory_.end() ? nullptr : found->second;
}

at::Tensor WrittenTensors::SecondRun::replaced(const at::Tensor& tensor, bool written) {
  const Copy* const copy = copy_of(tensor);
  if (copy == nullptr || memory_of(tensor) == copy->memory.unsafeGetStorageImpl()) return {};
  // A tensor with a gradient keeps its identity. Only a write without one, by an embedding's max_norm, goes
  // to the copy.
  if (tensor.requires_grad() && (!written || at::GradMode::is_enabled())) return {};
  auto& [original, other] = replaced_[tensor.unsafeGetTensorImpl()];
  if (!original.defined()) {
    original = tensor;
    auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(copy->version,
                                                                      /*allow_tensor_metadata_change=*/true);
    impl->set_storage_keep_dtype(copy->memory);
    other = at::Tensor(std::move(impl));
  }
  return other;
}

void WrittenTensors::keep(const at::Tensor& tensor, const Copy* copy) {
  Range range;
  range.begin = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  range.end = static_cast<int64_t>(at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), static_cast<size_t>(tensor.storage_offset())));
  if (copy != nullptr) range.of = copy->of;
  range.of.push_back(copy != nullptr ? copy->memory : tensor.storage());
  const bool known = std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& r) {
    return r.of.front().is_alias_of(range.of.front()) && r.begin <= range.begin && range.end <= r.end;
  });
  if (known || range.end <= range.begin) return;
  const Unseen unseen;
  range.values = bytes_of(range.of.back()).slice(0, range.begin, range.end).clone();
  ranges_.push_back(std::move(range));
}

WrittenTensors::Memory WrittenTensors::before(const c10::FunctionSchema& schema, ::torch::jit::Stack& stack) {
  Memory arguments;
  const auto [first, second] = runs_with_writes();
  if (first == nullptr && (second == nullptr || second->copies_.empty())) return arguments;
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count; ++i)
    visit_tensors(::torch::jit::peek(stack, i, count),
                  [&, first = first, second = second](const at::Tensor& t) {
                    const bool written = is_written(schema.arguments()[i]);
                    if (first != nullptr && written && first->made_.count(memory_of(t)) == 0)
                      first->to_.keep(t, second == nullptr ? nullptr : second->copy_of(t));
                    at::Tensor other = second == nullptr ? at::Tensor() : second->replaced(t, written);
                    if (first != nullptr) arguments.push_back(memory_of(other.defined() ? other : t));
                    return other;
                  });
  return arguments;
}

void WrittenTensors::after(const Memory& arguments, const c10::FunctionSchema& schema,
                           ::torch::jit::Stack& stack) {
  FirstRun* const first = runs_with_writes().first;
  if (first == nullptr) return;
  const size_t count = schema.returns().size();
  for (size_t i = 0; i < count; ++i)
    visit_tensors(::torch::jit::peek(stack, i, count), [&](const at::Tensor& t) {
      const c10::StorageImpl* const memory = memory_of(t);
      if (std::find(arguments.begin(), arguments.end(), memory) == arguments.end())
        first->made_.insert(memory);
      return at::Tensor();
    });
}

}  // namespace sherd::torch::detail
