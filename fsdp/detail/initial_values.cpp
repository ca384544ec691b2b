#include <sherd/fsdp/detail/initial_values.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <sherd/fsdp/detail/orthonormal.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

// Elements that the host computes at a time.
constexpr int64_t kChunk = int64_t{1} << 20;

// Rows of a whole matrix that are orthogonal by themselves, in the order of that matrix.
using RowList = std::vector<int64_t>;

// Data that a rule needs of a parameter or buffer.
struct Target {
  const std::string& name;
  const Init& init;
  Shape whole;
  std::vector<RowList> blocks = {};  // none: every matrix as a whole
};

struct MatrixShape {
  int64_t rows = 0, columns = 0;
  int64_t size() const { return rows * columns; }
};
MatrixShape matrix_of(const Shape& whole) {
  if (whole.size() == 3) return {whole[1], whole[2]};  // each of a stack
  return {whole[0], row_size(whole)};
}

// The rows of the whole matrix that the local declared blocks hold. Tensor-parallel pieces are listed
// together, so that every cut has the same blocks: a block that one rank holds whole is one list, of other
// blocks every piece has some rows.
std::vector<RowList> whole_blocks(const Parameter& p) {
  std::vector<RowList> lists;
  const RowBlocks& blocks = p.row_blocks();
  const int row_dim = p.shape().size() == 3 ? 1 : 0;
  const bool cut = p.tensor_shard() && p.tensor_shard()->dim == row_dim;
  const int parts = cut ? p.tensor_shard()->parts : 1;
  const bool dealt = std::any_of(blocks.begin(), blocks.end(), [](const RowBlock& b) { return b.dealt; });
  const int64_t rows = p.shape()[static_cast<size_t>(row_dim)];
  for (int part = 0; part < parts; ++part) {
    const TensorShard shard{.mesh_dim = {}, .dim = 0, .parts = parts, .index = part};
    for (size_t b = 0; b < blocks.size(); ++b) {
      const size_t number = dealt ? static_cast<size_t>(part) * blocks.size() + b : b;
      lists.resize(std::max(lists.size(), number + 1));
      for (int64_t i = 0; i < blocks[b].rows(); ++i) {
        const ParamIndex row(blocks[b].row(i));
        const auto runs = global_runs({rows, 1}, blocks, shard, {row, row + 1});
        lists[number].push_back(runs.front().global.value);
      }
    }
  }
  return lists;
}

// Orthogonal values of the matrices of one target, block by block as they are asked for; those of one matrix
// are kept.
class Orthogonal {
 public:
  Orthogonal(Stream& stream, const Target& target, uint64_t seed)
      : stream_(stream),
        target_(target),
        seed_(seed),
        shape_(matrix_of(target.whole)),
        blocks_(target.blocks) {
    if (blocks_.empty()) {
      blocks_.emplace_back();
      for (int64_t r = 0; r < shape_.rows; ++r) blocks_[0].push_back(r);
    }
    place_.resize(static_cast<size_t>(shape_.rows));
    for (size_t b = 0; b < blocks_.size(); ++b)
      for (size_t i = 0; i < blocks_[b].size(); ++i) place_[static_cast<size_t>(blocks_[b][i])] = {b, i};
  }

  float at(int64_t index) {
    if (const int64_t matrix = index / shape_.size(); matrix != matrix_) {
      matrix_ = matrix;
      values_.clear();
    }
    const int64_t in = index % shape_.size();
    const auto [block, row] = place_[static_cast<size_t>(in / shape_.columns)];
    auto [found, fresh] = values_.try_emplace(block);
    if (fresh) found->second = compute(blocks_[block]);
    return found
        ->second[row * static_cast<size_t>(shape_.columns) + static_cast<size_t>(in % shape_.columns)];
  }

 private:
  // Returns a block's values, orthonormalized normal ones. These depend on the elements' own indices: every
  // rank that needs the block computes the same bits.
  std::vector<float> compute(const RowList& list) {
    const auto rows = static_cast<int64_t>(list.size()), columns = shape_.columns;
    const Tensor drawn =
        Tensor::empty(stream_.device(), {rows, columns}, DType::f32, MemoryClass::scratch, "initial values");
    for (int64_t r = 0; r < rows; ++r)
      ops::random_normal(stream_, drawn.rows(r, r + 1),
                         matrix_ * shape_.size() + list[static_cast<size_t>(r)] * columns, seed_,
                         target_.name, 0, 1);
    std::vector<float> values = ops::to_floats(stream_, drawn);
    const bool wide = rows <= columns;
    // Element (i, k) of the vectors that become orthonormal: rows, or the columns of a tall matrix.
    const int64_t vectors = std::min(rows, columns), length = std::max(rows, columns);
    const auto from = [&](int64_t i, int64_t k) {
      return static_cast<size_t>(wide ? i * columns + k : k * columns + i);
    };
    std::vector<double> work(values.size());
    for (int64_t i = 0; i < vectors; ++i)
      for (int64_t k = 0; k < length; ++k)
        work[static_cast<size_t>(i * length + k)] = double{values[from(i, k)]};
    make_orthonormal(work, vectors, length);
    for (int64_t i = 0; i < vectors; ++i)
      for (int64_t k = 0; k < length; ++k)
        values[from(i, k)] =
            static_cast<float>(target_.init.gain * work[static_cast<size_t>(i * length + k)]);
    return values;
  }

  Stream& stream_;
  const Target& target_;
  uint64_t seed_;
  MatrixShape shape_;
  std::vector<RowList> blocks_;
  std::vector<std::pair<size_t, size_t>> place_;  // of a row: its block, and its number there
  int64_t matrix_ = -1;
  std::map<size_t, std::vector<float>> values_;  // of matrix_, by block
};

// Writes the values of `runs` to `piece`, whose first element has local index `base`. Random values depend on
// the global index, so the cut into runs does not change them.
void fill_runs(Stream& stream, const Target& target, std::span<const GlobalRun> runs, ParamIndex base,
               const Tensor& piece, uint64_t seed) {
  const Init& init = target.init;
  std::optional<Orthogonal> orthogonal;
  if (init.kind == InitKind::orthogonal) orthogonal.emplace(stream, target, seed);
  std::vector<float> values;
  for (const GlobalRun& run : runs) {
    const int64_t first = run.global.value, at = run.local - base;
    const Tensor part = piece.flat(at, at + run.count);
    switch (init.kind) {
      case InitKind::normal: {
        const float stddev = init.fan == Fan::none
                                 ? init.stddev
                                 : static_cast<float>(init.gain / std::sqrt(fan_of(target.whole, init.fan)));
        ops::random_normal(stream, part, first, seed, target.name, init.mean, stddev);
        break;
      }
      case InitKind::uniform: {
        const float bound =
            init.fan == Fan::none
                ? 0
                : static_cast<float>(init.gain * std::sqrt(3 / fan_of(target.whole, init.fan)));
        if (init.fan == Fan::none) {
          ops::random_uniform(stream, part, first, seed, target.name, init.low, init.high);
        } else {
          ops::random_uniform(stream, part, first, seed, target.name, -std::abs(bound), std::abs(bound));
        }
        break;
      }
      case InitKind::truncated_normal:
        ops::random_truncated_normal(stream, part, first, seed, target.name, init.mean, init.stddev, init.low,
                                     init.high);
        break;
      case InitKind::orthogonal:
      case InitKind::function:
        for (int64_t begin = 0; begin < run.count; begin += kChunk) {
          const int64_t end = std::min(begin + kChunk, run.count);
          values.clear();
          for (int64_t i = begin; i < end; ++i)
            values.push_back(init.kind == InitKind::function ? init.function(first + i)
                                                             : orthogonal->at(first + i));
          ops::copy_from_host(stream, part.flat(begin, end), values.data(), (end - begin) * 4);
        }
        break;
    }
  }
}

bool is_constant(const Init& init) {
  return init.kind == InitKind::normal && init.fan == Fan::none && init.stddev == 0;
}

template <class T>
void put_as(Stream& stream, const std::string& name, const Tensor& whole, const std::vector<float>& values) {
  std::vector<T> converted;
  converted.reserve(values.size());
  for (const float v : values) {
    if constexpr (std::is_integral_v<T>) {
      // The largest values of the wider types round up as floats: float(INT32_MAX) is 2^31, which does not
      // fit. Hence < and not <=.
      const bool fits = sizeof(T) == 1 ? v > -1 && v < 256
                                       : v >= static_cast<float>(std::numeric_limits<T>::lowest()) &&
                                             v < static_cast<float>(std::numeric_limits<T>::max());
      if (!fits)
        throw InvalidArgument(fmt::format("'{}': its first values have {}, which {} cannot hold", name, v,
                                          name_of(whole.dtype())));
    }
    converted.push_back(static_cast<T>(v));
  }
  ops::copy_from_host(stream, whole, converted.data(), whole.nbytes());
}

}  // namespace

void initial_values(Stream& stream, const Parameter& p, const Tensor& piece, uint64_t seed) {
  if (is_constant(p.init())) return ops::fill(stream, piece, p.init().mean);
  const ParamRange range = p.shard_range();
  Target target{p.name(), p.init(), p.global_shape()};
  if (p.init().kind == InitKind::orthogonal && p.init().by_blocks) target.blocks = whole_blocks(p);
  fill_runs(stream, target, p.global_runs(range), range.begin, piece, seed);
}

void initial_values(Stream& stream, const std::string& name, const Init& init, const Tensor& whole,
                    uint64_t seed) {
  if (whole.numel() == 0) return;
  const bool direct = whole.dtype() == DType::f32;
  const Tensor values = direct ? whole
                               : Tensor::empty(stream.device(), whole.shape(), DType::f32,
                                               MemoryClass::scratch, "initial values");
  if (is_constant(init)) {
    ops::fill(stream, values, init.mean);
  } else {
    const GlobalRun all{ParamIndex(0), ParamIndex(0), whole.numel()};
    fill_runs(stream, {name, init, whole.shape()}, {&all, 1}, ParamIndex(0), values, seed);
  }
  if (direct) return;
  const std::vector<float> host = ops::to_floats(stream, values);
  with_dtype(whole.dtype(), [&]<class T>(T) { put_as<T>(stream, name, whole, host); });
}

}  // namespace sherd
