// Tensors that a recomputed function writes in place: running statistics, counters.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

namespace sherd::torch::detail {

/// Values of tensors that the first run of a function writes in place and did not make, from before that run.
/// The second run gets copies of these tensors with those values. It computes the same as the first, and
/// writes to the copies.
///
/// before() and after() receive every operation of libtorch's dispatcher in both runs. Other writes are not
/// detected.
class WrittenTensors {
 public:
  class FirstRun;
  class SecondRun;
  /// Memory of an operation's arguments.
  using Memory = c10::SmallVector<const c10::StorageImpl*, 8>;

  WrittenTensors() = default;
  WrittenTensors(const WrittenTensors&) = delete;
  WrittenTensors& operator=(const WrittenTensors&) = delete;

  /// Replaces an operation's arguments in a second run, and saves values in a first run. @returns the
  /// argument of after().
  static Memory before(const c10::FunctionSchema& schema, ::torch::jit::Stack& stack);
  /// Notes the results of the operation in a first run.
  static void after(const Memory& arguments, const c10::FunctionSchema& schema, ::torch::jit::Stack& stack);

 private:
  /// A copy of one tensor's memory. `of`: that memory, then its copies in the enclosing second runs.
  struct Copy {
    std::vector<c10::Storage> of;
    c10::Storage memory;
    c10::VariableVersion version{0};
  };
  struct Range {
    std::vector<c10::Storage> of;  // as in Copy
    int64_t begin, end;            // bytes
    at::Tensor values;
  };
  void keep(const at::Tensor& tensor, const Copy* copy);

  std::vector<Range> ranges_;  // in the order of the writes
};

/// Puts this thread into the first run of a function until its destruction.
class [[nodiscard]] WrittenTensors::FirstRun {
 public:
  explicit FirstRun(WrittenTensors& to);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  friend WrittenTensors;
  WrittenTensors& to_;
  ska::flat_hash_set<const c10::StorageImpl*> made_;
  FirstRun* const around_;
};

/// Puts this thread into the second run of a function until its destruction.
class [[nodiscard]] WrittenTensors::SecondRun {
 public:
  explicit SecondRun(const WrittenTensors& first);
  ~SecondRun();
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;

 private:
  friend WrittenTensors;
  const Copy* copy_of(const at::Tensor& tensor) const;
  /// @returns the tensor on the copy; undefined: the tensor stays.
  at::Tensor replaced(const at::Tensor& tensor, bool written);

  std::unordered_map<const c10::StorageImpl*, Copy> copies_;            // by of.front()
  std::unordered_map<const c10::StorageImpl*, const Copy*> by_memory_;  // all of `of`, and the copy
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>>
      replaced_;  // tensor and its replacement
  const std::pair<FirstRun*, SecondRun*> around_;
};

}  // namespace sherd::torch::detail
