// Layout of a group of parameters: the place of every element on every rank. Pure arithmetic, no
// communication.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/dtensor/index.h>
#include <sherd/dtensor/packing.h>

namespace sherd {

/// Positions at which a rank boundary may cut a parameter.
enum class CutClass {
  element,  // anywhere (the optimizer works element by element)
  row,      // between rows, where that fits the padding budget
};

enum class LayoutPolicy {
  ragged,       // full parameters contiguous in the communication buffer; cut anywhere / between rows
  even_rows,    // ceil(rows / world) rows of every parameter on each rank, with padding rows (DTensor, FSDP2)
  whole_param,  // as ragged, but no parameter is cut: each is on one rank (layer-wise optimizers)
};

/// Policy with its packing rule (for whole_param only).
struct LayoutChoice {
  LayoutPolicy policy = LayoutPolicy::ragged;
  Packing packing = Packing::lpt;
  bool operator==(const LayoutChoice&) const = default;
};

/// Parses "ragged", "even_rows", or "whole_param", which may be followed by ":lpt" (default), ":size_match"
/// or ":ping_pong".
/// @throws InvalidArgument listing the legal names.
[[nodiscard]] LayoutChoice parse_layout(std::string_view text);
const char* name_of(LayoutPolicy policy);
const char* name_of(Packing packing);
/// Returns the form that parse_layout() reads; it always names the packing rule of whole_param.
std::string to_string(LayoutChoice choice);

struct LayoutParam {
  std::string name;
  Shape shape;
  CutClass cut = CutClass::element;
  /// Cost for the rank that has it unsharded, in units of the caller; 0 = the default of packing_cost().
  double cost = 0;
  /// Elements between which no rank boundary falls, counted from the parameter's begin: a power of 2 that divides a row.
  int64_t granule = 1;
};

/// Returns the cost by which whole parameters are balanced: param.cost, or the cost by Megatron-LM's rule.
/// That is larger * smaller^2 for a matrix, which grows as one Newton-Schulz step, and the number of elements
/// for everything that is not 2-D (including stacks of matrices).
double packing_cost(const LayoutParam& param);

/// Returns "" or lines ("\n ...") with the errors of a size, the cost or the granule.
[[nodiscard]] std::string complaints_about(const LayoutParam& param);

struct LayoutOptions {
  LayoutPolicy policy = LayoutPolicy::ragged;
  /// whole_param: method that assigns parameters to ranks.
  Packing packing = Packing::lpt;
  /// Slices are a multiple of this many elements, and of every granule; 64 makes them multiples of 128 bytes down to 16-bit types.
  int64_t align = 64;
  /// Padding allowed for keeping rows whole, as a fraction of the parameters' elements.
  double padding_budget = 0.03;
  /// Rotates the order of parameters in the buffer, so that units of one shape load different ranks.
  int rotation = 0;
  /// whole_param: the cost of each rank from earlier layouts (ShardLayout::rank_cost()); empty = none.
  std::vector<double> carried_cost = {};
  /// whole_param: the packing rule sees the ranks in ascending order of carried cost instead of by index.
  /// Ties then go to the rank with less cost. This matters where a bucket has fewer parameters than ranks: by
  /// index, every such bucket loads the same first ranks.
  bool order_by_carried_cost = false;
};

/// Row that two ranks share: element `at` of parameter `param` is the first of rank `rank`, inside a row.
struct CutRow {
  int param = 0;
  int rank = 0;
  ParamIndex at;
};

/// Assignment of the elements of a list of parameters to `world` ranks.
///
/// There are two buffers. The *communication buffer* has world * slice() elements, of which rank r owns
/// elements [r*slice(), (r+1)*slice()). The *full buffer* has full_elements(); every parameter is contiguous
/// in it, in row-major order. zero_copy() layouts have one buffer for both. Elements that belong to no
/// parameter are padding. The result depends on the arguments only.
///
/// A whole_param layout is one bucket of pack(): each parameter starts at a multiple of 64 elements of its
/// rank's slice, and slices are a multiple of shard_divisor(world) and of options.align.
///
/// Example: norm [16] (cut anywhere), up [24, 16] and down [16, 24] (cut between rows) over 4 ranks. 784
/// elements in slices that are a multiple of 64 need slices of 256.
///
/// ragged: one buffer of 1024 elements, in which norm is [0, 16), up [16, 400), down [528, 912).
///
///    slice 0  [0, 256)     norm at 0, rows 0-14 of up at 16     piece(up, 0) = [0, 240), local_begin 16
///    slice 1  [256, 512)   rows 15-23 of up at 0, 112 unused    piece(up, 1) = [240, 384), local_begin 0
///    slice 2  [512, 768)   16 unused, rows 0-9 of down at 16    piece(down, 2) = [0, 240), local_begin 16
///    slice 3  [768, 1024)  rows 10-15 of down at 0, 112 unused  piece(down, 3) = [240, 384), local_begin 0
///
/// The 16 unused elements put the boundary at 768 between two rows of down.
///
/// even_rows: every rank has 4 elements of norm, 6 rows of up and 4 rows of down, one after the other in its
/// slice: piece(up, r) = [96 r, 96 r + 96) at local_begin 4, piece(down, r) = the same at 100. The full
/// buffer is a separate one, of 784 elements: norm at 0, up at 16, down at 400.
///
/// whole_param: down on rank 0, up on rank 1, norm on rank 2, nothing on rank 3, in slices of 384.
class ShardLayout {
 public:
  /// Makes the layout.
  /// @throws InvalidArgument for world < 1, no parameters, a negative size, align < 1, a granule that is not a power of 2 or does not divide a row, a
  /// budget outside [0, 1], costs that are negative, non-finite or not one for each rank, or sizes that pass 64-bit arithmetic.
  [[nodiscard]] static ShardLayout make(std::vector<LayoutParam> params, int world,
                                        const LayoutOptions& options = {});

  const std::vector<LayoutParam>& params() const { return params_; }
  int world() const { return world_; }
  LayoutPolicy policy() const { return options_.policy; }
  int64_t slice() const { return slice_; }
  int64_t buffer_elements() const { return slice_ * world_; }
  int64_t full_elements() const { return full_elements_; }
  bool zero_copy() const { return options_.policy != LayoutPolicy::even_rows; }
  /// Returns the elements of the communication buffer that belong to no parameter.
  int64_t padding() const { return padding_; }

  /// Returns the place of parameter p in the full buffer.
  FullRange full_range(ParamId p) const;
  /// Returns the elements of parameter p that rank r owns (flat interval of the parameter, possibly empty; an
  /// empty piece after the end starts at numel).
  ParamRange piece(ParamId p, RankId r) const;
  /// Returns the start of that piece in rank r's slice.
  SliceIndex local_begin(ParamId p, RankId r) const;
  /// Returns piece(p, r) as boxes of the global tensor.
  [[nodiscard]] std::vector<Box> boxes(ParamId p, RankId r) const;
  /// Returns all rows of CutClass::row parameters that a rank boundary cuts.
  const std::vector<CutRow>& cut_rows() const { return cut_rows_; }
  /// whole_param: returns options.carried_cost plus the packing_cost() of each rank's parameters, to carry to
  /// the next layout; empty under the other policies.
  const std::vector<double>& rank_cost() const { return rank_cost_; }
  /// Returns a 64-bit digest of everything above; equal on all ranks that computed the same layout.
  uint64_t fingerprint() const;
  /// Returns a human-readable summary: slice, padding, and every row that had to be cut.
  std::string describe() const;

 private:
  void place_whole();
  void place_even_rows();
  void find_cut_rows();

  std::vector<LayoutParam> params_;
  LayoutOptions options_;
  int world_ = 1;
  int64_t slice_ = 0;
  int64_t full_elements_ = 0;
  int64_t padding_ = 0;
  std::vector<int64_t> full_begin_;   // per parameter
  std::vector<int64_t> chunk_rows_;   // even_rows: rows per rank, per parameter
  std::vector<int64_t> chunk_begin_;  // even_rows: start of the chunk in every slice, per parameter
  std::vector<CutRow> cut_rows_;
  std::vector<double> rank_cost_;
};

}  // namespace sherd
