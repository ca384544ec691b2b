// The checks every backend makes on the host, at the call, before anything is queued. Private to comm/.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <sherd/kernels/tensor.h>

namespace sherd {

/// Names the call in messages: "all_gather on rank 3 (2 of 4 in its group)".
class ArgumentCheck {
 public:
  ArgumentCheck(const char* op, int rank, int size, int world_rank)
      : op_(op), rank_(rank), size_(size), world_rank_(world_rank) {}

  /// @throws InvalidArgument when `t` is undefined.
  void defined(const Tensor& t, const char* name) const;
  /// Both defined and of one dtype. @throws InvalidArgument, ShapeMismatch
  void pair(const Tensor& recv, const Tensor& send) const;
  /// `t` holds `wanted` elements; `rule` says in words where the number comes from. @throws ShapeMismatch
  void numel(const Tensor& t, const char* name, int64_t wanted, const char* rule) const;
  /// One count >= 0 per rank; returns their sum. @throws InvalidArgument
  int64_t counts(std::span<const int64_t> counts, const char* name) const;
  /// A rank of the group. @throws InvalidArgument
  void root(int root) const;
  /// A rank of the group other than this one. @throws InvalidArgument
  void peer(int peer) const;
  /// @throws InvalidArgument for dtypes that cannot be reduced.
  void reducible(const Tensor& t) const;

 private:
  std::string place() const;

  const char* op_;
  int rank_, size_, world_rank_;
};

}  // namespace sherd
