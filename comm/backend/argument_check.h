// Argument checks of every backend on the host, at the call, before any queueing. Private to comm/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <sherd/kernels/device/tensor.h>

namespace sherd::comm {

struct NamedTensor {
  const Tensor& tensor;
  const char* name;
};

/// Checks of one call, named in messages: "all_gather on rank 3 (2 of 4 in its group)".
class ArgumentCheck {
 public:
  ArgumentCheck(const char* op, int rank, int size, int world_rank)
      : op_(op), rank_(rank), size_(size), world_rank_(world_rank) {}

  /// @throws InvalidArgument when `t` is undefined.
  void defined(const Tensor& t, const char* name) const;
  /// Requires both to be defined and of one dtype. @throws InvalidArgument, ShapeMismatch
  void pair(const Tensor& recv, const Tensor& send) const;
  /// Requires `wanted` elements; `rule` says where the number comes from. @throws ShapeMismatch
  void numel(const Tensor& t, const char* name, int64_t wanted, const char* rule) const;
  /// Requires one count >= 0 per rank; returns their sum. @throws InvalidArgument, also for a sum beyond 63
  /// bits.
  int64_t counts(std::span<const int64_t> counts, const char* name) const;
  /// Requires a rank of the group. @throws InvalidArgument
  void root(int root) const;
  /// Requires a rank of the group other than this one. @throws InvalidArgument
  void peer(int peer) const;
  /// @throws InvalidArgument for dtypes that cannot be reduced.
  void reducible(const Tensor& t) const;
  /// Requires the stream, and the memory of the defined tensors, to be of the rank's `device`.
  /// @throws InvalidArgument naming the first that is not.
  void place_of(const Device& device, const Stream& stream, std::initializer_list<NamedTensor> tensors) const;
  /// Requires that `part` shares no memory with `whole`, or is its elements [begin, begin + part.numel()).
  /// @throws InvalidArgument that names that slice.
  void in_place(const Tensor& part, const char* part_name, const Tensor& whole, const char* whole_name,
                int64_t begin) const;
  /// @throws InvalidArgument when the two share memory.
  void apart(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) const;

 private:
  std::string place() const;

  const char* op_;
  int rank_, size_, world_rank_;
};

}  // namespace sherd::comm
