// The training text: bytes from disk, each of them a token, and which of them each step sees. Messages name
// the flags --data and --seq.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace sherd {

/// All bytes of a file, or of a folder: every regular file below it, sorted by full path as a byte string,
/// concatenated. Links below the folder are not followed. Immutable: load once, share among ranks.
class ByteData {
 public:
  /// @throws IoError naming the path that is missing or unreadable.
  static std::shared_ptr<const ByteData> load(const std::filesystem::path& path);

  /// `source` stands in messages for where the bytes came from.
  ByteData(std::string source, std::vector<uint8_t> bytes)
      : source_(std::move(source)), bytes_(std::move(bytes)) {}

  const std::string& source() const { return source_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::string source_;
  std::vector<uint8_t> bytes_;
};

/// The bytes as windows of `seq` tokens: W = floor((bytes - 1) / seq), of which the last floor(W / 50) are
/// held out.
class ByteWindows {
 public:
  /// @throws IoError when there is no window to train on, with the bytes found and needed.
  ByteWindows(std::shared_ptr<const ByteData> data, int64_t seq);

  int64_t seq() const { return seq_; }
  /// ByteWindows [0, train_count()) are trained on ...
  int64_t train_count() const { return train_count_; }
  /// ... and [train_count(), train_count() + held_out_count()) are held out; none below 50 windows.
  int64_t held_out_count() const { return held_out_count_; }

  /// Window of the sequence that is number `sequence` of the whole training, from 0.
  int64_t train_window(int64_t sequence) const;

  /// "data /usr/include/c++/12: 11714044 bytes, 44842 windows of 256 to train on, 915 held out".
  std::string summary() const;
  /// "11714044 bytes, XXH3 0123456789abcdef, windows of 256": equal only for equal data.
  std::string describe() const;

  /// Writes the window's seq tokens (0-255), and to `targets` the token after each.
  /// @throws InvalidArgument for a window that is neither trained on nor held out.
  void fill(int64_t window, int32_t* inputs, int32_t* targets) const;

 private:
  std::shared_ptr<const ByteData> data_;
  int64_t seq_;
  int64_t train_count_ = 0;
  int64_t held_out_count_ = 0;
};

}  // namespace sherd
