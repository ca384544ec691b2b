// Data "files" without a disk.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <sherd/train/data/token_stream.h>

namespace sherd::test {

class MemoryBytes : public FileBytes {
 public:
  MemoryBytes(std::filesystem::path path, std::vector<char> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  const std::filesystem::path& path() const override { return path_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* to, int64_t bytes) const override {
    std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(bytes));
  }

 private:
  std::filesystem::path path_;
  std::vector<char> bytes_;
};

template <class T>
std::vector<char> bytes_of(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline TokenFile memory_text(const std::vector<uint8_t>& text) {
  return {std::make_shared<const MemoryBytes>("test", bytes_of(text)), 0, static_cast<int64_t>(text.size()),
          TokenType::u8};
}

inline TokenFile memory_tokens(const std::string& name, const std::vector<uint16_t>& tokens) {
  return {std::make_shared<const MemoryBytes>(name, bytes_of(tokens)), 0, static_cast<int64_t>(tokens.size()),
          TokenType::u16};
}

/// A stream of one file.
inline std::shared_ptr<const TokenStream> stream_of(const std::string& source, TokenFile file) {
  return std::make_shared<const TokenStream>(source, std::vector<TokenFile>{std::move(file)});
}

/// `count` tokens, as if: token i is i mod 50000. For streams larger than memory.
class CountingBytes : public FileBytes {
 public:
  explicit CountingBytes(int64_t count) : count_(count) {}
  const std::filesystem::path& path() const override { return path_; }
  int64_t size() const override { return 4 * count_; }
  void read(int64_t offset, void* to, int64_t bytes) const override {
    for (int64_t i = 0; i < bytes; i += 4) {
      const auto token = static_cast<uint32_t>((offset + i) / 4 % 50000);
      std::memcpy(static_cast<char*>(to) + i, &token, 4);
    }
  }

 private:
  std::filesystem::path path_ = "counting";
  int64_t count_;
};

inline std::shared_ptr<const TokenStream> counting_stream(int64_t count,
                                                          const std::string& source = "counting") {
  return stream_of(source, {std::make_shared<const CountingBytes>(count), 0, count, TokenType::u32});
}

}  // namespace sherd::test
