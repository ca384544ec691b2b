// Calls as bytes, for ranks that compare them before data moves. Private to comm/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sherd/comm/core/detail/call.h>

namespace sherd::comm {

/// Appends numbers and text. All processes of a job run one build on one kind of host, so numbers are copied as
/// they are in memory.
class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text);
  /// Equal numbers, as most collectives have them, are stored once.
  void put_all(const std::vector<int64_t>& numbers);
  /// The call without its tensors and its flight record.
  void put_call(const Call& call);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a ByteWriter has put, in the same order. After a read beyond the end, or of something that no writer
/// puts, good() is false and all values are zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    T value{};
    // Unaligned bytes are copied, never cast.
    if (const std::string_view bytes = take(sizeof value); good_)
      std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string get_text() { return std::string(take(get_size())); }
  std::vector<int64_t> get_all();
  Call get_call();

  bool good() const { return good_; }
  /// Returns whether everything was read, and good().
  bool at_end() const { return good_ && rest_.empty(); }

 private:
  size_t get_size();
  std::string_view take(size_t bytes);

  std::string_view rest_;
  bool good_ = true;
};

/// Converts a call to bytes and back; nothing for bytes that are not a call.
std::string encode(const Call& call);
std::optional<Call> decode_call(std::string_view bytes);

}  // namespace sherd::comm
