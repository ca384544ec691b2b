#include <sherd/train/data/example_rows.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>
#include <sherd/train/data/megatron_index.h>

namespace sherd {
namespace {

/// Examples of one kind that cannot be trained on.
struct Refused {
  int64_t count = 0, first = 0;
  void add(int64_t number) {
    if (count++ == 0) first = number;
  }
  std::string text(const char* what, const char* remedy) const {
    return fmt::format("{} example{} {}, the first of them number {}: {}", count, count == 1 ? "" : "s", what,
                       first, remedy);
  }
};

}  // namespace

ExampleRows::ExampleRows(const TokenStream& tokens, const ExampleRowsOptions& options)
    : tokens_(tokens), options_(options) {
  for (size_t i = 0; i < tokens.files().size(); ++i) add_file(i);
  const size_t all = examples_.size(), held_out = options.all_held_out ? all
                                                  : options.hold_out   ? all / 50
                                                                       : 0;
  add_rows(0, all - held_out);
  train_ = static_cast<int64_t>(rows_.size());
  add_rows(all - held_out, all);
}

void ExampleRows::add_file(size_t index) {
  const TokenFile& file = tokens_.files()[index];
  const std::string path = file.bytes->path().string();
  if (file.type != TokenType::i32)
    throw IoError(
        fmt::format("the examples '{}' are of {}, without a mask; make them with scripts/tokenize.py --chat",
                    path, name_of(file.type)));
  Refused outside, idle, longer;
  int64_t first = 0, longest = 0;
  std::vector<int32_t> some;
  const std::vector<int64_t> lengths = megatron_documents(
      *FileBytes::map(std::filesystem::path(file.bytes->path()).replace_extension(".idx")));
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i], number = static_cast<int64_t>(i) + 1;
    some.resize(static_cast<size_t>(length));
    file.bytes->read(file.begin + first * 4, some.data(), length * 4);
    const bool fits = std::all_of(some.begin(), some.end(),
                                  [&](int32_t t) { return std::max(t, -1 - t) < options_.vocab; });
    const auto learned =
        std::count_if(some.begin() + (length > 0), some.end(), [](int32_t t) { return t >= 0; });
    if (!fits) outside.add(number);
    if (learned == 0) idle.add(number);
    if (length > options_.seq + 1) longer.add(number);
    longest = std::max(longest, length);
    if (fits && learned > 0 && length <= options_.seq + 1)
      examples_.push_back(
          {static_cast<uint32_t>(index), static_cast<int32_t>(length), static_cast<int32_t>(learned), first});
    first += length;
  }
  std::vector<std::string> wrong;
  if (outside.count > 0)
    wrong.push_back(
        outside.text(fmt::format("with tokens outside of the vocabulary of {}", options_.vocab).c_str(),
                     "use the tokenizer of the model"));
  if (idle.count > 0) wrong.push_back(idle.text("without a token to learn", "leave them out"));
  if (longer.count > 0)
    wrong.push_back(longer.text(
        fmt::format("of more than --seq {} + 1 tokens", options_.seq).c_str(),
        fmt::format("raise --seq to {}, or leave them out with scripts/tokenize.py --max-tokens {}",
                    longest - 1, options_.seq + 1)
            .c_str()));
  if (!wrong.empty()) throw IoError(fmt::format("'{}' has {}", path, fmt::join(wrong, "; ")));
}

void ExampleRows::add_rows(size_t begin, size_t end) {
  if (!options_.packed) {
    for (size_t i = begin; i < end; ++i) rows_.push_back({static_cast<uint32_t>(i)});
    return;
  }
  std::vector<uint32_t> order(end - begin);
  std::iota(order.begin(), order.end(), static_cast<uint32_t>(begin));
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return examples_[a].length > examples_[b].length; });
  const size_t first = rows_.size();
  std::set<std::pair<int64_t, size_t>> room;  // of each row
  for (const uint32_t example : order) {
    const int64_t places = examples_[example].length - 1;
    const auto fit = room.lower_bound({places, 0});
    size_t row = rows_.size();
    int64_t left = options_.seq;
    if (fit == room.end()) {
      rows_.emplace_back();
    } else {
      std::tie(left, row) = *fit;
      room.erase(fit);
    }
    rows_[row].push_back(example);
    room.insert({left - places, row});
  }
  const auto begin_of_new = rows_.begin() + static_cast<std::ptrdiff_t>(first);
  for (auto row = begin_of_new; row != rows_.end(); ++row) std::sort(row->begin(), row->end());
  std::sort(begin_of_new, rows_.end());
}

double ExampleRows::filled() const {
  int64_t taken = 0;
  for (int64_t row = 0; row < train_; ++row) taken += places(row);
  return static_cast<double>(taken) / static_cast<double>(std::max<int64_t>(1, train_ * options_.seq));
}

int64_t ExampleRows::learned(int64_t row) const {
  int64_t count = 0;
  for (const uint32_t i : rows_[static_cast<size_t>(row)]) count += examples_[i].learned;
  return count;
}

int64_t ExampleRows::places(int64_t row) const {
  int64_t count = 0;
  for (const uint32_t i : rows_[static_cast<size_t>(row)]) count += examples_[i].length - 1;
  return count;
}

void ExampleRows::fill(int64_t row, int32_t* inputs, int32_t* targets, int32_t* starts) const {
  std::vector<int32_t> some;
  int64_t at = 0;
  for (const uint32_t i : rows_[static_cast<size_t>(row)]) {
    const Example& e = examples_[i];
    some.resize(static_cast<size_t>(e.length));
    const TokenFile& file = tokens_.files()[e.file];
    file.bytes->read(file.begin + e.first * 4, some.data(), int64_t{e.length} * 4);
    if (starts != nullptr) std::fill_n(starts + at, e.length - 1, static_cast<int32_t>(at));
    for (size_t j = 0; j + 1 < some.size(); ++j, ++at) {
      inputs[at] = std::max(some[j], -1 - some[j]);
      targets[at] = some[j + 1] >= 0 ? some[j + 1] : kNoTarget;
    }
  }
  const int64_t rest = options_.seq - at;
  std::fill_n(inputs + at, rest, 0);
  std::fill_n(targets + at, rest, kNoTarget);
  if (starts != nullptr) std::fill_n(starts + at, rest, static_cast<int32_t>(at));
}

}  // namespace sherd
