// Rows of examples: documents of which some tokens are learned, one or several in a row.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/train/data/token_stream.h>

namespace sherd {

struct ExampleRowsOptions {
  int64_t seq = 0;        ///< tokens of a row
  int64_t vocab = 0;      ///< exclusive upper bound of tokens
  bool packed = false;    ///< several examples in a row
  bool hold_out = false;  ///< the last floor(examples / 50) are held out
  bool all_held_out = false;
};

/// Examples are the documents of Megatron's files of i32. Token t is stored as t where it is learned, and as -1 - t where
/// it only is context (scripts/tokenize.py --chat writes such files). An example of n tokens takes n - 1 places of a row:
/// its inputs are all tokens but the last, its targets all but the first. The places behind the last example of a row
/// are padding (nn::Documents::lengths): they have input 0 and no target.
///
/// Packed rows are made once, from the examples' lengths alone: the longest example first, each into the row with the least
/// room that it fits (best fit decreasing; Johnson, Near-optimal bin packing algorithms, 1973). Examples of a row, and
/// rows by their first example, are in the order of the files. Immutable, so ranks share one.
class ExampleRows {
 public:
  /// Stands for the target of a place where none is learned.
  static constexpr int32_t kNoTarget = -1;

  /// Reads all tokens once. `tokens` outlives this.
  /// @throws IoError in one line for each kind of what is wrong, with the count of such examples and the first of them:
  /// files that are not Megatron's of i32, examples longer than seq + 1, with nothing to learn, or with tokens outside of
  /// the vocabulary.
  ExampleRows(const TokenStream& tokens, const ExampleRowsOptions& options);

  /// Rows [0, train_count()) are trained on, the next held_out_count() are held out.
  int64_t train_count() const { return train_; }
  int64_t held_out_count() const { return static_cast<int64_t>(rows_.size()) - train_; }
  int64_t examples() const { return static_cast<int64_t>(examples_.size()); }
  /// Returns the share of the training rows' places that examples take, 0 to 1.
  double filled() const;
  /// Returns how many targets of the row are learned, at least 1.
  int64_t learned(int64_t row) const;
  /// Returns how many places its examples take, the first ones of the row.
  int64_t places(int64_t row) const;

  /// Writes seq inputs, targets (kNoTarget where none is learned) and the first place of each place's example; the
  /// places behind the last example count as one.
  /// @param starts null: not written
  /// @throws IoError as FileBytes::read().
  void fill(int64_t row, int32_t* inputs, int32_t* targets, int32_t* starts) const;

 private:
  struct Example {
    uint32_t file;
    int32_t length, learned;
    int64_t first;  // in the file
  };
  void add_file(size_t file);
  void add_rows(size_t begin, size_t end);

  const TokenStream& tokens_;
  ExampleRowsOptions options_;
  std::vector<Example> examples_;
  std::vector<std::vector<uint32_t>> rows_;  // of examples
  int64_t train_ = 0;
};

}  // namespace sherd
