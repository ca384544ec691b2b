// The part of a Muon step between the messages: one batch of matrices, whole or in tensor-parallel or gram
// pieces.
#include <sherd/optim/whole/detail/team.h>

#include <numeric>

namespace sherd {
namespace {

/// Steps between two formations of X: the standard form is the gram form restarted after every step.
std::vector<int> round_ends(const OrthogonalizeOptions& o) {
  const int steps = static_cast<int>(o.steps.size());
  std::vector<int> ends = o.restarts;
  if (o.form == IterationForm::standard) {
    ends.resize(static_cast<size_t>(steps - 1));
    std::iota(ends.begin(), ends.end(), 1);
  }
  ends.push_back(steps);
  return ends;
}

}  // namespace

void MuonTeam::orthogonalize(Stream& compute, const Tensor& out, const Tensor& in, const MuonBatch& batch) {
  const Tensor status = statuses_of(batch);
  if (batch.tensor_dim < 0) {
    ops::orthogonalize(compute, out, in, status, options_.orthogonalize);
  } else if (options_.tensor == MuonTensorMode::duplicated) {
    duplicated(compute, out, in, batch, status);
  } else {
    gram_form(compute, {{in, out, status, batch.tensor_dim == 0}},
              [&](const Tensor& gram) { tensor_comm_->all_reduce(compute, gram.unowned_view()); });
  }
}

Tensor MuonTeam::statuses_of(const MuonBatch& batch) const {
  return status_.flat(batch.status_at, batch.status_at + static_cast<int64_t>(batch.matrices.size()));
}

void MuonTeam::duplicated(Stream& compute, const Tensor& out, const Tensor& in, const MuonBatch& batch,
                          const Tensor& status) {
  const int64_t count = in.size(0), rows = batch.rows, cols = batch.cols, parts = batch.tensor_parts;
  const bool by_rows = batch.tensor_dim == 0;
  const int64_t all_rows = by_rows ? rows * parts : rows, all_cols = by_rows ? cols : cols * parts;
  const int64_t n = in.numel();
  const Tensor gathered = message(parts * n, DType::f32);
  tensor_comm_->all_gather(compute, gathered.unowned_view(), in.flat(0, n).unowned_view());

  // Rows of a part are `run` elements that stay together in the whole matrix.
  std::vector<CopySegment> to_whole, to_local;
  const int64_t run = by_rows ? rows * cols : cols, runs = by_rows ? 1 : rows;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t r = 0; r < runs; ++r) {
        const int64_t local = b * rows * cols + r * run;
        const int64_t whole = b * all_rows * all_cols + (by_rows ? part * run : r * all_cols + part * cols);
        to_whole.push_back({whole, part * n + local, run});
        if (part == tensor_comm_->rank()) to_local.push_back({local, whole, run});
      }
    }
  }
  const Tensor whole = make({count, all_rows, all_cols}, DType::f32, "muon matrices");
  const Tensor result = make({count, all_rows, all_cols}, DType::f32, "muon matrices");
  ops::copy_segments(compute, whole.flat(0, whole.numel()), gathered, to_whole);
  ops::orthogonalize(compute, result, whole, status, options_.orthogonalize);
  ops::copy_segments(compute, out.flat(0, n), result.flat(0, result.numel()), to_local);
}

void MuonTeam::gram_form(Stream& compute, const std::vector<GramTask>& tasks,
                         const std::function<void(const Tensor&)>& sum) {
  std::vector<int64_t> begin = {0};
  std::vector<Tensor> x, next;
  std::vector<Shape> square;
  for (auto& t : tasks) {
    const int64_t side = t.contract_rows ? t.x.size(2) : t.x.size(1);
    square.push_back({t.x.size(0), side, side});
    begin.push_back(begin.back() + numel_of(square.back()));
    x.push_back(t.x);
    next.push_back(t.out);
  }
  const Tensor grams = make({begin.back()}, DType::f32, "muon matrices");
  int first = 0;
  for (const int last : round_ends(options_.orthogonalize)) {
    const auto gram = [&](size_t k) { return grams.flat(begin[k], begin[k + 1]).view(square[k]); };
    for (size_t k = 0; k < tasks.size(); ++k)
      ops::gram_product(compute, gram(k), x[k], tasks[k].contract_rows);
    sum(grams);
    for (size_t k = 0; k < tasks.size(); ++k) {
      const Tensor q = make(square[k], DType::f32, "muon matrices");
      ops::gram_iterate(compute, q, gram(k), tasks[k].status, first, last, options_.orthogonalize);
      ops::gram_apply(compute, next[k], x[k], q, tasks[k].contract_rows);
      std::swap(x[k], next[k]);
    }
    first = last;
  }
  for (size_t k = 0; k < tasks.size(); ++k)
    if (x[k].raw() != tasks[k].out.raw()) ops::copy(compute, tasks[k].out, x[k]);
}

void MuonTeam::run_gram(Stream& compute, const MuonChunk& chunk, const Tensor& received, const Tensor& sent) {
  std::vector<GramTask> tasks;
  for (auto& b : chunk.batches) {
    if (!b.gram()) continue;
    const Shape shape = {1, b.rows, b.cols};
    tasks.push_back({make(shape, DType::f32, "muon matrices"), make(shape, DType::f32, "muon matrices"),
                     statuses_of(b), true});
    ops::copy_segments(compute, tasks.back().x.flat(0, b.elements()), received, b.unpack);
  }
  // Ranks without a task take part in the sums, too: the team's collectives come in one order.
  gram_form(compute, tasks, [&](const Tensor& grams) { sum_over_owners(compute, grams, chunk.gram); });
  size_t k = 0;
  for (auto& b : chunk.batches) {
    if (!b.gram()) continue;
    ops::copy_segments(compute, sent, tasks[k].out.flat(0, b.elements()), b.pack);
    ++k;
  }
}

void MuonTeam::sum_over_owners(Stream& compute, const Tensor& grams, const GramExchange& g) {
  const auto floats = [&](int64_t elements) { return message(elements, DType::f32); };
  const Tensor partial_out = floats(g.partial.send_total), partial_in = floats(g.partial.recv_total);
  ops::copy_segments(compute, partial_out, grams, g.pack);
  gram_comm_->all_to_all_v(compute, partial_in.unowned_view(), g.partial.recv, partial_out.unowned_view(),
                           g.partial.send);
  const Tensor sums = floats(g.sums_total);
  for (auto& s : g.sums) {
    if (s.count == 0) continue;
    const Tensor to = sums.flat(s.to, s.to + s.count);
    ops::copy(compute, to, partial_in.flat(s.from[0], s.from[0] + s.count));
    for (size_t k = 1; k < s.from.size(); ++k)
      ops::scaled_add(compute, to, 1.0f, partial_in.flat(s.from[k], s.from[k] + s.count));
  }
  const Tensor whole_out = floats(g.whole.send_total), whole_in = floats(g.whole.recv_total);
  ops::copy_segments(compute, whole_out, sums, g.spread);
  gram_comm_->all_to_all_v(compute, whole_in.unowned_view(), g.whole.recv, whole_out.unowned_view(),
                           g.whole.send);
  ops::copy_segments(compute, grams, whole_in, g.unpack);
}

}  // namespace sherd
