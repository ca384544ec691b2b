// Team: the ranks that share a set of storage layouts, and one step of an optimizer over them. Private to
// optim/.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/kernels/orthogonalize/orthogonalize_options.h>
#include <sherd/optim/whole/detail/buffers.h>
#include <sherd/optim/whole/detail/schedule.h>
#include <sherd/optim/whole/detail/team_comms.h>
#include <sherd/optim/whole/make_plan.h>
#include <sherd/optim/whole/matrix_rule.h>

namespace sherd {

/// Side streams of one optimizer, shared by its teams: messages to the owners and results.
struct MatrixStreams {
  std::unique_ptr<Stream> in, out;
};

/// Computation of an optimizer between the messages of a team. All calls queue on `compute`.
class MatrixClient {
 public:
  virtual ~MatrixClient() = default;
  /// Writes the inputs of a chunk (MatrixChunk::inputs) into a message.
  virtual void pack(Stream& compute, const Tensor& message, const MatrixChunk& chunk) = 0;
  /// Computes whole matrices [batch, rows, cols], those of `matrices`; writes a MatrixStatus of each.
  virtual void compute(Stream& compute, const Tensor& out, const Tensor& in, const Tensor& status,
                       const std::vector<int>& matrices) = 0;
  /// Computes matrices in parts. `sum` adds their Gram matrices, all in one tensor in the order of the parts,
  /// over the ranks with the other parts. Called on all of these ranks, on some without a part.
  virtual void compute_parts(Stream& compute, const std::vector<MatrixPart>& parts,
                             const std::function<void(const Tensor&)>& sum) = 0;
  /// Updates the weights with the results of a chunk (MatrixChunk::updates). `cut`: several cells may keep
  /// parts of its matrices.
  virtual void update(Stream& compute, const Tensor& results, const MatrixChunk& chunk, bool cut) = 0;
};

struct MatrixTeamOptions {
  /// Prefix of the names of buffers in memory reports: "muon".
  std::string label = "optimizer";
  /// Without momentum, nesterov and decay. payload: momentum is sent as bf16 under f16, whose exponents are too few for
  /// its unknown scale; that of results is about 1.
  MomentumOptions whole = {};
  /// True if the client calls sum().
  bool sums = false;
  /// All that results depend on besides the plan, in words: equal on all ranks.
  std::string settings = {};
};

class MatrixTeam {
 public:
  /// Collective over the team (communicators, comparison of the plans' fingerprints).
  /// @param params of groups with equal mesh and axes.
  /// @throws InvalidArgument for an impossible mode; CommError or ShapeMismatch when ranks planned
  /// differently.
  /// @param work is used by the constructor only. `client` outlives the team; the constructor does not call it.
  MatrixTeam(Device& device, std::vector<Parameter> params, const MatrixWork& work, MatrixClient& client,
             MatrixTeamOptions options, MatrixStreams& streams);

  const MatrixBuffers& buffers() const { return buffers_; }
  /// Queues the messages of a step and the client's work on `compute`.
  void step(Stream& compute);
  /// Fails pending messages on all ranks.
  void abort(const std::string& cause) noexcept {
    for (auto& comm : {comms_.team, comms_.planning.empty() ? nullptr : comms_.planning.front()})
      if (comm) comm->abort(cause);
  }

  const MatrixPlan& plan() const { return plan_; }
  const std::vector<LogicalMatrix>& matrices() const { return matrices_; }
  /// Returns whether this rank computes the matrix.
  bool computes(int matrix) const { return status_at_[static_cast<size_t>(matrix)] >= 0; }
  /// Returns whether this rank speaks for the matrix: the one rank of all that compute it alike (owners, replicas,
  /// tensor-parallel parts).
  bool speaks_for(int matrix) const;
  /// Returns the mesh dimensions along which other ranks compute the same matrix, in the mesh's order. It is the same for
  /// all matrices of a parameter.
  std::vector<std::string> repeated_over(int matrix) const;
  /// Returns the index of a matrix's parameter among `params`.
  size_t param_of(int matrix) const { return param_of_[static_cast<size_t>(matrix)]; }
  /// Queues the sum of a tensor in place, over the ranks that keep parts of the matrices if `cut`, and over
  /// the tensor-parallel ranks if `tensor`.
  void sum(Stream& compute, const Tensor& t, bool cut, bool tensor);
  int tensor_rank() const { return comms_.tensor ? comms_.tensor->rank() : 0; }

  /// Queues a copy of the latest step's statuses to host memory.
  Tensor copy_statuses(Stream& compute);
  /// Returns the matrices without a result in that copy, once `compute` has made it. One rank of the team
  /// reports each matrix.
  std::vector<std::pair<std::string, MatrixStatus>> report(const Tensor& statuses) const;
  /// Returns the team's parameters and ranks in words.
  std::string describe() const;

 private:
  struct InFlight {
    Tensor send, recv;
    Event arrived;
  };
  /// Messages of a step. They outlive an exception in it, until compute waits for their arrival.
  struct Messages {
    InFlight arriving, now, results, leaving;
  };
  void queue_step(Stream& compute, Messages& messages);
  /// Tensor-parallel matrices are computed in parts instead of gathered.
  bool distributed() const { return options_.whole.tensor == MatrixTensorMode::distributed; }
  DType input() const { return result() == DType::f16 ? DType::bf16 : result(); }
  DType result() const { return options_.whole.payload; }
  int64_t chunk_elements() const;
  void settle_transient_bytes();
  void check_fingerprints(const MatrixWork& work);
  /// Returns the first matrix, in words, of which the ranks have other work; "" if the matrices themselves differ.
  std::string matrix_that_differs(Communicator& comm, const std::vector<uint64_t>& work) const;
  void place_statuses();

  void run_local(Stream& compute, const MatrixChunk& chunk);
  void run_gathered(Stream& compute, const MatrixChunk& chunk);
  /// Computes the batches of a chunk whose matrices were packed into one message, and updates.
  void finish_batches(Stream& compute, const MatrixChunk& chunk, const Tensor& packed, bool cut);
  InFlight send_in(Stream& compute, const MatrixChunk& chunk);
  InFlight send_out(Stream& compute, const MatrixChunk& chunk, const InFlight& in);
  void finish(Stream& compute, const MatrixChunk& chunk, InFlight out);
  void compute_batch(Stream& compute, const Tensor& out, const Tensor& in, const MatrixBatch& batch);
  /// Computes the gram batches of a chunk, from the received to the sent message.
  void run_gram(Stream& compute, const MatrixChunk& chunk, const Tensor& received, const Tensor& sent);
  Tensor statuses_of(const MatrixBatch& batch) const;

  Device& device_;
  std::vector<Parameter> params_;
  MatrixClient& client_;
  MatrixTeamOptions options_;
  MatrixStreams& streams_;
  MatrixBuffers buffers_;
  std::vector<LogicalMatrix> matrices_;
  std::vector<size_t> param_of_;  // of each matrix
  MatrixPlan plan_;
  TeamComms comms_;
  MatrixSchedule schedule_;
  Tensor status_;                   // i32, one for each matrix that this rank computes
  std::vector<int64_t> status_at_;  // of each matrix; -1: computed by other ranks
};

}  // namespace sherd
