#include <sherd/train/text/detail/byte_pairs.h>

#include <algorithm>
#include <optional>
#include <queue>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

int32_t BytePairs::find(std::string_view token) const {
  const auto at = vocab.find(token);
  return at == vocab.end() ? -1 : at->second;
}

const BytePairs::Merge* BytePairs::merge_of(int32_t left, int32_t right) const {
  const auto at = merges_.find(pair_of(left, right));
  return at == merges_.end() ? nullptr : &at->second;
}

void BytePairs::add_merge(std::string_view left, std::string_view right) {
  const auto known = [&](std::string_view text) {
    const int32_t token = find(text);
    if (token < 0) throw InvalidArgument(fmt::format("'{}'", printable(text, 80)));
    return token;
  };
  std::string both(left);
  const int32_t token = known(both.append(right));
  merges_.insert_or_assign(pair_of(known(left), known(right)), Merge{next_rank_++, token});
}

std::vector<int32_t> BytePairs::characters(std::string_view word) const {
  std::vector<int32_t> symbols;
  std::optional<int32_t> pending;  // an unknown token, behind the bytes that follow it
  const auto flush = [&] {
    if (pending) symbols.push_back(*pending);
    pending.reset();
  };
  for (size_t size; !word.empty(); word.remove_prefix(size)) {
    size = std::max<size_t>(utf8_character(word), 1);
    const std::string_view character = word.substr(0, size);
    if (const int32_t token = find(character); token >= 0) {
      flush();
      symbols.push_back(token);
      continue;
    }
    if (byte_fallback) {
      std::array<int32_t, 4> bytes{};
      std::transform(character.begin(), character.end(), bytes.begin(),
                     [&](char c) { return find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(c))); });
      if (std::none_of(bytes.begin(), bytes.begin() + size, [](int32_t token) { return token < 0; })) {
        symbols.insert(symbols.end(), bytes.begin(), bytes.begin() + size);
        continue;
      }
    }
    if (unknown.empty()) continue;
    if (!fuse_unknown) flush();
    pending = find(unknown);
    if (*pending < 0)
      throw InvalidArgument(fmt::format("has no token for '{}', and its vocabulary lacks the unk_token '{}'",
                                        printable(character), printable(unknown, 80)));
  }
  flush();
  return symbols;
}

void BytePairs::encode(std::string_view word, std::vector<int32_t>& tokens) const {
  if (ignore_merges)
    if (const int32_t token = find(word); token >= 0) return tokens.push_back(token);
  std::vector<int32_t> symbols = characters(word);
  // Symbols are a list: a merged one keeps its place, and the one behind it is removed (-1).
  const auto size = symbols.size();
  std::vector<size_t> next(size), previous(size);
  struct Candidate {
    int32_t rank, token;
    size_t at;
    bool operator<(const Candidate& other) const {  // the queue's first is the greatest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto add = [&](size_t left, size_t right) {
    if (const Merge* merge = merge_of(symbols[left], symbols[right]))
      queue.push({merge->rank, merge->token, left});
  };
  for (size_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 < size) add(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const size_t right = next[best.at];
    if (symbols[best.at] < 0 || right >= size) continue;
    // The symbols here may have changed since it was queued.
    if (const Merge* merge = merge_of(symbols[best.at], symbols[right]); !merge || merge->token != best.token)
      continue;
    symbols[best.at] = best.token;
    symbols[right] = -1;
    next[best.at] = next[right];
    if (next[right] < size) {
      previous[next[right]] = best.at;
      add(best.at, next[right]);
    }
    if (best.at > 0) add(previous[best.at], best.at);
  }
  std::copy_if(symbols.begin(), symbols.end(), std::back_inserter(tokens),
               [](int32_t token) { return token >= 0; });
}

}  // namespace sherd
