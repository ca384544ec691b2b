#include <sherd/optim/whole/detail/team.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/ops/random.h>

namespace sherd {
namespace {

// Messages and matrices of a rank that have memory at once, each up to one chunk: two messages each of the
// chunk that arrives and of the one that is computed, its matrices and results, two of it that go out, and
// two of the chunk before it. Streams order their reuse (see MuonTeam::message), the host waits for none.
constexpr int64_t kBuffersInFlight = 10;
// Whole tensor-parallel matrices: gathered, in order, and orthogonalized; times the parts.
constexpr int64_t kTensorBuffers = 3;
// Gram matrices, Q, and the five messages of a round of sums.
constexpr int64_t kGramBuffers = 7;

/// The scale of momentum is not known, that of results is about 1: f16 has too few exponents for the former.
DType incoming(DType payload) { return payload == DType::f16 ? DType::bf16 : payload; }

std::vector<std::string> joined(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

MuonTeam::MuonTeam(Device& device, std::vector<Slot> slots, const MuonOptions& options, MuonStreams& streams,
                   MuonRefinement* refinement)
    : device_(device),
      slots_(std::move(slots)),
      options_(options),
      streams_(streams),
      refinement_(refinement) {
  for (size_t s = 0; s < slots_.size(); ++s) {
    Slot& slot = slots_[s];
    const Parameter& p = slot.param;
    slot.momentum = Tensor::empty(device, {p.shard_range().size()}, DType::f32, MemoryClass::optimizer,
                                  "optimizer momentum_buffer");
    ops::fill(device.compute(), slot.momentum, 0);
    for (auto& m : logical_matrices(p.name(), p.shape(), p.row_blocks(), p.tensor_shard(), p.group().layout(),
                                    p.index_in_group())) {
      if (m.numel() == 0) continue;
      matrices_.push_back(std::move(m));
      slot_of_.push_back(s);
    }
  }
  const ParamGroup& group = slots_.front().param.group();
  // Ranks that repeat the state could share the work: the plan decides whether the team includes them.
  int replicas = 1;
  for (auto& name : group.axes().state_repeated) replicas *= group.mesh().size(name);
  plan_ = make_plan(matrices_, group.layout().world(), replicas, plan_options(options_));
  make_communicators();
  settle_transient_bytes();
  check_fingerprints();
  schedule_ = compile_schedule(matrices_, plan_, rank_, chunk_elements(),
                               options_.tensor == MuonTensorMode::distributed);
  // Each matrix has one status word, in the order of the batches that orthogonalize it.
  status_at_.assign(matrices_.size(), -1);
  int64_t statuses = 0;
  for (auto* list : {&schedule_.local, &schedule_.exchanged, &schedule_.gathered})
    for (auto& chunk : *list)
      for (auto& batch : chunk.batches) {
        batch.status_at = statuses;
        for (const int i : batch.matrices) status_at_[static_cast<size_t>(i)] = statuses++;
      }
  status_ = Tensor::empty(device, {statuses}, DType::i32, MemoryClass::optimizer, "optimizer status");
  ops::fill(device.compute(), status_, 0);
  // A skip flag that is always set, for parameters that are frozen at present.
  skip_frozen_ = Tensor::empty(device, {1}, DType::i64, MemoryClass::optimizer, "optimizer status");
  ops::fill(device.compute(), skip_frozen_, 1);
}

int64_t MuonTeam::chunk_elements() const {
  // Buffers of one chunk that exist at the same time, in units of the chunk's elements.
  int64_t buffers = kBuffersInFlight;
  int parts = 0;
  for (auto& m : matrices_)
    if (m.tensor_dim >= 0) parts = std::max(parts, m.tensor_parts);
  if (options_.tensor == MuonTensorMode::duplicated) buffers += kTensorBuffers * parts;
  const bool distributed = options_.tensor == MuonTensorMode::distributed && parts > 0;
  const auto is_gram = [](const PlanEntry& e) { return e.mode == PlanMode::gram; };
  if (distributed || std::any_of(plan_.entries.begin(), plan_.entries.end(), is_gram))
    buffers += kGramBuffers;
  return options_.transient_bytes / (buffers * static_cast<int64_t>(sizeof(float)));
}

void MuonTeam::make_communicators() {
  const ParamGroup& group = slots_.front().param.group();
  const ShardAxes& axes = group.axes();
  if (plan_.team() > 1) {
    comm_ = group.mesh().flatten(plan_.copies > 1 ? joined(axes.state_split, axes.state_repeated)
                                                  : axes.state_split);
    rank_ = comm_->rank();
    // Three communicators, so that arriving, leaving and Gram messages overlap.
    in_comm_ = comm_->clone();
    out_comm_ = comm_->clone();
    gram_comm_ = comm_->clone();
    const std::string team = fmt::format("Muon's team of '{}'", slots_.front().param.name());
    in_comm_->serve(Purpose("momentum to the owners of " + team));
    out_comm_->serve(Purpose("results from the owners of " + team));
    gram_comm_->serve(Purpose("products of " + team));
    if (refinement_ && plan_.cells > 1) {
      cells_comm_ = group.mesh().flatten(axes.state_split)->clone();
      cells_comm_->serve(Purpose("refinement of the results of " + team));
    }
  }
  for (auto& slot : slots_) {
    const auto& tensor = slot.param.tensor_shard();
    const bool cuts_matrices =
        tensor && tensor->parts > 1 && tensor->dim >= static_cast<int>(slot.param.shape().size()) - 2;
    // Parameters cut in other dimensions (stacks of experts) have whole matrices on each rank.
    if (cuts_matrices && !tensor_comm_) tensor_comm_ = group.mesh().comm(tensor->mesh_dim)->clone();
  }
  if (tensor_comm_)
    tensor_comm_->serve(Purpose(
        fmt::format("tensor-parallel pieces of Muon's team of '{}'", slots_.front().param.name()), false));
}

std::vector<std::shared_ptr<Communicator>> MuonTeam::planning_communicators() const {
  const ParamGroup& group = slots_.front().param.group();
  const ShardAxes& axes = group.axes();
  std::vector<std::shared_ptr<Communicator>> all = {tensor_comm_};
  if (!group.replicated()) all.push_back(group.mesh().flatten(joined(axes.state_split, axes.state_repeated)));
  std::erase_if(all, [](const auto& comm) { return !comm || comm->size() == 1; });
  return all;
}

void MuonTeam::settle_transient_bytes() {
  if (options_.transient_bytes > 0) return;
  const int64_t total = device_.total_memory();
  options_.transient_bytes = default_transient_bytes(total, device_.allocator().limit_bytes());
  if (total == 0) return;  // host memory: the same for all ranks
  // All ranks must cut chunks alike: the minimum over tensor-parallel ranks, then over the team, holds for
  // all of them.
  Stream& s = device_.compute();
  for (auto& comm : planning_communicators()) {
    const Tensor t = message(1, DType::i64);
    ops::copy_from_host(s, t, &options_.transient_bytes, sizeof options_.transient_bytes);
    comm->all_reduce(s, t, ReduceOp::min);
    ops::copy_to_host(s, &options_.transient_bytes, t);
  }
}

void MuonTeam::check_fingerprints() {
  // Once, at the start; a step exchanges no metadata.
  uint64_t mine = plan_.fingerprint;
  const OrthogonalizeOptions& o = options_.orthogonalize;
  for (const double v : {static_cast<double>(chunk_elements()), static_cast<double>(options_.payload),
                         static_cast<double>(o.working), static_cast<double>(options_.scale),
                         static_cast<double>(options_.decay), options_.scale_factor,
                         double{options_.momentum}, double{o.eps}, options_.nesterov ? 1.0 : 0.0})
    mine = hash64(mine, fmt::format("{}", v));
  for (auto& [a, b, c] : o.steps) mine = hash64(mine, fmt::format("{} {} {}", a, b, c));
  Stream& s = device_.compute();
  for (auto& comm : planning_communicators())
    require_equal(*comm, s, mine,
                  fmt::format("{}: the ranks made different Muon plans; give every rank the same model and the "
                              "same Muon options",
                              device_.label()));
}

Tensor MuonTeam::make(Shape shape, DType dtype, const char* what) {
  return Tensor::empty(device_, std::move(shape), dtype, MemoryClass::scratch, what);
}

Tensor MuonTeam::message(int64_t elements, DType dtype) {
  return Tensor::empty(device_, {elements}, dtype, MemoryClass::message, "muon messages");
}

void MuonTeam::step(Stream& compute, double lr, const Tensor& skip) {
  skip_ = skip;
  const auto& chunks = schedule_.exchanged;
  InFlight arriving, leaving;
  // The first chunk arrives while matrices without messages are computed.
  if (!chunks.empty()) arriving = send_in(compute, chunks[0]);
  for (auto& chunk : schedule_.local) run_local(compute, chunk, lr);
  for (auto& chunk : schedule_.gathered) run_gathered(compute, chunk, lr);
  for (size_t k = 0; k < chunks.size(); ++k) {
    const InFlight now = std::move(arriving);
    // Chunk k + 1 arrives while chunk k is orthogonalized, and the results of chunk k - 1 are received before
    // its update.
    if (k + 1 < chunks.size()) arriving = send_in(compute, chunks[k + 1]);
    InFlight results = send_out(compute, chunks[k], now);
    if (k > 0) finish(compute, chunks[k - 1], std::move(leaving), lr);
    leaving = std::move(results);
  }
  if (!chunks.empty()) finish(compute, chunks.back(), std::move(leaving), lr);
  skip_ = Tensor();
}

void MuonTeam::pack_momentum(Stream& compute, const Tensor& packed, const MuonChunk& chunk) {
  // Parameters with unequal decay differ in the l2 term only: one pass for each value. Frozen ones are
  // packed, too, since messages are the same in every step, and keep their momentum.
  std::map<std::pair<double, bool>, std::vector<MomentumSegment>> passes;
  for (auto& seg : chunk.momentum) {
    const Slot& slot = slots_[slot_of_[static_cast<size_t>(seg.matrix)]];
    const double l2 = options_.decay == MuonDecay::l2 ? slot.weight_decay : 0;
    passes[{l2, slot.param.frozen()}].push_back({slot.momentum.data<float>() + seg.local,
                          slot.param.grad_shard().data<float>() + seg.local,
                          slot.param.shard().data<float>() + seg.local, seg.count, seg.at});
  }
  for (auto& [kind, segments] : passes)
    ops::muon_momentum(compute, packed, segments, options_.momentum, options_.nesterov,
                       static_cast<float>(kind.first), kind.second ? skip_frozen_ : skip_);
}

Tensor MuonTeam::refined(Stream& compute, const Tensor& packed, const MuonChunk& chunk, bool cut) {
  if (!refinement_) return packed;
  Tensor values = packed;
  if (packed.dtype() != DType::f32) {
    values = make({packed.numel()}, DType::f32, "muon matrices");
    ops::cast(compute, values, packed);
  }
  // First matrices that tensor parallelism cuts, whose sums also cover its ranks; then matrices that each
  // rank has of its own (heads that are assigned whole). State of frozen ones is unchanged.
  for (const auto& [shared, frozen] : {std::pair(true, false), {true, true}, {false, false}, {false, true}}) {
    const auto is_chosen = [&, shared = shared, frozen = frozen](int m) {
      const auto i = static_cast<size_t>(m);
      return (matrices_[i].tensor_dim >= 0) == shared && slots_[slot_of_[i]].param.frozen() == frozen;
    };
    std::vector<int> present;
    for (const int m : chunk.matrices)
      if (is_chosen(m)) present.push_back(m);
    if (present.empty()) continue;
    std::vector<MuonPiece> pieces;
    for (auto& seg : chunk.updates)
      if (is_chosen(seg.matrix))
        pieces.push_back({slots_[slot_of_[static_cast<size_t>(seg.matrix)]].item, seg.matrix, seg.first, seg.local,
                          seg.at, seg.count});
    const auto sum = [&, shared = shared](const Tensor& t) {
      // Over the ranks that hold pieces of the rows, then over those that hold parts of the columns.
      if (cut && cells_comm_) cells_comm_->all_reduce(compute, t.unowned_view());
      if (shared && tensor_comm_) tensor_comm_->all_reduce(compute, t.unowned_view());
    };
    const int tensor_rank = shared && tensor_comm_ ? tensor_comm_->rank() : 0;
    refinement_->refine(compute, {values, matrices_, present, pieces, tensor_rank, sum}, frozen ? skip_frozen_ : skip_);
  }
  return values;
}

void MuonTeam::update(Stream& compute, const Tensor& packed, const MuonChunk& chunk, bool cut, double lr) {
  const Tensor values = refined(compute, packed, chunk, cut);
  std::vector<UpdateSegment> updates;
  updates.reserve(chunk.updates.size());
  for (auto& seg : chunk.updates) {
    const size_t i = static_cast<size_t>(seg.matrix);
    const Slot& slot = slots_[slot_of_[i]];
    if (slot.param.frozen()) continue;
    const double rate = lr * slot.lr_factor;
    // A refinement determines the scale itself.
    const double scale =
        refinement_ ? 1 : update_scale(options_, matrices_[i].whole_rows(), matrices_[i].whole_cols());
    updates.push_back({slot.param.shard().data<float>() + seg.local, seg.count, seg.at,
                       static_cast<float>(decay_factor(options_.decay, rate, slot.weight_decay)),
                       static_cast<float>(-rate * scale)});
  }
  if (!updates.empty()) ops::muon_update(compute, updates, values, skip_);
}

void MuonTeam::finish_batches(Stream& compute, const MuonChunk& chunk, const Tensor& packed, bool cut,
                              double lr) {
  const int64_t total = packed.numel();
  const Tensor results = make({total}, DType::f32, "muon matrices");
  int64_t at = 0;
  for (auto& b : chunk.batches) {
    const int64_t n = b.elements();
    const Shape shape = {static_cast<int64_t>(b.matrices.size()), b.rows, b.cols};
    Tensor in;
    // A batch that is contiguous in the message and in f32 needs no copy.
    if (b.unpack.empty() && packed.dtype() == DType::f32) {
      in = packed.flat(at, at + n).view(shape);
    } else {
      in = make(shape, DType::f32, "muon matrices");
      if (b.unpack.empty()) {
        ops::cast(compute, in.flat(0, n), packed.flat(at, at + n));
      } else {
        ops::copy_segments(compute, in.flat(0, n), packed, b.unpack);
      }
    }
    orthogonalize(compute, results.flat(at, at + n).view(shape), in, b);
    at += n;
  }
  Tensor rounded = results;
  if (options_.payload != DType::f32) {  // the same rounding as in messages
    rounded = message(total, options_.payload);
    ops::cast(compute, rounded, results);
  }
  update(compute, rounded, chunk, cut, lr);
}

void MuonTeam::run_local(Stream& compute, const MuonChunk& chunk, double lr) {
  const Tensor packed = message(chunk.in.send_total, incoming(options_.payload));
  pack_momentum(compute, packed, chunk);
  finish_batches(compute, chunk, packed, false, lr);
}

void MuonTeam::run_gathered(Stream& compute, const MuonChunk& chunk, double lr) {
  const auto& counts = chunk.in.send;
  const int64_t mine = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
  const Tensor packed = message(chunk.in.recv_total, incoming(options_.payload));
  pack_momentum(compute, packed, chunk);
  gram_comm_->all_gather_v(compute, packed.unowned_view(), counts,
                           packed.flat(mine, mine + counts[static_cast<size_t>(rank_)]).unowned_view());
  finish_batches(compute, chunk, packed, true, lr);
}

MuonTeam::InFlight MuonTeam::send_in(Stream& compute, const MuonChunk& chunk) {
  InFlight f{message(chunk.in.send_total, incoming(options_.payload)),
             message(chunk.in.recv_total, incoming(options_.payload)),
             {}};
  pack_momentum(compute, f.send, chunk);
  follow_compute(*streams_.in);
  in_comm_->all_to_all_v(*streams_.in, f.recv.unowned_view(), chunk.in.recv, f.send.unowned_view(),
                         chunk.in.send);
  f.arrived = streams_.in->record();
  return f;
}

MuonTeam::InFlight MuonTeam::send_out(Stream& compute, const MuonChunk& chunk, const InFlight& in) {
  compute.wait(in.arrived);
  InFlight f{
      message(chunk.out.send_total, options_.payload), message(chunk.out.recv_total, options_.payload), {}};
  for (auto& b : chunk.batches) {
    if (b.gram()) continue;
    const int64_t n = b.elements();
    const Shape shape = {static_cast<int64_t>(b.matrices.size()), b.rows, b.cols};
    const Tensor matrices = make(shape, DType::f32, "muon matrices");
    const Tensor results = make(shape, DType::f32, "muon matrices");
    ops::copy_segments(compute, matrices.flat(0, n), in.recv, b.unpack);
    orthogonalize(compute, results, matrices, b);
    ops::copy_segments(compute, f.send, results.flat(0, n), b.pack);
  }
  if (chunk.gram.any) run_gram(compute, chunk, in.recv, f.send);
  follow_compute(*streams_.out);
  out_comm_->all_to_all_v(*streams_.out, f.recv.unowned_view(), chunk.out.recv, f.send.unowned_view(),
                          chunk.out.send);
  f.arrived = streams_.out->record();
  return f;
}

void MuonTeam::finish(Stream& compute, const MuonChunk& chunk, InFlight out, double lr) {
  compute.wait(out.arrived);
  update(compute, out.recv, chunk, true, lr);
}

Tensor MuonTeam::copy_statuses(Stream& compute) {
  Tensor host = Tensor::host(device_, status_.shape(), DType::i32, MemoryClass::scratch, "metrics");
  ops::copy(compute, host, status_);
  return host;
}

std::vector<std::pair<std::string, MatrixStatus>> MuonTeam::report(const Tensor& statuses) const {
  const int32_t* host = statuses.data<int32_t>();
  std::vector<std::pair<std::string, MatrixStatus>> found;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (status_at_[i] < 0) continue;
    const auto status = static_cast<MatrixStatus>(host[status_at_[i]]);
    if (status != MatrixStatus::fine && plan_.entries[i].owners[0] == rank_ &&
        reports(slots_[slot_of_[i]].param))
      found.emplace_back(matrices_[i].label(), status);
  }
  return found;
}

bool MuonTeam::reports(const Parameter& p) const {
  const ParamGroup& group = p.group();
  if (group.replicated()) return true;
  const ShardAxes& axes = group.axes();
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (auto& d : group.mesh().dims()) {
    if (in(axes.state_split, d.name) || (plan_.copies > 1 && in(axes.state_repeated, d.name))) continue;
    // Along a dimension that deals matrices of a stack out, ranks have different matrices.
    const auto& t = p.tensor_shard();
    const bool dealt = t && t->mesh_dim == d.name && t->dim < static_cast<int>(p.shape().size()) - 2;
    if (!dealt && group.mesh().coordinate(d.name) != 0) return false;
  }
  return true;
}

std::string MuonTeam::describe() const {
  const ParamGroup& group = slots_.front().param.group();
  const ShardAxes& axes = group.axes();
  return fmt::format(
      "{} ... {}; mesh {}, sharded over {}", slots_.front().param.name(), slots_.back().param.name(),
      group.mesh().describe(),
      axes.state_split.empty() ? "nothing" : fmt::format("{}", fmt::join(axes.state_split, ", ")));
}

}  // namespace sherd
