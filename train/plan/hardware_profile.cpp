#include <sherd/train/plan/hardware_profile.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

namespace sherd {
namespace {

using nlohmann::ordered_json;

/// Figures of a GPU from data sheets and published measurements (docs/planning.md has the sources).
struct Gpu {
  const char* name;
  double memory_gb, memory_tb_per_s;
  double peak_16, peak_32, products_16, products_32;  // TFLOP/s: dense peaks; measured in large products
  double host_gb_per_s, network_gb_per_s;             // bus bandwidth of a rank, one way
  int ranks_per_host;
  const char* other_forms = "";  // words in the driver's names of slower forms
};

constexpr Gpu kGpus[] = {{"a100", 80, 2.0, 312, 19.5, 271, 17.5, 240, 25, 8},
                         {"h100", 80, 3.35, 989, 67, 794.5, 60, 361, 50, 8, "PCIe NVL"},
                         {"h200", 141, 4.8, 989, 67, 794, 60, 361, 50, 8, "NVL"},
                         {"b200", 180, 7.67, 2250, 75, 1745, 67, 682, 50, 8},
                         {"gb200", 186, 8.0, 2500, 80, 1822, 72, 682, 50, 72},
                         {"gb300", 288, 8.0, 2500, 80, 1822, 72, 682, 100, 72}};

/// Parts of the rate of large products by FLOPs (Isaev et al., Calculon, 2023).
std::vector<SizedRate> products(double tflops) {
  return {{1e8, .10e12 * tflops}, {1e9, .63e12 * tflops}, {16e9, .95e12 * tflops}, {128e9, 1e12 * tflops}};
}

/// Parts of an adapter's bandwidth by bytes: all-reduces of 4 hosts of 8 B200.
std::vector<SizedRate> network(double gb_per_s) {
  constexpr double kMiB = 1 << 20;
  return {{4 * kMiB, .047e9 * gb_per_s},
          {32 * kMiB, .228e9 * gb_per_s},
          {256 * kMiB, .573e9 * gb_per_s},
          {4096 * kMiB, .943e9 * gb_per_s}};
}

HardwareProfile profile_of(const Gpu& g) {
  return {.name = g.name,
          .memory_bytes = static_cast<int64_t>(g.memory_gb * 1e9),
          .ranks_per_host = g.ranks_per_host,
          .peak_flops = g.peak_16 * 1e12,
          .peak_flops_32 = g.peak_32 * 1e12,
          .memory_bytes_per_s = .9e12 * g.memory_tb_per_s,
          .operation_s = 3e-6,
          .products_16 = products(g.products_16),
          .products_32 = products(g.products_32),
          .host = {10e-6, {{1e5, .05e9 * g.host_gb_per_s}, {1e8, 1e9 * g.host_gb_per_s}}},
          .network = {20e-6, network(g.network_gb_per_s)}};
}

/// One core of an x86-64 server; --measure writes this machine's.
HardwareProfile cpu() {
  return {.name = "cpu",
          .memory_bytes = int64_t{16} << 30,
          .ranks_per_host = 64,
          .memory_bytes_per_s = 10e9,
          .operation_s = 2e-6,
          .products_16 = {{1e5, 5e9}, {1e7, 30e9}},
          .products_32 = {{1e5, 20e9}, {1e7, 60e9}},
          .host = {5e-6, {{1e4, 1e9}, {1e7, 5e9}}},
          .network = {50e-6, {{1e4, .1e9}, {1e7, 1e9}}}};
}

/// Words of letters and digits: of "NVIDIA A100-SXM4-80GB" {"NVIDIA", "A100", "SXM4", "80GB"}.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      words.back() += c;
    else
      words.emplace_back();
  }
  std::erase(words, "");
  return words;
}

/// Reads the members of an object, each of which must be there, and refuses others.
class Members {
 public:
  Members(const ordered_json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object.is_object()) refuse("is not an object; write {...}");
  }
  double number(const char* key, bool zero = false) {
    const ordered_json& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0 ||
        (!zero && value.get<double>() == 0))
      refuse(fmt::format("\"{}\" is {}; write a number greater than 0", key, value.dump()));
    return value;
  }
  std::vector<SizedRate> rates(const char* key) {
    const ordered_json& rows = at(key);
    std::vector<SizedRate> all;
    if (!rows.is_array() || rows.empty())
      refuse(fmt::format("\"{}\" has no rows; write [[size, rate], ...], at least one row", key));
    for (const ordered_json& row : rows) {
      if (!row.is_array() || row.size() != 2 || !row[0].is_number() || !row[1].is_number() || !(row[1] > 0))
        refuse(fmt::format("\"{}\" has the row {}; write [size, rate] with a rate greater than 0", key,
                           row.dump()));
      if (!all.empty() && !(row[0] > all.back().size))
        refuse(fmt::format("\"{}\" has the row {} after size {}; sort the rows by size", key, row.dump(),
                           all.back().size));
      all.push_back({row[0], row[1]});
    }
    return all;
  }
  OperationFactors factors(const char* key) {
    const ordered_json& object = at(key);
    if (!object.is_object())
      refuse(fmt::format("\"{}\" is {}; write {{operation: factor}}", key, object.dump()));
    OperationFactors all;
    for (const auto& [name, value] : object.items()) {
      if (!value.is_number() || !(value > 0))
        refuse(fmt::format("\"{}\": \"{}\" is {}; write a number greater than 0", key, name, value.dump()));
      all[name] = value;
    }
    return all;
  }
  const ordered_json& at(const char* key) {
    known_.push_back(key);
    const auto it = object_.find(key);
    if (it == object_.end()) refuse(fmt::format("\"{}\" is missing; add it, or measure again", key));
    return *it;
  }
  void require_no_others() const {
    for (const auto& [key, value] : object_.items())
      if (std::ranges::find(known_, key) == known_.end())
        refuse(fmt::format("\"{}\" is unknown; the keys are {}", key, fmt::join(known_, ", ")));
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InvalidArgument(fmt::format("{}: {}", place_, what));
  }
  const ordered_json& object_;
  const std::string place_;
  std::vector<std::string> known_;
};

LinkProfile read_link(const ordered_json& object, const std::string& place) {
  Members m(object, place);
  LinkProfile link{m.number("latency_s", true), m.rates("bytes_per_s")};
  m.require_no_others();
  return link;
}

ordered_json rows_of(const std::vector<SizedRate>& rates) {
  ordered_json rows = ordered_json::array();
  for (const SizedRate& r : rates) rows.push_back({r.size, r.rate});
  return rows;
}

ordered_json json_of(const LinkProfile& link) {
  return {{"latency_s", link.latency_s}, {"bytes_per_s", rows_of(link.bytes_per_s)}};
}

}  // namespace

double rate_at(const std::vector<SizedRate>& rates, double size) {
  const auto above = std::ranges::find_if(rates, [&](const SizedRate& r) { return r.size >= size; });
  if (above == rates.begin()) return above->rate;
  if (above == rates.end()) return rates.back().rate;
  const SizedRate &low = *(above - 1), &high = *above;
  const double part = std::log(size / low.size) / std::log(high.size / low.size);
  return low.rate * std::pow(high.rate / low.rate, part);
}

std::optional<double> HardwareProfile::dense_peak(DType dtype, bool tf32) const {
  const double peak = size_of(dtype) == 2 ? peak_flops : tf32 ? peak_flops / 2 : peak_flops_32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const Gpu& g : kGpus) names.emplace_back(g.name);
  names.emplace_back("cpu");
  return names;
}

HardwareProfile hardware_profile(const std::string& name) {
  if (name == "cpu") return cpu();
  for (const Gpu& g : kGpus)
    if (name == g.name) return profile_of(g);
  if (!std::filesystem::exists(name))
    throw InvalidArgument(
        fmt::format("hardware '{}' is unknown and is not a file; use {}, or a file of --measure", name,
                    fmt::join(hardware_names(), ", ")));
  std::ifstream in(name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in)
    throw IoError(
        fmt::format("{}: cannot be read ({}); name a file of --measure", name, std::strerror(errno)));
  return parse_hardware(text.str(), name);
}

std::optional<HardwareProfile> profile_of_device(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  const auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
  for (const Gpu& g : kGpus) {
    std::string model = g.name;
    for (char& c : model) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (has(model) && !has("MIG") && std::ranges::none_of(words_of(g.other_forms), has)) return profile_of(g);
  }
  return std::nullopt;
}

HardwareProfile parse_hardware(std::string_view text, const std::string& source) {
  const ordered_json object = ordered_json::parse(text, nullptr, false);
  if (object.is_discarded())
    throw InvalidArgument(fmt::format("{}: not JSON; write a file by --measure", source));
  Members m(object, source);
  HardwareProfile p{.name = source};
  if (!m.at("name").is_string()) throw InvalidArgument(fmt::format("{}: \"name\" is not a string", source));
  p.name = m.at("name");
  p.memory_bytes = static_cast<int64_t>(m.number("memory_bytes"));
  if (object.contains("communicator_bytes"))
    p.communicator_bytes = static_cast<int64_t>(m.number("communicator_bytes", true));
  p.ranks_per_host = std::max(1, static_cast<int>(m.number("ranks_per_host")));
  p.peak_flops = m.number("peak_flops", true);
  if (object.contains("peak_flops_32"))
    p.peak_flops_32 = m.number("peak_flops_32", true);
  else if (p.name == kMeasuredHardware)  // earlier files have the rate of measured products there
    p.peak_flops = 0;
  p.memory_bytes_per_s = m.number("memory_bytes_per_s");
  p.operation_s = m.number("operation_s", true);
  p.products_16 = m.rates("products_16");
  p.products_32 = m.rates("products_32");
  p.host = read_link(m.at("host"), source + ": \"host\"");
  p.network = read_link(m.at("network"), source + ": \"network\"");
  p.factors_16 = m.factors("factors_16");
  p.factors_32 = m.factors("factors_32");
  p.compute_efficiency = m.number("compute_efficiency");
  p.communication_efficiency = m.number("communication_efficiency");
  m.require_no_others();
  return p;
}

std::string to_text(const HardwareProfile& p) {
  const ordered_json object = {{"name", p.name},
                               {"memory_bytes", p.memory_bytes},
                               {"communicator_bytes", p.communicator_bytes},
                               {"ranks_per_host", p.ranks_per_host},
                               {"peak_flops", p.peak_flops},
                               {"peak_flops_32", p.peak_flops_32},
                               {"memory_bytes_per_s", p.memory_bytes_per_s},
                               {"operation_s", p.operation_s},
                               {"products_16", rows_of(p.products_16)},
                               {"products_32", rows_of(p.products_32)},
                               {"host", json_of(p.host)},
                               {"network", json_of(p.network)},
                               {"factors_16", p.factors_16},
                               {"factors_32", p.factors_32},
                               {"compute_efficiency", p.compute_efficiency},
                               {"communication_efficiency", p.communication_efficiency}};
  return object.dump(2) + "\n";
}

}  // namespace sherd
