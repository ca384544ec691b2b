// Windows of tokens of one length, and the window of each sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sherd/checkpoint/file_copies.h>
#include <sherd/train/data/example_rows.h>
#include <sherd/train/data/mixture.h>
#include <sherd/train/data/token_list.h>
#include <sherd/train/data/token_stream.h>

namespace sherd {

/// The window of sequence number n, of V training windows:
/// - sequential: n mod V; sequence i of step s is (s * batch + i) mod V.
/// - hashed: (n * 2654435761 mod 2^64) mod V, which scatters them. The multiplier is prime: unless V is a multiple
///   of it, each V consecutive sequences below 6.9e9 take each window once. Every epoch has the same order.
/// - shuffled: each once per epoch n / V, in random order: a KeyedPermutation by seed and epoch.
enum class TokenOrder : uint8_t { sequential, hashed, shuffled };

const char* name_of(TokenOrder order);

struct TokenWindowsOptions {
  int64_t seq = 0;      ///< tokens of a window
  int64_t vocab = 256;  ///< exclusive upper bound of tokens
  TokenOrder order = TokenOrder::hashed;
  bool examples = false;  ///< windows are ExampleRows
  bool packed = false;    ///< ... of several examples each
};

/// A stream of n tokens has W = floor((n - 1) / seq) windows: window w is tokens [w * seq, (w + 1) * seq),
/// and the targets are the tokens one later. The last floor(W / 50) are held out. With validation files, all
/// windows of these are held out, and none of the training data.
///
/// Several streams with shares: a Mixture draws the sequences. Each stream's windows follow the order above:
/// n is the number of its sequence, V the number of its windows. Each stream has its own shuffle. Windows
/// have consecutive numbers, the training windows of all streams first.
///
/// Examples: windows are the rows of ExampleRows; the last floor(examples / 50) examples are held out.
///
/// The position in a training is the number of sequences that all ranks have used, and nothing else: resumes
/// are exact on any number of ranks. Immutable, so ranks share one.
class TokenWindows {
 public:
  /// @param data one stream, or several with shares.
  /// @param validation null: windows of `data` are held out.
  /// @throws IoError when a stream has no window to train on, `validation` has no window, or a file begins
  /// with tokens outside the vocabulary; InvalidArgument for options or shares.
  TokenWindows(std::vector<SharedTokens> data, std::shared_ptr<const TokenStream> validation,
               const TokenWindowsOptions& options);
  /// The same with sets of evaluation data, all of whose windows are held out; none: windows of `data` are.
  TokenWindows(std::vector<SharedTokens> data, std::vector<EvaluationTokens> evaluation,
               const TokenWindowsOptions& options);
  /// Windows of text: one stream, hashed.
  TokenWindows(std::shared_ptr<const TokenStream> data, int64_t seq);

  int64_t seq() const { return options_.seq; }
  /// Windows [0, train_count()) are trained on ...
  int64_t train_count() const { return train_count_; }
  /// ... and [train_count(), train_count() + held_out_count()) are held out; none of streams below 50
  /// windows.
  int64_t held_out_count() const { return held_out_count_; }
  /// Returns the held-out windows that one evaluation reads, ascending: all, or `most` at equal distances.
  /// @param most 0: all.
  std::vector<int64_t> evaluation_windows(int64_t most = 0) const;

  /// Held-out windows of a set, and the weight of its loss: weights of all sets add up to 1.
  struct EvaluationSet {
    std::string name;  // empty: the only one, without a name
    double weight = 1;
    std::vector<int64_t> windows;
  };
  /// Returns the sets of evaluation data in their order, or one of all held-out windows.
  /// @param most of each set, as of evaluation_windows()
  std::vector<EvaluationSet> evaluation_sets(int64_t most = 0) const;
  /// Equal only for equal held-out windows, sets and weights, as describe().
  std::string describe_evaluation() const;

  /// Returns the window of sequence number `sequence` of the whole training, from 0.
  /// @param seed the training's, for `shuffled`: the same on all ranks and after a resume.
  int64_t train_window(int64_t sequence, uint64_t seed = 0) const;

  /// Returns how often the windows of stream `i` have been used after so many sequences: 1.5 is in the middle
  /// of the second epoch.
  double epochs(int64_t sequences, size_t i = 0) const;
  /// "epoch 1.50", or "epochs 0.25 of a.bin, 2.00 of b.bin".
  std::string progress(int64_t sequences) const;

  /// "data /usr/include/c++/12: 11714044 bytes, 44842 windows of 256 to train on, 915 held out"; a line for
  /// each stream.
  std::string summary() const;
  /// "11714044 bytes, XXH3 0123456789abcdef, windows of 256": equal only for equal data (as far as
  /// TokenStream::describe() looks), shares, validation files and order.
  std::string describe() const;
  /// Every file as this rank has it, for require_same_copies(): named by the flag with its place in the list, or its path
  /// below the folder of text. With the shares; without windows and order, which are not files. @throws
  /// IoError.
  std::vector<FileCopy> copies() const;

  /// Returns how many targets of the window are learned: seq, but for examples.
  int64_t learned(int64_t window) const;
  /// Returns how many of the window's first places are not padding: seq, but for examples.
  int64_t places(int64_t window) const;
  /// Writes the window's seq tokens, and to `targets` the token after each; of examples as ExampleRows::fill().
  /// @param starts null, or where the first position of each position's example is written
  /// @throws InvalidArgument for a window that is neither trained on nor held out; IoError as
  /// TokenStream::read().
  void fill(int64_t window, int32_t* inputs, int32_t* targets, int32_t* starts = nullptr) const;

 private:
  struct Part {
    std::shared_ptr<const TokenStream> tokens;
    std::shared_ptr<const ExampleRows> rows;  // null: windows of the stream
    int64_t share;                            // 0: of validation
    int64_t train, held_out;                  // windows
    int64_t first_train, first_held_out;      // numbers of the first of them
    std::string name{};                       // of a set of evaluation data
    int64_t weight = 1;                       // the set's
  };
  void add(std::shared_ptr<const TokenStream> tokens, int64_t share, bool hold_out, bool named = false);
  void add_examples(std::shared_ptr<const TokenStream> tokens, int64_t share, bool hold_out);
  /// The part that a window belongs to, and its number among those of this part.
  std::pair<const Part*, int64_t> place_of(int64_t window) const;
  int64_t ordered(size_t part, int64_t number, uint64_t seed) const;

  TokenWindowsOptions options_;
  std::vector<Part> parts_;  // those to train on, then perhaps validation
  Mixture mixture_;
  int64_t train_count_ = 0, held_out_count_ = 0;
};

}  // namespace sherd
