#include <sherd/optim/whole/detail/team.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include <sherd/comm/core/require_equal.h>
#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/whole/detail/compile_schedule.h>
#include <sherd/optim/whole/detail/gram_sum.h>
#include <sherd/optim/whole/detail/tensor_parts.h>
#include <sherd/optim/whole/transient_bytes.h>

namespace sherd {
namespace {

// Messages and matrices of a rank that have memory at once, each up to one chunk: two messages each of the
// chunk that arrives and of the one that is computed, its matrices and results, two of it that go out, and
// two of the chunk before it. Streams order their reuse (see MatrixBuffers); the host waits for none.
constexpr int64_t kBuffersInFlight = 10;
// Whole tensor-parallel matrices: gathered, in order, and computed; times the parts.
constexpr int64_t kTensorBuffers = 3;
// Gram matrices, the factors made of them, and the five messages of a round of sums.
constexpr int64_t kGramBuffers = 7;

}  // namespace

MatrixTeam::MatrixTeam(Device& device, std::vector<Parameter> params, const MatrixWork& work,
                       MatrixClient& client, MatrixTeamOptions options, MatrixStreams& streams)
    : device_(device),
      params_(std::move(params)),
      client_(client),
      options_(std::move(options)),
      streams_(streams),
      buffers_(device, options_.label) {
  for (size_t k = 0; k < params_.size(); ++k) {
    const Parameter& p = params_[k];
    for (auto& m : logical_matrices(p.name(), p.shape(), p.row_blocks(), p.tensor_shard(), p.group().layout(),
                                    p.index_in_group())) {
      // On all ranks alike: the shape decides, not the rank's part.
      if (m.numel() == 0) continue;
      matrices_.push_back(std::move(m));
      param_of_.push_back(k);
    }
  }
  const ParamGroup& group = params_.front().group();
  // Ranks that repeat the state could share the work: the plan decides whether the team includes them.
  int replicas = 1;
  for (auto& name : group.axes().state_repeated) replicas *= group.mesh().size(name);
  plan_ = make_plan(matrices_, group.layout().world(), replicas, work, options_.whole);
  // After the plan, which needs no communication: only communicators that the plan uses are made.
  comms_ = TeamComms::make(params_, plan_, work.name(), options_.sums);
  // Before the comparison of fingerprints, which include the size of chunks.
  settle_transient_bytes();
  check_fingerprints(work);
  schedule_ = compile_schedule(matrices_, plan_, comms_.rank, chunk_elements(), distributed());
  place_statuses();
}

void MatrixTeam::place_statuses() {
  // Each matrix has one status word, in the order of the batches that compute it.
  status_at_.assign(matrices_.size(), -1);
  int64_t statuses = 0;
  for (auto* list : {&schedule_.local, &schedule_.exchanged, &schedule_.gathered})
    for (auto& chunk : *list)
      for (auto& batch : chunk.batches) {
        batch.status_at = statuses;
        for (const int i : batch.matrices) status_at_[static_cast<size_t>(i)] = statuses++;
      }
  status_ = Tensor::empty(device_, {statuses}, DType::i32, MemoryClass::optimizer, "optimizer status");
  ops::fill(device_.compute(), status_, 0);
}

int64_t MatrixTeam::chunk_elements() const {
  // Buffers of one chunk that exist at the same time, in units of the chunk's elements.
  int64_t buffers = kBuffersInFlight;
  int parts = 0;
  for (auto& m : matrices_)
    if (m.tensor_dim >= 0) parts = std::max(parts, m.tensor_parts);
  if (!distributed()) buffers += kTensorBuffers * parts;
  const auto is_gram = [](const PlanEntry& e) { return e.mode == PlanMode::gram; };
  if ((distributed() && parts > 0) || std::any_of(plan_.entries.begin(), plan_.entries.end(), is_gram))
    buffers += kGramBuffers;
  // Bytes to elements of one chunk. A 16-bit payload uses less: the bound holds for every dtype.
  return options_.whole.transient_bytes / (buffers * static_cast<int64_t>(sizeof(float)));
}

void MatrixTeam::settle_transient_bytes() {
  if (options_.whole.transient_bytes > 0) return;
  const int64_t total = device_.total_memory();
  options_.whole.transient_bytes = default_transient_bytes(total, device_.allocator().limit_bytes());
  if (total == 0) return;  // host memory: the same for all ranks
  // All ranks must cut chunks at the same places: the minimum over tensor-parallel ranks, then over the team,
  // holds for all of them.
  Stream& s = device_.compute();
  for (auto& comm : comms_.planning) {
    const Tensor t = buffers_.message(1, DType::i64);
    ops::copy_from_host(s, t, &options_.whole.transient_bytes, sizeof options_.whole.transient_bytes);
    comm->all_reduce(s, t, ReduceOp::min);
    ops::copy_to_host(s, &options_.whole.transient_bytes, t);
  }
}

void MatrixTeam::check_fingerprints(const MatrixWork& work) {
  // Once, at the start; a step exchanges no metadata.
  std::vector<uint64_t> of_each;
  // Without names: tensor-parallel ranks have blocks of their own.
  for (auto& m : matrices_) of_each.push_back(hash64(0, work.words_of(m)));
  uint64_t mine = hash64(plan_.fingerprint, fmt::format("{} {}", chunk_elements(), options_.settings));
  for (const uint64_t word : of_each) mine = hash64(mine ^ word, {});
  for (auto& comm : comms_.planning) {
    try {
      require_equal(
          *comm, device_.compute(), mine,
          fmt::format("{}: the ranks made different {} plans; give every rank the same model and the same "
                      "{} options",
                      device_.label(), work.name(), work.name()));
    } catch (const RanksDiffer& e) {  // on every rank of comm
      const std::string matrix = matrix_that_differs(*comm, of_each);
      if (matrix.empty()) throw;
      throw RanksDiffer(fmt::format("{}; the cost, scale or state of matrix {} differs", e.what(), matrix),
                        e.ranks());
    }
  }
}

std::string MatrixTeam::matrix_that_differs(Communicator& comm, const std::vector<uint64_t>& work) const {
  const uint64_t count = work.size();
  if (!compare_values(comm, device_.compute(), {&count, 1})[0].equal()) return "";
  const std::vector<ValueComparison> all = compare_values(comm, device_.compute(), work);
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].equal()) return matrices_[i].label();
  return "";
}

void MatrixTeam::sum(Stream& compute, const Tensor& t, bool cut, bool tensor) {
  // Over the ranks that hold pieces of the rows, then over those that hold parts of the columns.
  // unowned_view(): the queued call does not keep the buffer, whose reuse the streams order.
  if (cut && comms_.cells) comms_.cells->all_reduce(compute, t.unowned_view());
  if (tensor && comms_.tensor) comms_.tensor->all_reduce(compute, t.unowned_view());
}

void MatrixTeam::step(Stream& compute) {
  Messages messages;
  try {
    queue_step(compute, messages);
  } catch (...) {
    // Before the memory of messages in flight is released: later work of compute reuses it.
    for (Stream* side : {streams_.in.get(), streams_.out.get()}) {
      try {
        compute.wait(side->record());
      } catch (...) {  // a failed stream runs nothing more
      }
    }
    throw;
  }
}

void MatrixTeam::queue_step(Stream& compute, Messages& messages) {
  const auto& chunks = schedule_.exchanged;
  auto& [arriving, now, results, leaving] = messages;
  // The first chunk arrives while matrices without messages are computed.
  if (!chunks.empty()) arriving = send_in(compute, chunks[0]);
  for (auto& chunk : schedule_.local) run_local(compute, chunk);
  for (auto& chunk : schedule_.gathered) run_gathered(compute, chunk);
  for (size_t k = 0; k < chunks.size(); ++k) {
    now = std::move(arriving);
    // Chunk k + 1 arrives while chunk k is computed, and the results of chunk k - 1 are received before
    // its update.
    if (k + 1 < chunks.size()) arriving = send_in(compute, chunks[k + 1]);
    results = send_out(compute, chunks[k], now);
    if (k > 0) finish(compute, chunks[k - 1], std::move(leaving));
    leaving = std::move(results);
    now = {};
  }
  if (!chunks.empty()) finish(compute, chunks.back(), std::move(leaving));
}

void MatrixTeam::finish_batches(Stream& compute, const MatrixChunk& chunk, const Tensor& packed, bool cut) {
  const int64_t total = packed.numel();
  const Tensor results = buffers_.matrices({total});
  int64_t at = 0;
  for (auto& b : chunk.batches) {
    const int64_t n = b.elements();
    const Shape shape = {static_cast<int64_t>(b.matrices.size()), b.rows, b.cols};
    Tensor in;
    // A batch that is contiguous in the message and in f32 needs no copy.
    if (b.unpack.empty() && packed.dtype() == DType::f32) {
      in = packed.flat(at, at + n).view(shape);
    } else {
      in = buffers_.matrices(shape);
      if (b.unpack.empty()) {
        ops::cast(compute, in.flat(0, n), packed.flat(at, at + n));
      } else {
        ops::copy_segments(compute, in.flat(0, n), packed, b.unpack);
      }
    }
    compute_batch(compute, results.flat(at, at + n).view(shape), in, b);
    at += n;
  }
  Tensor rounded = results;
  if (result() != DType::f32) {  // the same rounding as in messages
    rounded = buffers_.message(total, result());
    ops::cast(compute, rounded, results);
  }
  client_.update(compute, rounded, chunk, cut);
}

void MatrixTeam::run_local(Stream& compute, const MatrixChunk& chunk) {
  const Tensor packed = buffers_.message(chunk.in.send_total, input());
  client_.pack(compute, packed, chunk);
  finish_batches(compute, chunk, packed, false);
}

void MatrixTeam::run_gathered(Stream& compute, const MatrixChunk& chunk) {
  const auto& counts = chunk.in.send;
  // The own piece is packed at its place in the received message: the all-gather is in place.
  const int64_t mine = std::accumulate(counts.begin(), counts.begin() + comms_.rank, int64_t{0});
  const Tensor packed = buffers_.message(chunk.in.recv_total, input());
  client_.pack(compute, packed, chunk);
  comms_.gram->all_gather_v(
      compute, packed.unowned_view(), counts,
      packed.flat(mine, mine + counts[static_cast<size_t>(comms_.rank)]).unowned_view());
  finish_batches(compute, chunk, packed, true);
}

MatrixTeam::InFlight MatrixTeam::send_in(Stream& compute, const MatrixChunk& chunk) {
  InFlight f{
      buffers_.message(chunk.in.send_total, input()), buffers_.message(chunk.in.recv_total, input()), {}};
  client_.pack(compute, f.send, chunk);
  // The message is packed on compute; the transfer starts when that is done.
  follow_compute(*streams_.in);
  comms_.in->all_to_all_v(*streams_.in, f.recv.unowned_view(), chunk.in.recv, f.send.unowned_view(),
                          chunk.in.send);
  // compute waits for this event only before it reads the chunk.
  f.arrived = streams_.in->record();
  return f;
}

MatrixTeam::InFlight MatrixTeam::send_out(Stream& compute, const MatrixChunk& chunk, const InFlight& in) {
  // compute stops here only when the chunk has not arrived during the one before.
  compute.wait(in.arrived);
  InFlight f{
      buffers_.message(chunk.out.send_total, result()), buffers_.message(chunk.out.recv_total, result()), {}};
  for (auto& b : chunk.batches) {
    if (b.gram()) continue;
    const int64_t n = b.elements();
    const Shape shape = {static_cast<int64_t>(b.matrices.size()), b.rows, b.cols};
    const Tensor matrices = buffers_.matrices(shape);
    const Tensor results = buffers_.matrices(shape);
    ops::copy_segments(compute, matrices.flat(0, n), in.recv, b.unpack);
    compute_batch(compute, results, matrices, b);
    ops::copy_segments(compute, f.send, results.flat(0, n), b.pack);
  }
  // On every rank of the team, also on one without a gram batch: the sum is collective.
  if (chunk.gram.any) run_gram(compute, chunk, in.recv, f.send);
  follow_compute(*streams_.out);
  comms_.out->all_to_all_v(*streams_.out, f.recv.unowned_view(), chunk.out.recv, f.send.unowned_view(),
                           chunk.out.send);
  f.arrived = streams_.out->record();
  return f;
}

void MatrixTeam::finish(Stream& compute, const MatrixChunk& chunk, InFlight out) {
  compute.wait(out.arrived);
  // On compute: the weights change in its order, and the message's buffer is free after it.
  client_.update(compute, out.recv, chunk, true);
}

void MatrixTeam::compute_batch(Stream& compute, const Tensor& out, const Tensor& in,
                               const MatrixBatch& batch) {
  const Tensor status = statuses_of(batch);
  if (batch.tensor_dim < 0) {
    client_.compute(compute, out, in, status, batch.matrices);
  } else if (distributed()) {
    client_.compute_parts(compute, {{in, out, status, batch.tensor_dim == 0}}, [&](const Tensor& grams) {
      comms_.tensor->all_reduce(compute, grams.unowned_view());
    });
  } else {
    compute_gathered(compute, *comms_.tensor, buffers_, out, in, batch,
                     [&](const Tensor& results, const Tensor& matrices) {
                       client_.compute(compute, results, matrices, status, batch.matrices);
                     });
  }
}

void MatrixTeam::run_gram(Stream& compute, const MatrixChunk& chunk, const Tensor& received,
                          const Tensor& sent) {
  std::vector<MatrixPart> parts;
  for (auto& b : chunk.batches) {
    if (!b.gram()) continue;
    const Shape shape = {1, b.rows, b.cols};
    // All gram batches of the chunk together: one sum per round for all of them.
    parts.push_back({buffers_.matrices(shape), buffers_.matrices(shape), statuses_of(b), true});
    ops::copy_segments(compute, parts.back().x.flat(0, b.elements()), received, b.unpack);
  }
  client_.compute_parts(compute, parts, [&](const Tensor& grams) {
    sum_over_owners(compute, *comms_.gram, buffers_, grams, chunk.gram);
  });
  size_t k = 0;
  for (auto& b : chunk.batches)
    if (b.gram()) ops::copy_segments(compute, sent, parts[k++].out.flat(0, b.elements()), b.pack);
}

Tensor MatrixTeam::statuses_of(const MatrixBatch& batch) const {
  return status_.flat(batch.status_at, batch.status_at + static_cast<int64_t>(batch.matrices.size()));
}

Tensor MatrixTeam::copy_statuses(Stream& compute) {
  Tensor host = Tensor::host(device_, status_.shape(), DType::i32, MemoryClass::scratch, "metrics");
  // A stream that fails before the copy leaves them fine: its own error is the one to report.
  if (!device_.dry()) std::fill_n(host.data<int32_t>(), host.numel(), 0);
  ops::copy(compute, host, status_);
  return host;
}

// Reads host memory without a wait: the caller has synchronized. Each rank reports its own matrices; no rank
// has the whole list.
std::vector<std::pair<std::string, MatrixStatus>> MatrixTeam::report(const Tensor& statuses) const {
  const int32_t* host = statuses.data<int32_t>();
  std::vector<std::pair<std::string, MatrixStatus>> found;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (status_at_[i] < 0) continue;
    const auto status = static_cast<MatrixStatus>(host[status_at_[i]]);
    if (status != MatrixStatus::fine && speaks_for(static_cast<int>(i)))
      found.emplace_back(matrices_[i].label(), status);
  }
  return found;
}

bool MatrixTeam::speaks_for(int matrix) const {
  if (!computes(matrix) || plan_.entries[static_cast<size_t>(matrix)].owners[0] != comms_.rank) return false;
  const ParamGroup& group = params_[param_of(matrix)].group();
  return std::ranges::all_of(repeated_over(matrix),
                             [&](const std::string& dim) { return group.mesh().coordinate(dim) == 0; });
}

std::vector<std::string> MatrixTeam::repeated_over(int matrix) const {
  const Parameter& p = params_[param_of(matrix)];
  const ParamGroup& group = p.group();
  std::vector<std::string> repeated;
  if (group.replicated()) return repeated;
  const ShardAxes& axes = group.axes();
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (auto& d : group.mesh().dims()) {
    if (in(axes.state_split, d.name) || (plan_.copies > 1 && in(axes.state_repeated, d.name))) continue;
    // Along a dimension that assigns matrices whole (of a stack, heads), ranks have different matrices.
    const auto& t = p.tensor_shard();
    const bool whole = t && t->mesh_dim == d.name && matrices_[static_cast<size_t>(matrix)].tensor_dim < 0;
    // Along all other dimensions ranks have computed the same matrices.
    if (!whole) repeated.push_back(d.name);
  }
  return repeated;
}

std::string MatrixTeam::describe() const {
  const ParamGroup& group = params_.front().group();
  const ShardAxes& axes = group.axes();
  return fmt::format(
      "{} ... {}; mesh {}, sharded over {}", params_.front().name(), params_.back().name(),
      group.mesh().describe(),
      axes.state_split.empty() ? "nothing" : fmt::format("{}", fmt::join(axes.state_split, ", ")));
}

}  // namespace sherd
