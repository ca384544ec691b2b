#include <sherd/checkpoint/files/content_digest.h>

#include <algorithm>
#include <vector>

#include <xxhash.h>

#include <sherd/base/error.h>

namespace sherd {
namespace {

constexpr int64_t kBlock = 4096, kChunk = int64_t{1} << 18;
constexpr int64_t kReadWhole = int64_t{16} << 20, kShared = int64_t{1} << 20;

}  // namespace

struct ContentDigest::State {
  State() : hash(XXH3_createState()) {
    if (hash == nullptr) throw OutOfMemory("out of memory for the state of a hash");
    XXH3_64bits_reset(hash);
  }
  ~State() { XXH3_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* hash;
  std::vector<char> chunk;
};

ContentDigest::ContentDigest() : state_(std::make_unique<State>()) {}
ContentDigest::~ContentDigest() = default;

void ContentDigest::add(const void* data, int64_t bytes) {
  XXH3_64bits_update(state_->hash, data, static_cast<size_t>(bytes));
}

void ContentDigest::add(std::string_view text) {
  const auto bytes = static_cast<int64_t>(text.size());
  add(&bytes, sizeof bytes);
  add(text.data(), bytes);
}

void ContentDigest::add(int64_t begin, int64_t bytes, const Read& read) {
  std::vector<char>& chunk = state_->chunk;
  chunk.resize(std::max(chunk.size(), static_cast<size_t>(std::min(bytes, kChunk))));
  for (const int64_t end = begin + bytes; begin < end;) {
    const int64_t n = std::min(kChunk, end - begin);
    read(begin, chunk.data(), n);
    add(chunk.data(), n);
    begin += n;
  }
}

void ContentDigest::each_sample(int64_t begin, int64_t bytes, int64_t blocks,
                                const std::function<void(int64_t offset, int64_t bytes)>& visit) {
  if (bytes / kBlock < blocks) return visit(begin, bytes);
  // The quotient and the remainder apart: their product with a block's number does not overflow.
  const int64_t last = bytes - kBlock, step = last / (blocks - 1), rest = last % (blocks - 1);
  for (int64_t i = 0; i < blocks; ++i) visit(begin + i * step + i * rest / (blocks - 1), kBlock);
}

int64_t ContentDigest::add_samples(int64_t begin, int64_t bytes, int64_t blocks, const Read& read) {
  int64_t sum = 0;
  each_sample(begin, bytes, blocks, [&](int64_t offset, int64_t n) {
    add(offset, n, read);
    sum += n;
  });
  return sum;
}

uint64_t ContentDigest::value() const { return XXH3_64bits_digest(state_->hash); }

int64_t sample_blocks(int64_t bytes, int64_t total, int64_t least) {
  if (total <= kReadWhole) return (bytes / kBlock + 2) | 1;
  return std::max(least, (bytes / (total / (kShared / kBlock) + 1)) | 1);
}

}  // namespace sherd
