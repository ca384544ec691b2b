// Exchange of rows with the ranks of their experts, both ways.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <sherd/comm/core/communicator.h>
#include <sherd/nn/function.h>

namespace sherd::nn {

/// The ranks of a group share `experts` experts out: rank p of P holds [p * experts / P, (p + 1) * experts / P). Every
/// rank has rows for any of them. One exchange is made for each call of the experts; copies mean the same. Its
/// functions are collectives of the group, on the compute stream, in forward and again in backward: every rank calls
/// them, with or without rows, and nothing that depends on one rank may keep it from backward.
class ExpertExchange {
 public:
  /// Sends every rank its counts. The host waits for the compute stream, since only the device knows the
  /// sizes of later messages. On a dry device every rank sends as many rows as this one.
  /// @param ranks the group; null: this rank alone, which has all experts. Nothing is sent then.
  /// @param counts i32 [experts]: this rank's rows for each expert (Routes::counts).
  /// @throws InvalidArgument when the experts cannot be distributed evenly.
  ExpertExchange(std::shared_ptr<Communicator> ranks, const Tensor& counts);

  /// Returns the offsets of this rank's experts in the rows of to_experts(), for grouped_linear().
  const std::vector<int64_t>& offsets() const { return offsets_; }
  /// Sends rows [sum of counts, d], sorted by expert. Returns those of all ranks for this rank's experts:
  /// sorted by expert, within an expert by rank, and within a rank in its order. Backward sends the gradients
  /// back.
  Var to_experts(const Var& rows) const;
  /// Sends the experts' results back: any width and dtype.
  Var from_experts(const Var& rows) const;

 private:
  void arrange_by_expert(const Tensor& counts, const int32_t* arriving);
  Tensor there(Stream& s, const Tensor& rows) const;
  Tensor back(Stream& s, const Tensor& rows) const;
  // Rows from here to each rank by `sent`, as many come as `received` says.
  Tensor send(Stream& s, const Tensor& rows, const std::vector<int64_t>& sent,
              const std::vector<int64_t>& received) const;

  std::shared_ptr<Communicator> ranks_;  // null: one rank
  std::vector<int64_t> here_,
      away_;  // rows of this rank for each rank's experts; of each rank for this one's
  std::vector<int64_t> offsets_;
  Tensor arrange_, restore_;  // from the order of arrival to that of experts and back; undefined: the same
};

}  // namespace sherd::nn
