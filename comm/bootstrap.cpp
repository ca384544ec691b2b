#include <sherd/comm/bootstrap.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include <sherd/kernels/error.h>

namespace sherd {
namespace {

struct Family {
  const char *rank, *size, *local_rank;
};
constexpr Family kFamilies[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};

/// Collects what is wrong while it reads.
class Reader {
 public:
  explicit Reader(const std::function<const char*(const char*)>& get) : get_(get) {}

  std::string text(const char* name) const {
    const char* value = get_(name);
    return value ? value : "";
  }
  bool has(const char* name) const { return !text(name).empty(); }

  int number(const char* name, long least, long most) {
    const std::string value = text(name);
    if (value.empty()) {
      wrong(fmt::format("{} is not set", name));
      return static_cast<int>(least);
    }
    char* end = nullptr;
    errno = 0;
    const long n = std::strtol(value.c_str(), &end, 10);
    if (*end != '\0' || errno != 0 || n < least || n > most) {
      wrong(fmt::format("{} is \"{}\", not a number from {} to {}", name, value, least, most));
      return static_cast<int>(least);
    }
    return static_cast<int>(n);
  }
  void wrong(std::string what) { problems_.push_back(std::move(what)); }
  void done() const {
    if (!problems_.empty())
      throw InvalidArgument(
          fmt::format("launch environment: {}. Start the program by torchrun, srun or mpirun, or set RANK, "
                      "WORLD_SIZE, LOCAL_RANK, and for several processes MASTER_ADDR and MASTER_PORT",
                      fmt::join(problems_, "; ")));
  }
  bool good() const { return problems_.empty(); }

 private:
  const std::function<const char*(const char*)>& get_;
  std::vector<std::string> problems_;
};

}  // namespace

LaunchEnvironment from_environment(const std::function<const char*(const char*)>& get) {
  constexpr int kMost = 1 << 20;
  const std::function<const char*(const char*)> system = [](const char* name) { return std::getenv(name); };
  Reader reader(get ? get : system);

  const Family* family = &kFamilies[0];
  for (const Family& f : kFamilies) {
    if (reader.has(f.rank) || reader.has(f.size) || reader.has(f.local_rank)) {
      family = &f;
      break;
    }
  }
  LaunchEnvironment e;
  e.rank = reader.number(family->rank, 0, kMost);
  e.size = reader.number(family->size, 1, kMost);
  e.local_rank = reader.number(family->local_rank, 0, kMost);
  if (reader.good() && (e.rank >= e.size || e.local_rank >= e.size))
    reader.wrong(fmt::format("{} is {} and {} is {}, but {} is {}", family->rank, e.rank, family->local_rank,
                             e.local_rank, family->size, e.size));
  if (!reader.good() || e.size > 1) {
    e.store_host = reader.text("MASTER_ADDR");
    if (e.store_host.empty()) reader.wrong("MASTER_ADDR is not set");
    e.store_port = reader.has("SHERD_STORE_PORT") ? reader.number("SHERD_STORE_PORT", 1, 65535)
                                                  : reader.number("MASTER_PORT", 1, 65534) + 1;
  }
  reader.done();
  return e;
}

}  // namespace sherd
