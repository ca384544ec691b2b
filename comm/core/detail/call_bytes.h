// Calls as bytes, for ranks that compare them before data moves. Private to comm/.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <sherd/comm/core/detail/call.h>

namespace sherd::comm {

/// Appends values. All processes of a job run one build on one kind of host, so numbers are copied as they are in
/// memory.
class ByteWriter {
 public:
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void operator()(const std::string& text);
  /// Equal numbers, as most collectives have them, are stored once.
  void operator()(const std::vector<int64_t>& numbers);
  /// The call without its tensors and its flight record.
  void operator()(const Call& call);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a ByteWriter has appended, in the same order. After a read beyond the end, or of something that no
/// writer appends, the values are zero or empty and at_end() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    value = {};
    // Unaligned bytes are copied, never cast.
    if (const auto bytes = take(sizeof value); good_) std::memcpy(&value, bytes.data(), sizeof value);
  }
  void operator()(std::string& text);
  void operator()(std::vector<int64_t>& numbers);
  void operator()(Call& call);

  /// Returns whether everything was read, and all of it was good.
  bool at_end() const { return good_ && rest_.empty(); }

 private:
  std::string_view take(size_t bytes);

  std::string_view rest_;
  bool good_ = true;
};

/// Converts a call to bytes and back; nothing for bytes that are not a call.
std::string encode(const Call& call);
std::optional<Call> decode_call(std::string_view bytes);

}  // namespace sherd::comm
