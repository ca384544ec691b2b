#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/dtensor/detail/even_shard.h>
#include <sherd/dtensor/detail/strided_copy.h>
#include <sherd/dtensor/dtensor.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

constexpr const char* kName = "redistribute";

/// Changes placements one mesh dimension at a time. A step that shards or unshards a tensor dimension needs
/// that no mesh dimension further out shards the same one, because those cut the pieces that it makes.
class Walk {
 public:
  Walk(Stream& stream, const DeviceMesh& mesh, const Shape& global, std::vector<Placement> placements,
       Tensor local)
      : stream_(stream),
        mesh_(mesh),
        global_(global),
        now_(std::move(placements)),
        local_(std::move(local)) {}

  /// Shard to Replicate.
  void gather(size_t i) {
    const int d = now_[i].dim;
    now_[i] = Replicate();
    if (ranks(i) == 1) return;
    const Shape shape = local_shape();
    const Tensor packed = empty({numel_of(shape)});  // pieces one after another, in rank order
    std::vector<int64_t> counts(ranks(i));
    for (int r = 0; r < ranks(i); ++r) counts[r] = block(shape, d, i, r).numel();
    if (counts.front() == counts.back())
      comm(i).all_gather(stream_, packed, local_.flat());
    else
      comm(i).all_gather_v(stream_, packed, counts, local_.flat());
    if (block(shape, d, i, 0).blocks <= 1) return become(packed.view(shape));
    const Tensor whole = empty(shape);
    int64_t at = 0;
    for (int r = 0; r < ranks(i); ++r) {
      const DimBlock b = block(shape, d, i, r);
      strided_copy(stream_, whole, b.where, packed, {at, b.run}, b.blocks, b.run);
      at += b.numel();
    }
    become(whole);
  }

  /// Shard of one tensor dimension to Shard of another.
  void exchange(size_t i, int to) {
    const int from = now_[i].dim;
    if (ranks(i) == 1) return relabel(i, Shard(to));
    const Shape old_shape = local_.shape();
    relabel(i, Shard(to));
    const Shape new_shape = local_shape();
    const Tensor sent = empty({numel_of(old_shape)}), received = empty({numel_of(new_shape)}),
                 piece = empty(new_shape);
    std::vector<int64_t> send_counts(ranks(i)), recv_counts(ranks(i));
    int64_t at = 0;
    for (int r = 0; r < ranks(i); ++r) {
      const DimBlock b = block(old_shape, to, i, r);
      strided_copy(stream_, sent, {at, b.run}, local_, b.where, b.blocks, b.run);
      at += send_counts[r] = b.numel();
      recv_counts[r] = block(new_shape, from, i, r).numel();
    }
    comm(i).all_to_all_v(stream_, received, recv_counts, sent, send_counts);
    at = 0;
    for (int r = 0; r < ranks(i); ++r) {
      const DimBlock b = block(new_shape, from, i, r);
      strided_copy(stream_, piece, b.where, received, {at, b.run}, b.blocks, b.run);
      at += b.numel();
    }
    become(piece);
  }

  /// Replicate to Shard.
  void cut(size_t i, int d) {
    const DimBlock b = block(local_.shape(), d, i, comm(i).rank());
    relabel(i, Shard(d));
    if (ranks(i) == 1) return;
    const Tensor piece = empty(local_shape());
    strided_copy(stream_, piece, {0, b.run}, local_, b.where, b.blocks, b.run);
    become(piece);
  }

  /// Partial to Replicate.
  void reduce(size_t i) {
    relabel(i, Replicate());
    if (ranks(i) == 1) return;
    const Tensor sum = empty(local_.shape());
    ops::copy(stream_, sum, local_);
    comm(i).all_reduce(stream_, sum);
    become(sum);
  }

  /// Partial to Shard.
  void reduce_to_shard(size_t i, int d) {
    const DimBlock first = block(local_.shape(), d, i, 0);
    if (ranks(i) == 1 || first.blocks > 1 || local_.size(d) % ranks(i) != 0) {
      reduce(i);
      return cut(i, d);
    }
    relabel(i, Shard(d));
    const Tensor piece = empty(local_shape());
    comm(i).reduce_scatter(stream_, piece.flat(), local_.flat());
    become(piece);
  }

  /// Replicate to Partial.
  void owe(size_t i) {
    relabel(i, Partial());
    if (comm(i).rank() == 0) return;
    const Tensor zeros = empty(local_.shape());
    ops::fill(stream_, zeros, 0);
    become(zeros);
  }

  const std::vector<Placement>& now() const { return now_; }

  /// The result. Memory that the queued work still uses is kept where the stream alone does not order its
  /// reuse.
  Tensor finish() {
    if (&stream_ != &stream_.device().compute() && !used_.empty())
      stream_.submit({kName, WorkKind::copy}, [kept = std::move(used_)](ExecutionContext& context) {
        context.keep(std::make_shared<decltype(kept)>(kept));
      });
    return local_;
  }

 private:
  Communicator& comm(size_t i) const { return *mesh_.comm(mesh_.dims()[i].name); }
  int ranks(size_t i) const { return mesh_.dims()[i].size; }
  Shape local_shape() const { return even_shard(mesh_, global_, now_).size; }
  void relabel(size_t i, Placement p) { now_[i] = p; }

  /// Rank r's chunk of dimension d of a tensor of `shape`, which is whole along mesh dimension i.
  DimBlock block(const Shape& shape, int d, size_t i, int r) const {
    const EvenChunk c = even_chunk(shape[d], ranks(i), r);
    return dim_block(shape, d, c.offset, c.size);
  }

  Tensor empty(Shape shape) {
    used_.push_back(
        Tensor::empty(stream_.device(), std::move(shape), local_.dtype(), MemoryClass::message, kName));
    return used_.back();
  }

  void become(Tensor t) {
    used_.push_back(local_);
    local_ = std::move(t);
  }

  Stream& stream_;
  const DeviceMesh& mesh_;
  const Shape& global_;
  std::vector<Placement> now_;
  Tensor local_;
  std::vector<Tensor> used_;
};

}  // namespace

DTensor DTensor::redistribute(Stream& stream, std::vector<Placement> to) const {
  if (ragged()) return distribute(stream, mesh_, full_tensor(stream), std::move(to));
  check_placements(mesh_, global_, to);
  follow_compute(stream);
  const std::vector<Placement>& from = placements_;
  const size_t n = from.size();
  // True when a mesh dimension inside of i starts or stops sharding the tensor dimension that `shard` names.
  const auto changes_inside = [&](size_t i, Placement shard) {
    for (size_t j = i + 1; j < n; ++j)
      if (from[j] != to[j] && (from[j] == shard || to[j] == shard)) return true;
    return false;
  };

  Walk walk(stream, mesh_, global_, from, local_);
  for (size_t i = 0; i < n; ++i) {  // undo shards, outermost first
    if (!from[i].is_shard() || (from[i] == to[i] && !changes_inside(i, from[i]))) continue;
    if (to[i].is_shard() && to[i] != from[i] && !changes_inside(i, to[i]))
      walk.exchange(i, to[i].dim);
    else
      walk.gather(i);
  }
  for (size_t i = n; i-- > 0;) {  // sum and shard, innermost first
    const Placement now = walk.now()[i];
    if (now == to[i]) continue;
    if (to[i].is_partial())
      walk.owe(i);
    else if (now.is_replicate())
      walk.cut(i, to[i].dim);
    else if (to[i].is_replicate())
      walk.reduce(i);
    else
      walk.reduce_to_shard(i, to[i].dim);
  }
  return from_local(mesh_, global_, std::move(to), walk.finish());
}

}  // namespace sherd
