#include <sherd/comm/bootstrap/bootstrap.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <vector>

#include <sherd/base/enum_table.h>
#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/comm/bootstrap/detail/job_secret.h>
#include <sherd/comm/bootstrap/detail/socket.h>

namespace sherd {
namespace {

/// Names of the environment variables of one launcher.
struct Family {
  const char *rank, *size, *local_rank;
  const char* local_size;  // of processes on this host
  const char* job;
};
constexpr Family kTorch{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"};
constexpr Family kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"};
constexpr Family kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"};
constexpr Family kSlurm{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_JOB_ID"};

// From here on, Slurm's step numbers are not srun steps but batch scripts, shells of salloc and the like.
constexpr long kSlurmReservedSteps = 0xfffffff0;

constexpr int kMost = 1 << 20;

/// Reads variables and collects all errors, so that one message lists them.
class Reader {
 public:
  explicit Reader(const EnvironmentLookup& get)
      : get_(get ? get : [](const char* name) { return static_cast<const char*>(std::getenv(name)); }) {}

  std::string text(const char* name) const {
    const char* value = get_(name);
    return value ? value : "";
  }
  bool has(const char* name) const { return !text(name).empty(); }
  /// Nothing when it is not an integer within the bounds.
  std::optional<long> value(const char* name, long least, long most) const {
    const std::string t = text(name);
    char* end = nullptr;
    errno = 0;
    const long n = std::strtol(t.c_str(), &end, 10);
    if (t.empty() || *end != '\0' || errno != 0 || n < least || n > most) return std::nullopt;
    return n;
  }

  int number(const char* name, long least, long most) {
    if (const auto n = value(name, least, most)) return static_cast<int>(*n);
    wrong(has(name) ? fmt::format("{} is \"{}\", not a number from {} to {}", name, text(name), least, most)
                    : fmt::format("{} is not set", name));
    return static_cast<int>(least);
  }
  void wrong(std::string what) {
    problems_.push_back(std::move(what));
    who_and_where_ = true;
  }
  std::string secret() {
    return collected([&] { return job_secret(get_); });
  }
  WithoutSecret without_secret() {
    constexpr EnumTable<WithoutSecret, 2> words{"everywhere", "loopback"};
    return has(kWithoutSecret) ? collected([&] { return words.parse(kWithoutSecret, text(kWithoutSecret)); })
                               : WithoutSecret::everywhere;
  }
  void done() const {
    if (problems_.empty()) return;
    throw InvalidArgument(fmt::format(
        "launch environment: {}{}", fmt::join(problems_, "; "),
        who_and_where_
            ? ". Start the program by torchrun, srun or mpirun, or set RANK, WORLD_SIZE, LOCAL_RANK, "
              "and for several processes MASTER_ADDR and MASTER_PORT; or, if this process is to have "
              "all ranks, give job.bootstrap = none"
            : ""));
  }
  bool good() const { return problems_.empty(); }

 private:
  template <class Read>
  std::invoke_result_t<Read> collected(Read read) {
    try {
      return read();
    } catch (const InvalidArgument& e) {  // which says what to do
      problems_.push_back(e.what());
      return {};
    }
  }

  static constexpr const char* kWithoutSecret = "SHERD_STORE_WITHOUT_SECRET";

  const EnvironmentLookup get_;
  std::vector<std::string> problems_;
  bool who_and_where_ = false;  // one of them is about the launcher's variables
};

// The order matters where launchers are nested: torchrun or mpirun inside of a Slurm job sets its own
// variables beside Slurm's, and the inner launcher knows the rank.
const Family* family_in(const Reader& reader) {
  // One of the two suffices: a half-set environment is reported by from_environment(), not run as a job of
  // one.
  const auto present = [&](const Family& f) { return reader.has(f.rank) || reader.has(f.size); };
  const bool step = reader.has(kSlurm.rank) && reader.value("SLURM_STEP_ID", 0, kSlurmReservedSteps - 1);
  if (present(kTorch)) return &kTorch;
  if (present(kOpenMpi)) return &kOpenMpi;
  if (present(kPmi) && (reader.has(kPmi.local_rank) || !step)) return &kPmi;
  return step ? &kSlurm : nullptr;
}

// Returns whether the launcher's variables say that all processes share one host. Unknown counts as several.
bool on_one_host(const Reader& reader, const Family& family, int size) {
  if (&family == &kSlurm) return reader.value("SLURM_STEP_NUM_NODES", 1, kMost) == 1;
  return reader.value(family.local_size, 1, kMost) == size;
}

// Steps of one Slurm job are separate jobs here, with ports of their own.
std::string job_of(const Reader& reader, const Family& family) {
  const std::string job = reader.text(family.job);
  return &family == &kSlurm && !job.empty() ? job + "." + reader.text("SLURM_STEP_ID") : job;
}

/// Whether it may be a host's name or a numeric address; names are resolved later, since they may not be known yet.
bool may_be_host(const std::string& host) {
  if (host.find(':') != host.npos) return is_address(host);
  return std::ranges::all_of(
      host, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c >= 0x80; });
}

/// Without the brackets that addresses of IPv6 have in front of a port.
std::string bare(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2)
                                                                      : host;
}

/// Returns a port below the ephemeral range of systems.
int port_of(const std::string& job) {
  // FNV-1a: every process computes the same port from the job's name, without communication.
  uint32_t hash = 2166136261;
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  return static_cast<int>(20'000 + hash % 10'000);
}

}  // namespace

JobHint job_in_environment(const EnvironmentLookup& get) {
  const Reader reader(get);
  const Family* const family = family_in(reader);
  if (!family) return {};
  return {true, family->size, static_cast<int>(reader.value(family->size, 1, kMost).value_or(0))};
}

LaunchEnvironment from_environment(const EnvironmentLookup& get) {
  Reader reader(get);
  const Family* const found = family_in(reader);
  const Family& family = found ? *found : kTorch;
  // Without LOCAL_RANK a process is the only one on its host, as the Kubernetes operators start it.
  const bool lone_on_host = &family == &kTorch && found && !reader.has(kTorch.local_rank);
  LaunchEnvironment e;
  e.rank = reader.number(family.rank, 0, kMost);
  e.size = reader.number(family.size, 1, kMost);
  if (!lone_on_host) e.local_rank = reader.number(family.local_rank, 0, kMost);
  if (reader.good() && (e.rank >= e.size || e.local_rank >= e.size))
    reader.wrong(fmt::format("{} is {} and {} is {}, but {} is {}", family.rank, e.rank, family.local_rank,
                             e.local_rank, family.size, e.size));
  e.one_host = on_one_host(reader, family, e.size);
  e.job = job_of(reader, family);
  // Also after errors: one message then lists everything that is missing.
  if (!reader.good() || e.size > 1) {
    e.store_host = bare(reader.text("MASTER_ADDR"));
    if (e.store_host.empty() && e.one_host) e.store_host = "127.0.0.1";
    if (e.store_host.empty()) reader.wrong("MASTER_ADDR is not set");
    if (!may_be_host(e.store_host))
      reader.wrong(
          fmt::format("MASTER_ADDR is \"{}\", which is neither a host's name nor an address; the port is "
                      "MASTER_PORT",
                      printable(e.store_host)));
    if (reader.has("SHERD_STORE_PORT"))
      e.store_port = reader.number("SHERD_STORE_PORT", 1, 65535);
    else if (e.one_host && !reader.has("MASTER_PORT"))
      e.store_port = port_of(e.job);
    else
      // torchrun's own store may listen on MASTER_PORT itself.
      e.store_port = reader.number("MASTER_PORT", 1, 65534) + 1;
    e.secret = reader.secret();
    e.without_secret = reader.without_secret();
  }
  reader.done();
  return e;
}

}  // namespace sherd
