#include <sherd/train/data/token_windows.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/content_digest.h>
#include <sherd/kernels/random/random.h>
#include <sherd/train/data/keyed_permutation.h>

namespace sherd {
namespace {

constexpr EnumTable<TokenOrder, 3> kOrders{"sequential", "hashed", "shuffled"};

std::vector<int64_t> shares_of(const std::vector<SharedTokens>& data) {
  std::vector<int64_t> shares;
  for (const SharedTokens& d : data) shares.push_back(d.share);
  return shares;
}

/// Returns the flag that a message names for files that are too short.
const char* flag_of(const TokenStream& tokens, bool validation, bool examples = false, bool named = false) {
  return named              ? "--eval-data"
         : validation       ? "--valid-tokens"
         : examples         ? "--sft"
         : tokens.is_text() ? "--data"
                            : "--tokens";
}

std::vector<EvaluationTokens> one_set(std::shared_ptr<const TokenStream> tokens) {
  if (!tokens) return {};
  return {{"", std::move(tokens), 1}};
}

/// `count` of the windows [first, first + all) at equal distances.
std::vector<int64_t> spread_windows(int64_t first, int64_t all, int64_t most) {
  const int64_t count = most > 0 ? std::min(most, all) : all;
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < count; ++i) windows.push_back(first + i * all / count);
  return windows;
}

void require_windows(const TokenStream& tokens, int64_t windows, int64_t seq, bool validation, bool named) {
  if (windows > 0) return;
  throw IoError(fmt::format(
      "the {} '{}' has {} {}, but sequences of {} tokens need at least {}; name a larger file or folder "
      "with {}, or lower --seq",
      validation ? "validation data" : "data", tokens.source(), tokens.size(), tokens.unit(), seq, seq + 1,
      flag_of(tokens, validation, false, named)));
}

}  // namespace

const char* name_of(TokenOrder order) { return kOrders.name(order); }

TokenWindows::TokenWindows(std::vector<SharedTokens> data, std::shared_ptr<const TokenStream> validation,
                           const TokenWindowsOptions& options)
    : TokenWindows(std::move(data), one_set(std::move(validation)), options) {}

TokenWindows::TokenWindows(std::vector<SharedTokens> data, std::vector<EvaluationTokens> evaluation,
                           const TokenWindowsOptions& options)
    : options_(options), mixture_(shares_of(data)) {
  if (options.seq < 1)
    throw InvalidArgument(fmt::format("windows of {} tokens: must be 1 or more", options.seq));
  if (options.vocab < 1 || options.vocab > int64_t{1} << 31)
    throw InvalidArgument(fmt::format("a vocabulary of {}: must be 1 to 2^31", options.vocab));
  for (SharedTokens& d : data) add(std::move(d.tokens), d.share, /*hold_out=*/evaluation.empty());
  for (EvaluationTokens& set : evaluation) {
    add(std::move(set.tokens), 0, /*hold_out=*/true, !set.name.empty());
    parts_.back().name = std::move(set.name);
    parts_.back().weight = set.weight;
  }
  for (Part& p : parts_) {
    p.first_train = train_count_;
    train_count_ += p.train;
  }
  for (Part& p : parts_) {
    p.first_held_out = train_count_ + held_out_count_;
    held_out_count_ += p.held_out;
  }
}

TokenWindows::TokenWindows(std::shared_ptr<const TokenStream> data, int64_t seq)
    : TokenWindows({{std::move(data), 1}}, std::vector<EvaluationTokens>(), {.seq = seq}) {}

void TokenWindows::add(std::shared_ptr<const TokenStream> tokens, int64_t share, bool hold_out, bool named) {
  if (options_.examples) return add_examples(std::move(tokens), share, hold_out);
  const int64_t windows = tokens->size() > 0 ? (tokens->size() - 1) / options_.seq : 0;
  const bool validation = share == 0;
  require_windows(*tokens, windows, options_.seq, validation, named);
  // A byte is below every vocabulary of text; a file of tokens may have been made for another one.
  if (!tokens->is_text() || options_.vocab < 256) tokens->check_beginnings(options_.seq + 1, options_.vocab);
  const int64_t held_out = validation ? windows : hold_out ? windows / 50 : 0;
  parts_.push_back({std::move(tokens), nullptr, share, windows - held_out, held_out, 0, 0});
}

void TokenWindows::add_examples(std::shared_ptr<const TokenStream> tokens, int64_t share, bool hold_out) {
  const bool validation = share == 0;
  auto rows = std::make_shared<const ExampleRows>(*tokens, ExampleRowsOptions{.seq = options_.seq,
                                                                              .vocab = options_.vocab,
                                                                              .packed = options_.packed,
                                                                              .hold_out = hold_out,
                                                                              .all_held_out = validation});
  const int64_t train = rows->train_count(), held_out = rows->held_out_count();
  parts_.push_back({std::move(tokens), std::move(rows), share, train, held_out, 0, 0});
}

int64_t TokenWindows::ordered(size_t part, int64_t number, uint64_t seed) const {
  const auto n = static_cast<uint64_t>(number), count = static_cast<uint64_t>(parts_[part].train);
  switch (options_.order) {
    case TokenOrder::sequential:
      return static_cast<int64_t>(n % count);
    case TokenOrder::hashed:
      // A fixed odd multiplier scatters consecutive sequences over the text. Unsigned, so that it wraps.
      return static_cast<int64_t>(n * 2654435761u % count);
    case TokenOrder::shuffled: {
      const uint64_t key = hash64(seed, fmt::format("windows of stream {}", part));
      return static_cast<int64_t>(KeyedPermutation(count, key, n / count)(n % count));
    }
  }
  throw InvalidArgument("an unknown order of windows");
}

int64_t TokenWindows::train_window(int64_t sequence, uint64_t seed) const {
  if (mixture_.sources() == 1) return ordered(0, sequence, seed);
  const Mixture::Draw draw = mixture_.draw(sequence);
  return parts_[draw.source].first_train + ordered(draw.source, draw.number, seed);
}

std::vector<int64_t> TokenWindows::evaluation_windows(int64_t most) const {
  return spread_windows(train_count_, held_out_count_, most);
}

std::vector<TokenWindows::EvaluationSet> TokenWindows::evaluation_sets(int64_t most) const {
  if (parts_.back().name.empty()) return {{"", 1, evaluation_windows(most)}};
  double sum = 0;
  for (const Part& p : parts_) sum += p.share == 0 ? static_cast<double>(p.weight) : 0;
  std::vector<EvaluationSet> sets;
  for (const Part& p : parts_)
    if (p.share == 0)
      sets.push_back(
          {p.name, static_cast<double>(p.weight) / sum, spread_windows(p.first_held_out, p.held_out, most)});
  return sets;
}

std::string TokenWindows::describe_evaluation() const {
  if (parts_.back().share > 0) return "held out: " + describe();
  std::string all;
  for (const Part& p : parts_)
    if (p.share == 0) all += fmt::format("{} {} {}; ", p.name, p.weight, p.tokens->describe());
  return all + fmt::format("windows of {}{}", options_.seq,
                           !options_.examples ? ""
                           : options_.packed  ? ", packed examples"
                                              : ", examples");
}

double TokenWindows::epochs(int64_t sequences, size_t i) const {
  const int64_t own = mixture_.sources() == 1 ? sequences : mixture_.drawn(i, sequences);
  return static_cast<double>(own) / static_cast<double>(parts_[i].train);
}

std::string TokenWindows::progress(int64_t sequences) const {
  if (mixture_.sources() == 1) return fmt::format("epoch {:.2f}", epochs(sequences));
  std::string all = "epochs";
  for (size_t i = 0; i < mixture_.sources(); ++i)
    all +=
        fmt::format("{} {:.2f} of {}", i == 0 ? "" : ",", epochs(sequences, i), parts_[i].tokens->source());
  return all;
}

std::string TokenWindows::summary() const {
  std::string all;
  for (const Part& p : parts_) {
    if (!all.empty()) all += '\n';
    const std::string size =
        p.rows ? fmt::format("{} examples of {} tokens", p.rows->examples(), p.tokens->size())
               : fmt::format("{} {}", p.tokens->size(), p.tokens->unit());
    const char* const windows = p.rows ? "rows" : "windows";
    if (p.share == 0) {
      all += fmt::format("validation data {}{}: {}, {} {} of {}", p.name.empty() ? "" : p.name + ", ",
                         p.tokens->source(), size, p.held_out, windows, options_.seq);
      continue;
    }
    all += fmt::format("data {}: {}, {} {} of {} to train on, {} held out", p.tokens->source(), size, p.train,
                       windows, options_.seq, p.held_out);
    if (p.rows) all += fmt::format(", {:.1f} % filled", 100 * p.rows->filled());
    if (mixture_.sources() > 1)
      all += fmt::format(", {:.4g} % of the sequences",
                         100.0 * static_cast<double>(p.share) / static_cast<double>(mixture_.period()));
    if (!p.tokens->is_text() || options_.order != TokenOrder::hashed)
      all += fmt::format(", {}", name_of(options_.order));
  }
  return all;
}

std::string TokenWindows::describe() const {
  std::string all;
  for (const Part& p : parts_) {
    if (!all.empty()) all += p.share == 0 ? "; validation " : "; ";
    if (!p.name.empty()) all += fmt::format("{}, weight {}: ", p.name, p.weight);
    all += p.tokens->describe();
    if (mixture_.sources() > 1 && p.share > 0)
      all += fmt::format(", share {} of {}", p.share, mixture_.period());
  }
  all += fmt::format(", windows of {}", options_.seq);
  if (options_.examples) all += options_.packed ? ", packed examples" : ", examples";
  // Text in its usual order is described as it was before there were others.
  if (!parts_[0].tokens->is_text() || options_.order != TokenOrder::hashed)
    all += fmt::format(", {}", name_of(options_.order));
  return all;
}

std::vector<FileCopy> TokenWindows::copies() const {
  int64_t total = 0;
  for (const Part& p : parts_)
    for (const TokenFile& f : p.tokens->files()) total += f.count * bytes_of(f.type);
  std::map<std::string, size_t> places;  // of lists of files, by flag
  std::vector<FileCopy> copies;
  for (const Part& p : parts_) {
    const std::string flag = flag_of(*p.tokens, p.share == 0, options_.examples, !p.name.empty());
    for (size_t i = 0; i < p.tokens->files().size(); ++i) {
      const std::filesystem::path& path = p.tokens->files()[i].bytes->path();
      const std::string below = path.lexically_relative(p.tokens->source()).string();
      const bool of_folder = p.tokens->is_text() && !below.empty() && below != ".";
      const std::string name = of_folder ? below : fmt::format("file {}", ++places[flag]);
      ContentDigest digest;
      const int64_t share[] = {p.share, mixture_.sources() > 1 ? mixture_.period() : 1};
      digest.add(share, sizeof share);
      if (!p.name.empty()) {
        digest.add(p.name);
        digest.add(&p.weight, sizeof p.weight);
      }
      const uint64_t contents = p.tokens->sampled_digest(i, total);
      digest.add(&contents, sizeof contents);
      copies.push_back({flag + ", " + name, path.string(), digest.value()});
    }
  }
  return copies;
}

std::pair<const TokenWindows::Part*, int64_t> TokenWindows::place_of(int64_t window) const {
  if (window < 0 || window >= train_count_ + held_out_count_)
    throw InvalidArgument(
        fmt::format("window {} is outside the data's {} windows", window, train_count_ + held_out_count_));
  const bool held_out = window >= train_count_;
  const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) {
    return held_out ? window < p.first_held_out + p.held_out : window < p.first_train + p.train;
  });
  return {&*part, held_out ? part->train + window - part->first_held_out : window - part->first_train};
}

int64_t TokenWindows::learned(int64_t window) const {
  const auto [part, own] = place_of(window);
  return part->rows ? part->rows->learned(own) : options_.seq;
}

int64_t TokenWindows::places(int64_t window) const {
  const auto [part, own] = place_of(window);
  return part->rows ? part->rows->places(own) : options_.seq;
}

void TokenWindows::fill(int64_t window, int32_t* inputs, int32_t* targets, int32_t* starts) const {
  const auto [part, own] = place_of(window);
  if (part->rows) return part->rows->fill(own, inputs, targets, starts);
  if (starts != nullptr) std::fill_n(starts, options_.seq, 0);
  const int64_t first = own * options_.seq;
  part->tokens->read(first, options_.seq, inputs, options_.vocab);
  std::copy(inputs + 1, inputs + options_.seq, targets);
  part->tokens->read(first + options_.seq, 1, targets + options_.seq - 1, options_.vocab);
}

}  // namespace sherd
