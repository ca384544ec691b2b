#include <sherd/nn/context_parallel.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <sherd/kernels/copy/copy.h>
#include <sherd/nn/detail/memory.h>
#include <sherd/nn/function.h>

namespace sherd::nn {
namespace {

using detail::like;

// Nothing of an x without elements.
Tensor from(const Tensor& x, int64_t element) { return x.flat(std::min(element, x.numel()), x.numel()); }

/// Layout of one exchange. Collectives get unowned views: all memory is used on the compute stream alone.
struct Exchange {
  ContextParallel ranks;
  int64_t seq, batch;
  std::vector<int64_t> blocks;

  int64_t width() const { return std::reduce(blocks.begin(), blocks.end()); }
  int64_t share() const { return width() / ranks.size(); }
  int64_t rows_of(int rank) const {
    return batch * (ranks.begin_of(seq, rank + 1) - ranks.begin_of(seq, rank));
  }
  int64_t here() const { return rows_of(ranks.rank()); }

  /// Calls copy(part, columns, first column of the part, first column of the whole) for each rank's share of each block.
  template <class Copy>
  void for_shares(Copy copy) const {
    int64_t begin = 0, at = 0;
    for (const int64_t block : blocks) {
      const int64_t columns = block / ranks.size();
      for (int r = 0; r < ranks.size(); ++r) copy(r * here(), columns, at, begin + r * columns);
      begin += block;
      at += columns;
    }
  }

  std::vector<int64_t> counts(bool equal) const {
    std::vector<int64_t> all;
    for (int r = 0; r < ranks.size(); ++r) all.push_back((equal ? here() : rows_of(r)) * share());
    return all;
  }

  /// Rows by rank, then sequence, then position, to or from rows by sequence, then position.
  void by_position(Stream& s, const Tensor& out, const Tensor& x, bool from_ranks) const {
    const int64_t w = x.size(1);
    for (int r = 0; r < ranks.size(); ++r) {
      const int64_t begin = ranks.begin_of(seq, r), run = rows_of(r) / batch * w;
      const int64_t of_rank = batch * begin * w, of_sequence = begin * w;
      if (from_ranks)
        ops::strided_copy(s, from(out, of_sequence), seq * w, from(x, of_rank), run, batch, run);
      else
        ops::strided_copy(s, from(out, of_rank), run, from(x, of_sequence), seq * w, batch, run);
    }
  }

  void spread(Stream& s, const Tensor& out, const Tensor& x) const {
    const Tensor sent = like(x, {ranks.size() * here(), share()});
    for_shares([&](int64_t part, int64_t columns, int64_t at, int64_t begin) {
      ops::strided_copy(s, from(sent, part * share() + at), share(), from(x, begin), width(), here(),
                        columns);
    });
    const Tensor received = batch == 1 ? out : like(out);
    ranks.comm->all_to_all_v(s, received.unowned_view(), counts(false), sent.unowned_view(), counts(true));
    if (batch > 1) by_position(s, out, received, true);
  }
  Tensor spread(Stream& s, const Tensor& x) const {
    Tensor out = like(x, {batch * seq, share()});
    spread(s, out, x);
    return out;
  }

  void collect(Stream& s, const Tensor& out, const Tensor& x) const {
    const Tensor sent = batch == 1 ? x : like(x), received = like(x, {ranks.size() * here(), share()});
    if (batch > 1) by_position(s, sent, x, false);
    ranks.comm->all_to_all_v(s, received.unowned_view(), counts(true), sent.unowned_view(), counts(false));
    for_shares([&](int64_t part, int64_t columns, int64_t at, int64_t begin) {
      ops::strided_copy(s, from(out, begin), width(), from(received, part * share() + at), share(), here(),
                        columns);
    });
  }
  Tensor collect(Stream& s, const Tensor& x) const {
    Tensor out = like(x, {here(), width()});
    collect(s, out, x);
    return out;
  }
};

Exchange exchange_of(const char* function, const SequenceSlice& slice, const std::vector<int64_t>& blocks,
                     int64_t batch) {
  slice.ranks.own_positions(slice.seq);  // refuses what is too short
  for (const int64_t block : blocks)
    if (block % slice.ranks.size() != 0)
      throw InvalidArgument(fmt::format("SequenceSlice::{}: {} ranks do not divide a block of {} columns",
                                        function, slice.ranks.size(), block));
  return {slice.ranks, slice.seq, batch, blocks};
}

void note_whole_sequences(const Var& x) {
  if (x.tape() == nullptr) return;
  if (Unit* const unit = x.tape()->running_unit()) unit->note_whole_sequences();
}

void require_shape(const char* function, const Tensor& x, const Shape& wanted, const Exchange& e) {
  if (x.shape() != wanted)
    throw ShapeMismatch(fmt::format(
        "SequenceSlice::{}: the value is {}, must be {}: {} sequences of {} positions over {} ranks",
        function, to_string(x.shape()), to_string(wanted), e.batch, e.seq, e.ranks.size()));
}

}  // namespace

ContextParallel ContextParallel::of(const DeviceMesh& mesh, const std::string& dim) {
  if (!mesh.has(dim) || mesh.size(dim) == 1) return {};
  ContextParallel ranks{mesh.comm(dim)->clone()};
  ranks.comm->connect_pairs();
  return ranks;
}

std::pair<int64_t, int64_t> ContextParallel::own_positions(int64_t seq) const {
  if (seq < size())
    throw InvalidArgument(
        fmt::format("sequences of {} positions over {} context-parallel ranks: each needs at least one; use "
                    "longer sequences or fewer ranks",
                    seq, size()));
  return {begin_of(seq, rank()), begin_of(seq, rank() + 1)};
}

Tensor ContextParallel::slice(const Tensor& x) const {
  if (size() == 1) return x;
  if (x.dim() != 2)
    throw ShapeMismatch(
        fmt::format("ContextParallel::slice(): the value is {}, must be [batch, seq]", to_string(x.shape())));
  const int64_t seq = x.size(1);
  const auto [begin, end] = own_positions(seq);
  const int64_t here = end - begin;
  Tensor out = like(x, {x.size(0), here});
  if (out.numel() > 0)
    ops::strided_copy(x.device().compute(), out, here, from(x, begin), seq, x.size(0), here);
  return out;
}

Tensor ContextParallel::whole(Stream& s, const Tensor& rows, int64_t seq) const {
  if (size() == 1) return rows;
  const int64_t own = begin_of(seq, rank() + 1) - begin_of(seq, rank());
  const Exchange e{*this, seq, rows.size(0) / own, {}};
  std::vector<int64_t> counts;
  for (int r = 0; r < size(); ++r) counts.push_back(e.rows_of(r) * rows.size(1));
  const Tensor all = like(rows, {e.batch * seq, rows.size(1)});
  comm->all_gather_v(s, all.unowned_view(), counts, rows.unowned_view());
  if (e.batch <= 1) return all;
  Tensor out = like(all);
  e.by_position(s, out, all, true);
  return out;
}

Var SequenceSlice::to_heads(const Var& x, const std::vector<int64_t>& blocks, int64_t batch) const {
  if (!cuts()) return x;
  const Exchange e = exchange_of("to_heads", *this, blocks, batch);
  require_shape("to_heads", x.value(), {e.here(), e.width()}, e);
  note_whole_sequences(x);
  return function(
      {x}, [&](Stream& s) { return e.spread(s, x.value()); },
      [e, device = &x.device(), dtype = x.dtype()](Stream& s,
                                                   const BackwardCall& call) -> std::vector<Gradient> {
        return {e.collect(s, call.output().tensor(*device, {e.batch * e.seq, e.share()}, dtype))};
      });
}

Var SequenceSlice::to_rows(const Var& x, const std::vector<int64_t>& blocks, int64_t batch) const {
  if (!cuts()) return x;
  const Exchange e = exchange_of("to_rows", *this, blocks, batch);
  require_shape("to_rows", x.value(), {e.batch * e.seq, e.share()}, e);
  return function(
      {x}, [&](Stream& s) { return e.collect(s, x.value()); },
      [e, device = &x.device(), dtype = x.dtype()](Stream& s,
                                                   const BackwardCall& call) -> std::vector<Gradient> {
        return {e.spread(s, call.output().tensor(*device, {e.here(), e.width()}, dtype))};
      });
}

void SequenceSlice::to_heads(Stream& s, const Tensor& out, const Tensor& x,
                             const std::vector<int64_t>& blocks, int64_t batch) const {
  const Exchange e = exchange_of("to_heads", *this, blocks, batch);
  require_shape("to_heads", x, {e.here(), e.width()}, e);
  require_shape("to_heads", out, {batch * seq, e.share()}, e);
  e.spread(s, out, x);
}

void SequenceSlice::to_rows(Stream& s, const Tensor& out, const Tensor& x, const std::vector<int64_t>& blocks,
                            int64_t batch) const {
  const Exchange e = exchange_of("to_rows", *this, blocks, batch);
  require_shape("to_rows", x, {batch * seq, e.share()}, e);
  require_shape("to_rows", out, {e.here(), e.width()}, e);
  e.collect(s, out, x);
}

}  // namespace sherd::nn
