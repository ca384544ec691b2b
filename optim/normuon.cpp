#include <sherd/optim/normuon.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include <sherd/kernels/normuon/normuon.h>
#include <sherd/kernels/ops.h>
#include <sherd/optim/detail/rest_segments.h>

namespace sherd {
namespace {

/// RMS of an update's elements at a learning rate of 1, as AdamW's is found to be
/// (MuonScale::match_rms_adamw).
constexpr double kRms = 0.2;

NorMuonOptions checked(NorMuonOptions options) {
  const std::vector<std::string> wrong = problems_of(options);
  if (!wrong.empty()) throw InvalidArgument(fmt::format("NorMuon: {}", fmt::join(wrong, "; ")));
  return options;
}

// One second moment for each element of this rank's pieces; all elements of a row hold the same value.
std::vector<StateTensor> make_moments(Device& device, const std::vector<UpdateItem>& items) {
  std::vector<StateTensor> moments;
  for (auto& item : items)
    moments.push_back(
        {item.param, "second_momentum_buffer", item.make_state(device, "second_momentum_buffer")});
  return moments;
}

}  // namespace

std::vector<std::string> problems_of(const NorMuonOptions& o) {
  std::vector<std::string> wrong = problems_of(o.muon);
  if (o.muon.scale != MuonScale::match_rms_adamw)
    wrong.push_back(fmt::format("scale {} must be match_rms_adamw, the RMS that NorMuon's updates have",
                                name_of(o.muon.scale)));
  if (o.muon.fraction != 1)
    wrong.push_back(fmt::format("fraction {} must be 1: NorMuon normalizes all rows", o.muon.fraction));
  if (!(o.beta2 >= 0 && o.beta2 < 1)) wrong.push_back(fmt::format("beta2 {} must lie in [0, 1)", o.beta2));
  if (!(o.eps > 0 && std::isfinite(o.eps)))
    wrong.push_back(fmt::format("eps {} must be finite and greater than 0", o.eps));
  return wrong;
}

UpdateRuleFactory NorMuon::factory(const NorMuonOptions& o) {
  // Muon's properties hold here, too: the same routing and the same factors.
  UpdateRuleFactory f = Muon::factory(o.muon);
  f.algorithm = kName;
  f.settings += fmt::format("; beta2 {} eps {}", o.beta2, o.eps);
  f.problems = problems_of(o);
  f.make = [o](Device& device, std::vector<UpdateItem> items) {
    return std::make_unique<NorMuon>(device, std::move(items), o);
  };
  return f;
}

NorMuon::NorMuon(Device& device, std::vector<UpdateItem> items, NorMuonOptions options)
    : device_(device),
      options_(checked(std::move(options))),
      windows_(items.empty() ? nullptr : items.front().windows),
      moments_(make_moments(device, items)),
      muon_(device, std::move(items), options_.muon, this) {}

void NorMuon::step(Stream& compute, double lr, const Tensor& skip) {
  muon_.set_gradient_factor(take_gradient_factor());
  muon_.step(compute, lr, skip);
}

std::vector<StateTensor> NorMuon::state() const {
  std::vector<StateTensor> all = muon_.state();
  all.insert(all.end(), moments_.begin(), moments_.end());
  return all;
}

// Called by Muon with the orthogonalized updates, before they are applied. Rows may be cut over ranks: each
// rank adds its part of a row's sums, one all-reduce completes them, and each rank scales its pieces. Every
// rank of the team calls it for exchanged matrices, also without pieces of them.
void NorMuon::refine(Stream& compute, const MatrixResults& results, const Tensor& skip) {
  std::vector<RowMatrix> matrices;
  std::vector<int64_t> row_of(results.matrices.size(), 0);
  int64_t rows = 0;
  for (const int i : results.present) {
    const LogicalMatrix& m = results.matrices[static_cast<size_t>(i)];
    const int64_t m_rows = m.whole_rows(), m_cols = m.whole_cols();
    // The Frobenius norm of an update of this shape whose elements have an RMS of kRms * scale_factor.
    const double target = kRms * options_.muon.scale_factor *
                          std::sqrt(static_cast<double>(m_rows) * static_cast<double>(m_cols));
    row_of[static_cast<size_t>(i)] = rows;
    matrices.push_back({rows, m_rows, m_cols, target});
    rows += m_rows;
  }
  std::vector<RowSegment> segments;
  for (const MatrixPiece& p : results.pieces) {
    const LogicalMatrix& m = results.matrices[static_cast<size_t>(p.matrix)];
    // The row's index in the whole matrix, where tensor parallelism cuts the matrix by rows: all ranks must
    // agree on the record of a row.
    const int64_t rows_before = m.tensor_dim == 0 ? results.tensor_rank * m.rows : 0;
    segments.push_back({.x = results.values.data<float>() + p.at,
                        .moment = RestPiece(moments_[p.item].local).at(p.local),
                        .count = p.count,
                        .first = rows_before * m.cols + p.first,
                        .cols = m.cols,
                        .row = row_of[static_cast<size_t>(p.matrix)],
                        // A row's second moment is contributed once: where columns are cut, by tensor rank 0
                        // alone.
                        .begins_rows = m.tensor_dim != 1 || results.tensor_rank == 0,
                        .dtype = moments_[p.item].local.dtype(),
                        .noise = p.noise});
  }
  // These read one moment of each row, where it rests.
  const auto make = [&](Shape shape, DType dtype, MemoryClass memory) {
    return Tensor::empty(device_, std::move(shape), dtype, memory, "normuon rows");
  };
  const Tensor records = make({rows, RowRecord::kWords}, DType::i64, MemoryClass::message);
  const Tensor scales = make({rows}, DType::f32, MemoryClass::scratch),
               moments = make({rows}, DType::f32, MemoryClass::scratch);
  // Records start at zero: the sum over ranks adds what each of them contributes.
  ops::fill(compute, records, 0);
  ops::row_records(compute, records, segments);
  // Integer words: the sum over ranks does not depend on its order, so all layouts give the same bits.
  results.sum(records);
  ops::row_scales(compute, scales, moments, records, matrices, options_.beta2, options_.eps);
  std::vector<RowSegment> some;
  RestPass pass(windows_.get(), compute, [&] {
    ops::scale_rows(compute, some, scales, moments, skip);
    some.clear();
  });
  for (size_t i = 0; i < segments.size(); ++i) {
    const MatrixPiece& p = results.pieces[i];
    const Tensor& rest = moments_[p.item].local;
    pass.parts({rest}, 0, p.count, [&](int64_t at, int64_t count) {
      RowSegment s = segments[i];
      s.x += at;
      s.moment = pass.open(rest, p.local + at, count, true).raw();
      s.count = count;
      s.first += at;
      some.push_back(s);
    });
  }
  pass.finish();
}

}  // namespace sherd
