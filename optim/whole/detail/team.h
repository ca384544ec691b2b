// The ranks that share a set of layouts, and one step of Muon over them. Private to optim/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops/ops.h>
#include <sherd/optim/whole/detail/schedule.h>
#include <sherd/optim/muon/refinement.h>

namespace sherd {

/// Side streams of one Muon, shared by its teams: messages in and messages out.
struct MuonStreams {
  std::unique_ptr<Stream> in, out;
};

class MuonTeam {
 public:
  struct Slot {
    Parameter param;
    double weight_decay = 0;
    Tensor momentum;  // flat f32, this rank's piece
    double lr_factor = 1;
    size_t item = 0;  // of those Muon was given
  };

  /// Collective over the team (communicators, comparison of the plans' fingerprints).
  /// @param slots parameters of groups with equal mesh and axes.
  /// @throws InvalidArgument for an impossible mode; CommError or ShapeMismatch when ranks planned
  /// differently.
  /// @param refinement null, or outlives the team.
  MuonTeam(Device& device, std::vector<Slot> slots, const MuonOptions& options, MuonStreams& streams,
           MuonRefinement* refinement);

  /// Queues the update on `compute`; see Muon::step.
  void step(Stream& compute, double lr, const Tensor& skip);

  /// Fails pending messages on all ranks.
  void abort(const std::string& cause) noexcept {
    if (comm_) comm_->abort(cause);
  }

  const std::vector<Slot>& slots() const { return slots_; }
  const MuonPlan& plan() const { return plan_; }
  const std::vector<LogicalMatrix>& matrices() const { return matrices_; }
  /// Queues a copy of the latest step's statuses to host memory.
  Tensor copy_statuses(Stream& compute);
  /// What they say of matrices that this rank reports (each is reported by one rank of the team), once
  /// `compute` has made the copy.
  std::vector<std::pair<std::string, MatrixStatus>> report(const Tensor& statuses) const;
  /// Which parameters and which ranks, for people.
  std::string describe() const;

 private:
  struct InFlight {
    Tensor send, recv;
    Event arrived;
  };
  int64_t chunk_elements() const;
  /// Of the ranks that orthogonalize it alike (replicas, tensor-parallel parts), one reports.
  bool reports(const Parameter& p) const;
  void make_communicators();
  /// Of all ranks that run this plan.
  std::vector<std::shared_ptr<Communicator>> planning_communicators() const;
  /// MuonOptions::transient_bytes, or the default of the smallest device.
  void settle_transient_bytes();
  void check_fingerprints();
  /// Orthogonalizes the batches of a chunk whose matrices came as one message, and updates.
  void finish_batches(Stream& compute, const MuonChunk& chunk, const Tensor& packed, bool cut, double lr);
  void run_local(Stream& compute, const MuonChunk& chunk, double lr);
  void run_gathered(Stream& compute, const MuonChunk& chunk, double lr);
  InFlight send_in(Stream& compute, const MuonChunk& chunk);
  InFlight send_out(Stream& compute, const MuonChunk& chunk, const InFlight& in);
  void finish(Stream& compute, const MuonChunk& chunk, InFlight out, double lr);

  void pack_momentum(Stream& compute, const Tensor& packed, const MuonChunk& chunk);
  /// Updates the weights with the results of a chunk. `cut`: several cells may keep parts of its matrices.
  void update(Stream& compute, const Tensor& packed, const MuonChunk& chunk, bool cut, double lr);
  /// The results as the refinement leaves them.
  Tensor refined(Stream& compute, const Tensor& packed, const MuonChunk& chunk, bool cut);
  void orthogonalize(Stream& compute, const Tensor& out, const Tensor& in, const MuonBatch& batch);
  void duplicated(Stream& compute, const Tensor& out, const Tensor& in, const MuonBatch& batch,
                  const Tensor& status);
  /// One matrix batch of which this rank holds a part; x may be overwritten.
  struct GramTask {
    Tensor x, out, status;
    bool contract_rows;
  };
  /// Runs all tasks together; `sum` adds the Gram matrices (all in one buffer) over the ranks.
  void gram_form(Stream& compute, const std::vector<GramTask>& tasks,
                 const std::function<void(const Tensor&)>& sum);
  /// The gram batches of a chunk, from the received to the sent message.
  void run_gram(Stream& compute, const MuonChunk& chunk, const Tensor& received, const Tensor& sent);
  void sum_over_owners(Stream& compute, const Tensor& grams, const GramExchange& exchange);
  Tensor statuses_of(const MuonBatch& batch) const;
  Tensor make(Shape shape, DType dtype, const char* what);
  /// Memory for a collective, which gets an unowned view. The side streams' messages are released after
  /// `compute` has waited for their arrival, all others are of `compute` alone: later work may have the
  /// memory at once, whatever the host is ahead by.
  Tensor message(int64_t elements, DType dtype);

  Device& device_;
  std::vector<Slot> slots_;
  MuonOptions options_;
  MuonStreams& streams_;
  MuonRefinement* refinement_;
  std::vector<LogicalMatrix> matrices_;
  std::vector<size_t> slot_of_;  // of each matrix
  MuonPlan plan_;
  MuonSchedule schedule_;
  Tensor skip_;  // of the step that is being issued
  Tensor skip_frozen_;  // of parameters that are frozen: always 1
  int rank_ = 0;
  std::shared_ptr<Communicator> comm_, in_comm_, out_comm_, gram_comm_;  // over the team
  std::shared_ptr<Communicator> tensor_comm_;                            // over the tensor-parallel ranks
  std::shared_ptr<Communicator> cells_comm_;  // over one rank of each cell, for the refinement
  Tensor status_;                   // i32, one for each matrix that this rank orthogonalizes
  std::vector<int64_t> status_at_;  // of each matrix, -1 where there is none
};

}  // namespace sherd
