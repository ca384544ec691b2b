// Files in memory, for reading only.
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/file_system.h>

/// One folder, "/d", of files.
class MemoryFileSystem : public sherd::FileSystem {
 public:
  using Path = std::filesystem::path;

  explicit MemoryFileSystem(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  std::unique_ptr<sherd::ReadableFile> open(const Path& path) override {
    if (kind(path) != Kind::file) throw sherd::IoError("cannot open '" + path.string() + "'");
    return std::make_unique<File>(path, files_.at(path.filename()));
  }
  std::vector<std::string> list(const Path&) override {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : files_) names.push_back(name);
    return names;
  }
  Kind kind(const Path& path) override {
    if (path == "/d") return Kind::folder;
    return path.parent_path() == "/d" && files_.contains(path.filename()) ? Kind::file : Kind::none;
  }

  std::unique_ptr<sherd::WritableFile> create_new(const Path&) override { refuse(); }
  bool create_folder(const Path&) override { refuse(); }
  void rename(const Path&, const Path&) override { refuse(); }
  void exchange(const Path&, const Path&) override { refuse(); }
  void sync_folder(const Path&) override { refuse(); }
  void remove_all(const Path&) override { refuse(); }
  std::unique_ptr<sherd::FileLock> lock(const Path&) override { refuse(); }
  std::unique_ptr<sherd::FileLock> lock_existing(const Path&) override { refuse(); }

 private:
  class File : public sherd::ReadableFile {
   public:
    File(Path path, const std::string& bytes) : path_(std::move(path)), bytes_(bytes) {}
    const Path& path() const override { return path_; }
    int64_t size() const override { return std::ssize(bytes_); }
    /// Reading outside of the file would be the reader's fault: no IoError.
    void read_at(int64_t offset, void* to, int64_t bytes) const override {
      if (offset < 0 || bytes < 0 || offset > size() || bytes > size() - offset)
        throw std::logic_error("reads outside of a file");
      std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(bytes));
    }

   private:
    Path path_;
    const std::string& bytes_;
  };
  [[noreturn]] static void refuse() { throw std::logic_error("a reader changes files"); }

  std::map<std::string, std::string> files_;
};
