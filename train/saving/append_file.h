// Append-only file of whole records, which are buffered while the system cannot take them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sherd {

/// Writes each record at once, so that it can be read at once. One thread uses it.
class AppendFile {
 public:
  /// Opens the file for appending, creates it where it is missing and locks it (flock): two runs cannot share
  /// one. Pipes and devices are neither locked nor emptied.
  /// @param what names it in messages: "metrics", of which a record is a "line". Both outlive the object.
  /// @param keep what is in it already; otherwise it is emptied.
  /// @param takes_over called when another process holds the file: whether that is an earlier start of this
  /// run, which may be suspended or on an unreachable host. Then a copy takes the file's name, and the other
  /// process writes to the file that has lost its name. Null: that is refused.
  /// @throws IoError.
  AppendFile(std::string path, const char* what, const char* record, bool keep,
             const std::function<bool()>& takes_over = {});

  /// Appends a record. It is in the file (handed to the system) on return, unless failure() says otherwise:
  /// records then wait, and are tried again before the next one and by flush(). Beyond 16 MiB, further
  /// records are lost. A regular file never keeps partial records.
  void write(std::string_view record);
  /// Appends text that does not count as a record. @throws IoError when it cannot be written.
  void write_head(std::string_view head);
  void flush();
  /// Returns why records are missing in the file, and how many; empty when it has all.
  std::string failure() const;
  const std::string& path() const { return path_; }

 private:
  bool write_waiting();
  [[noreturn]] void fail() const;
  void open(const std::string& path, const char* mode);
  bool lock();
  void take_over(bool keep);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  const char *what_, *record_;
  std::unique_ptr<std::FILE, Close> file_;  // opened for appending; written to by its descriptor alone
  std::string waiting_;
  int64_t records_waiting_ = 0, records_lost_ = 0;
  int error_ = 0;
};

}  // namespace sherd
