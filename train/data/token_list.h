// Lists of token files, in flags.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/train/data/token_format.h>
#include <sherd/train/data/token_stream.h>

namespace sherd {

struct TokenPath {
  std::filesystem::path path;
  /// In billionths; 0 without a weight.
  int64_t weight = 0;
};

/// Parses "FILE[:WEIGHT],...": "a.bin,b.bin" or "a.bin:0.7,b.bin:0.3". The text after the last colon is a
/// weight if it is a decimal number (without exponent); otherwise it belongs to the name. "\," and "\:" are a comma
/// and a colon of the name.
/// @throws InvalidArgument naming `flag`: no file, weights for some of the files, a weight of 0 or of more than 9
/// digits before or after the point, weights so fine that their smallest whole numbers are more than a Mixture takes.
[[nodiscard]] std::vector<TokenPath> parse_token_list(std::string_view list, std::string_view flag);
/// Parses a list whose files are all used as they are: throws also for any weight.
[[nodiscard]] std::vector<TokenPath> parse_unweighted_token_list(std::string_view list,
                                                                 std::string_view flag);

/// Set of evaluation data.
struct EvaluationPath {
  std::string name;
  TokenPath tokens;
};

/// Parses "NAME=FILE[:WEIGHT],...", with files and weights as parse_token_list() takes them; without weights all are 1.
/// @throws InvalidArgument as parse_token_list(); for a missing name, one of other characters than letters, digits, '.',
/// '_' and '-', and one that two sets have.
[[nodiscard]] std::vector<EvaluationPath> parse_evaluation_list(std::string_view list, std::string_view flag);

/// Tokens, and their share of the sequences.
struct SharedTokens {
  std::shared_ptr<const TokenStream> tokens;
  int64_t share = 1;  ///< relative to the others'
};

/// Tokens of a set of evaluation data.
struct EvaluationTokens {
  std::string name;  ///< empty: of --valid-tokens
  std::shared_ptr<const TokenStream> tokens;
  int64_t weight = 1;  ///< of its loss in the mean over sets, relative to the others'
};

/// Opens the file of each set. @throws as open_token_file().
[[nodiscard]] std::vector<EvaluationTokens> open_evaluation_sets(const std::vector<EvaluationPath>& sets,
                                                                 TokenFormat format);

/// Opens the files. Without weights they are one stream in the given order, with weights each is one of its
/// own.
/// @throws as open_token_file().
[[nodiscard]] std::vector<SharedTokens> open_token_streams(const std::vector<TokenPath>& paths,
                                                           TokenFormat format);

/// All files as one stream. @throws InvalidArgument, naming `flag`, when there are weights.
[[nodiscard]] std::shared_ptr<const TokenStream> open_one_token_stream(const std::vector<TokenPath>& paths,
                                                                       TokenFormat format,
                                                                       std::string_view flag);

}  // namespace sherd
