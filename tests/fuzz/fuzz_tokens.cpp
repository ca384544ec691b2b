// Any bytes as a Megatron index, and as the header of a token file, are accepted or refused with an IoError that can be
// printed. What is accepted lies inside the file.
#include <cstring>
#include <filesystem>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include <sherd/base/error.h>
#include <sherd/train/data/megatron_index.h>
#include <sherd/train/data/token_format.h>

#include "messages.h"

using namespace sherd;
namespace fs = std::filesystem;

namespace {

/// Bytes in memory: reading outside of them is the reader's fault.
class Memory : public FileBytes {
 public:
  Memory(const char* name, std::string_view bytes) : path_(name), bytes_(bytes) {}
  const fs::path& path() const override { return path_; }
  int64_t size() const override { return std::ssize(bytes_); }
  void read(int64_t offset, void* to, int64_t bytes) const override {
    if (offset < 0 || bytes < 0 || offset > size() || bytes > size() - offset)
      throw std::logic_error("reads outside of a file");
    if (bytes > 0) std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(bytes));
  }

 private:
  fs::path path_;
  std::string_view bytes_;
};

/// Two bytes give the size of the .bin, the rest is the index.
void read_index(std::string_view input) {
  uint16_t bin = 0;
  if (input.size() < sizeof bin) return;
  std::memcpy(&bin, input.data(), sizeof bin);
  try {
    read_megatron_index(Memory("x.idx", input.substr(sizeof bin)), Memory("x.bin", std::string(bin, 'x')));
  } catch (const IoError& e) {
    require_printable(e.what());
  }
}

void open_file(std::string_view input) {
  static const int file = ::memfd_create("tokens", 0);
  static const fs::path path = "/proc/self/fd/" + std::to_string(file);
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, input.data(), input.size(), 0) != std::ssize(input))
    throw std::runtime_error("no file in memory");
  for (const TokenFormat format :
       {TokenFormat::automatic, TokenFormat::llmc, TokenFormat::u16, TokenFormat::u32}) {
    try {
      const TokenFile tokens = open_token_file(path, format);
      if (tokens.count <= 0 || tokens.begin < 0 || tokens.begin > std::ssize(input) ||
          tokens.count > (std::ssize(input) - tokens.begin) / bytes_of(tokens.type))
        throw std::logic_error("tokens outside of a file");
    } catch (const IoError& e) {
      require_printable(e.what());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_index(bytes);
  open_file(bytes);
  return 0;
}
