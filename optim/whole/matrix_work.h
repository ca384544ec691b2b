// Work of an optimizer on whole matrices, as a plan needs it: costs, and the operations that are possible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/optim/whole/logical_matrix.h>

namespace sherd {

/// Arithmetic without state: the same on every rank.
class MatrixWork {
 public:
  virtual ~MatrixWork() = default;
  /// Returns the optimizer's name for errors and human-readable plans: "Muon".
  virtual std::string name() const = 0;
  /// Returns its options in words, for human-readable plans: "form gram, 5 steps".
  virtual std::string description() const = 0;
  /// Returns its options as numbers, for the plan's fingerprint.
  virtual std::vector<int64_t> options_as_words() const = 0;

  /// Returns what human-readable plans say of a matrix that one rank computes, beside description(); "" if nothing.
  virtual std::string note(const LogicalMatrix&) const { return {}; }

  /// Returns the cost that plans balance: one owner's, in any unit, the same for all matrices.
  virtual double cost(const LogicalMatrix& m) const = 0;
  /// Returns the FLOPs of one owner, tensor parallelism included.
  virtual double flops(const LogicalMatrix& m) const = 0;
  /// Returns the bytes that one tensor-parallel rank receives for its matrix; 0 where none cuts it.
  virtual int64_t tensor_bytes(const LogicalMatrix& m) const = 0;

  /// Returns all that its result depends on beside description(), in words that ranks compare; "" if nothing.
  virtual std::string words_of(const LogicalMatrix&) const { return {}; }
  /// Returns the bytes of the state that the matrix's owner stores; 0: none.
  virtual int64_t state_bytes(const LogicalMatrix&) const { return 0; }

  /// Returns whether owners that each hold a range of the rows can compute the matrix from the sum of their
  /// Gram matrices, cols x cols (PlanMode::gram).
  virtual bool gram_is_possible(const LogicalMatrix& m) const = 0;
  /// Returns the FLOPs of all owners of a gram entry together.
  virtual double gram_flops(const LogicalMatrix& m, int owners) const = 0;
  /// Returns the bytes that each owner of a gram entry receives (and sends) for all its sums.
  virtual int64_t gram_bytes(const LogicalMatrix& m, int owners) const = 0;
};

}  // namespace sherd
