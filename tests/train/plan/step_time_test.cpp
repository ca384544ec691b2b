// Records played on hand-made profiles, and profiles as files.
#include <sherd/train/plan/step_time.h>

#include <nlohmann/json.hpp>

#include <sherd/base/error.h>

#include "support/message_of.h"

namespace sherd {
namespace {

using ::testing::DoubleNear;

/// 1 GFLOP/s, 1 GB/s of memory and links, no latencies, two ranks on a host.
HardwareProfile simple() {
  return {.name = "simple",
          .memory_bytes = 1 << 30,
          .ranks_per_host = 2,
          .memory_bytes_per_s = 1e9,
          .operation_s = 0,
          .products_16 = {{1, 1e9}},
          .products_32 = {{1, 1e9}},
          .host = {0, {{1, 1e9}}},
          .network = {0, {{1, 1e9}}}};
}

DryEntry product(int stream, double seconds, Operation what = {"gemm", WorkKind::product}) {
  return {.stream = stream, .what = what, .work = {.flops = seconds * 1e9}};
}
DryEntry event(int stream, DryEntry::Kind kind, int64_t number) {
  return {.kind = kind, .stream = stream, .number = number};
}

TEST(StepTime, StreamsOverlapAndWaitForEvents) {
  using enum DryEntry::Kind;
  DryRecord r;
  r.streams = {"compute", "gather"};
  r.exchanges = {
      {"all_gather", "", 2'000'000'000, std::make_shared<const std::vector<int>>(std::vector{0, 1})}};
  // A gather of 2 s beside a product of 1 s, a product of 3 s behind both, then an update of 0.5 s.
  r.entries = {{.kind = exchange, .stream = 1},
               event(1, record, 1),
               product(0, 1),
               event(0, wait, 1),
               product(0, 3),
               product(0, 0, {"update begins", WorkKind::update}),
               product(0, 0.5, "adamw")};
  const StepTime t = play(r, simple());
  EXPECT_THAT(t.total, DoubleNear(5.5, 1e-9));
  EXPECT_THAT(t.compute, DoubleNear(4, 1e-9));
  EXPECT_THAT(t.exposed_communication, DoubleNear(1, 1e-9));
  EXPECT_THAT(t.optimizer, DoubleNear(0.5, 1e-9));
  HardwareProfile cores = simple();
  cores.shares_cores = true;
  EXPECT_THAT(play(r, cores).total, DoubleNear(6.5, 1e-9)) << "nothing runs beside the gather";
}

TEST(StepTime, MemoryThatWasReturnedIsTakenAgain) {
  DryRecord r;
  r.streams = {"compute"};
  r.entries = {product(0, 1)};
  r.taken = 3'000'000'000;  // a first use of 2 GB among it
  r.returned = 1'000'000'000;
  EXPECT_THAT(play(r, simple()).total, DoubleNear(11, 1e-9)) << "by a tenth of the rate of memory";
  HardwareProfile h = simple();
  h.fresh_bytes_per_s = 5e8;
  EXPECT_THAT(play(r, h).total, DoubleNear(3, 1e-9));
  EXPECT_THAT(play(r, h).compute, DoubleNear(3, 1e-9));
}

TEST(StepTime, ALinkCarriesOneCollectiveAtATime) {
  using enum DryEntry::Kind;
  DryRecord r;
  r.streams = {"compute", "gather", "reduce"};
  const auto ranks = std::make_shared<const std::vector<int>>(std::vector{0, 1});
  r.exchanges = {{"all_gather", "", 1'000'000'000, ranks}, {"reduce_scatter", "", 1'000'000'000, ranks}};
  r.entries = {{.kind = exchange, .stream = 1, .number = 0}, {.kind = exchange, .stream = 2, .number = 1}};
  EXPECT_THAT(play(r, simple()).total, DoubleNear(2, 1e-9));
}

TEST(StepTime, RanksOfAHostAddTheirAdapters) {
  HardwareProfile h = simple();
  h.host.bytes_per_s = {{1, 8e9}};
  EXPECT_THAT(seconds_of(4e9, 4, 2, h), DoubleNear(2, 1e-9));  // two hosts of two ranks
  EXPECT_THAT(seconds_of(4e9, 2, 1, h), DoubleNear(4, 1e-9));  // two hosts of one rank
  EXPECT_THAT(seconds_of(4e9, 2, 2, h), DoubleNear(0.5, 1e-9));
}

TEST(HardwareProfiles, RatesAreInterpolated) {
  const std::vector<SizedRate> rates = {{1, 1}, {100, 100}};
  EXPECT_THAT(rate_at(rates, 10), DoubleNear(10, 1e-9));
  EXPECT_THAT(rate_at(rates, 0.1), DoubleNear(1, 1e-9));
  EXPECT_THAT(rate_at(rates, 1e4), DoubleNear(100, 1e-9));
}

TEST(HardwareProfiles, FilesGiveWhatWasWritten) {
  for (const std::string& name : hardware_names()) {
    const HardwareProfile p = hardware_profile(name);
    EXPECT_EQ(to_text(parse_hardware(to_text(p), "file")), to_text(p)) << name;
  }
}

TEST(HardwareProfiles, FilesKeepFactorsOfOperations) {
  HardwareProfile p = hardware_profile("cpu");
  p.factors_16 = {{"gemm_gelu", 1.5}};
  p.factors_32 = {{"adamw", 0.5}};
  EXPECT_EQ(parse_hardware(to_text(p), "file").factors_16, p.factors_16);
  EXPECT_EQ(parse_hardware(to_text(p), "file").factors_32, p.factors_32);
}

TEST(HardwareProfiles, OlderFilesHaveNoRatesByKind) {
  HardwareProfile p = hardware_profile("h200");
  auto older = nlohmann::json::parse(to_text(p));
  EXPECT_EQ(to_text(parse_hardware(older.dump(), "file")), to_text(p));
  older.erase("rates_16");
  older.erase("rates_32");
  p.rates_16 = p.rates_32 = {};
  EXPECT_EQ(to_text(parse_hardware(older.dump(), "file")), to_text(p));
  older["rates_16"] = {{"attention", {{64, 4e14}}}, {"attentions", {{64, 4e14}}}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)parse_hardware(older.dump(), "mine.json"); }),
              HasSubstr("\"rates_16.attentions\" is [[64,400000000000000.0]]: the key is unknown"));
}

TEST(StepTime, KindsHaveRatesByWidth) {
  DryRecord r;
  r.streams = {"compute"};
  // 1 s of products at the general rate; 1 s of memory.
  r.entries = {product(0, 1),
               {.what = {"attention_forward", WorkKind::attention}, .work = {.flops = 1e9, .width = 64}},
               {.what = {"cross_entropy_forward", WorkKind::loss}, .work = {.bytes = 1'000'000'000}},
               {.what = "rms_norm_forward", .work = {.bytes = 1'000'000'000, .width = 256}}};
  HardwareProfile h = simple();
  EXPECT_THAT(play(r, h).total, DoubleNear(4, 1e-9)) << "without rates";
  h.rates_32 = {{WorkKind::product, {{1, 9e9}}},
                {WorkKind::attention, {{64, .5e9}, {128, .8e9}}},
                {WorkKind::loss, {{1, .25e9}}},
                {WorkKind::compute, {{64, .1e9}, {1024, .4e9}}}};
  EXPECT_THAT(play(r, h).total, DoubleNear(1 + 2 + 4 + 5, 1e-9))
      << "a product is never faster than its size allows";
  r.entries[3].work.width = 0;
  EXPECT_THAT(play(r, h).total, DoubleNear(1 + 2 + 4 + 2.5, 1e-9)) << "as the widest";
  r.entries[0].work.dtype = DType::bf16;
  EXPECT_THAT(play(r, h).total, DoubleNear(4, 1e-9)) << "a step in 16 bits has other rates";
}

TEST(HardwareProfiles, OlderFilesHaveNoMemoryOfCommunicators) {
  HardwareProfile p = hardware_profile("cpu");
  p.communicator_bytes = 500'000'000;
  std::string text = to_text(p);
  EXPECT_EQ(parse_hardware(text, "file").communicator_bytes, 500'000'000);
  const std::string line = "\"communicator_bytes\": 500000000,";
  text.erase(text.find(line), line.size());
  EXPECT_EQ(parse_hardware(text, "file").communicator_bytes, 0);
}

TEST(HardwareProfiles, AreFoundByTheNamesOfDrivers) {
  const auto found = [](std::string_view name) {
    const auto profile = profile_of_device(name);
    return profile ? profile->name : "";
  };
  EXPECT_EQ(found("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(found("NVIDIA A100 80GB PCIe"), "a100") << "as fast as the others";
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(found("NVIDIA H200"), "h200");
  EXPECT_EQ(found("NVIDIA B200"), "b200");
  EXPECT_EQ(found("NVIDIA GB200"), "gb200");
  for (const char* name : {"", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40S", "Emulated GPU"})
    EXPECT_EQ(found(name), "") << name;
}

TEST(HardwareProfiles, HavePeaksByDtype) {
  const HardwareProfile h100 = hardware_profile("h100");
  EXPECT_EQ(h100.dense_peak(DType::bf16), 989e12);
  EXPECT_EQ(h100.dense_peak(DType::f32), 67e12);
  EXPECT_EQ(h100.dense_peak(DType::f32, true), 494.5e12);
  EXPECT_EQ(hardware_profile("cpu").dense_peak(DType::f32), std::nullopt);
}

// Files of --measure from before it stored peaks hold the measured rate of products.
TEST(HardwareProfiles, EarlierMeasuredFilesHaveNoPeak) {
  HardwareProfile p = hardware_profile("h100");
  const auto earlier = [&] {
    std::string text = to_text(p);
    const size_t begin = text.find("  \"peak_flops_32\"");
    return parse_hardware(text.erase(begin, text.find('\n', begin) - begin + 1), "file");
  };
  EXPECT_EQ(earlier().dense_peak(DType::bf16), 989e12) << "of a program's own profile";
  p.name = kMeasuredHardware;
  EXPECT_EQ(earlier().dense_peak(DType::bf16), std::nullopt);
  EXPECT_EQ(parse_hardware(to_text(p), "file").dense_peak(DType::bf16), 989e12);
}

TEST(StepTime, OperationsTakeTheirFactors) {
  DryRecord r;
  r.streams = {"compute"};
  r.entries = {product(0, 1), product(0, 1, "attention_forward")};
  HardwareProfile h = simple();
  h.factors_32 = {{"attention_forward", 2}};
  h.factors_16 = {{"attention_forward", 5}};
  EXPECT_THAT(play(r, h).total, DoubleNear(3, 1e-9));
  r.entries[0].work.dtype = DType::bf16;
  EXPECT_THAT(play(r, h).total, DoubleNear(6, 1e-9));
}

TEST(HardwareProfiles, RefuseMissingAndUnknownKeys) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text = to_text(hardware_profile("h100"));
    text.replace(text.find(from), from.size(), to);
    return message_of<InvalidArgument>([&] { (void)parse_hardware(text, "mine.json"); });
  };
  EXPECT_THAT(refusal("\"operation_s\"", "\"operations\""),
              AllOf(HasSubstr("'mine.json': \"operation_s\" is missing"), HasSubstr("--measure")));
  EXPECT_THAT(refusal("\"peak_flops\"", "\"extra\": 1, \"peak_flops\""),
              HasSubstr("\"extra\" is 1: the key is unknown; the keys are communication_efficiency"));
  EXPECT_THAT(refusal("\"products_16\": [", "\"products_16\": [], \"a\": ["),
              HasSubstr("\"products_16\" is []: rows [[size, rate], ...] are needed"));
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)hardware_profile("h500"); }), HasSubstr("a100, h100"));
}

TEST(HardwareProfiles, NumbersThatNoMachineHasAreRefusedByTheirPlace) {
  const auto refusal = [](const std::string& path, const nlohmann::json& value) {
    nlohmann::json profile = nlohmann::json::parse(to_text(hardware_profile("h100")));
    profile[nlohmann::json::json_pointer(path)] = value;
    return message_of<InvalidArgument>([&] { (void)parse_hardware(profile.dump(), "mine.json"); });
  };
  for (const nlohmann::json& value : {nlohmann::json(1e300), nlohmann::json(-1), nlohmann::json("8"),
                                      nlohmann::json(), nlohmann::json::array({8})}) {
    EXPECT_THAT(refusal("/memory_bytes", value), HasSubstr("'mine.json': \"memory_bytes\" is "));
    EXPECT_THAT(refusal("/ranks_per_host", value), HasSubstr("\"ranks_per_host\" is "));
    EXPECT_THAT(refusal("/peak_flops", value), HasSubstr("\"peak_flops\" is "));
    EXPECT_THAT(refusal("/host/latency_s", value), HasSubstr("\"host.latency_s\" is "));
    EXPECT_THAT(refusal("/network/bytes_per_s/1/1", value), HasSubstr("\"network.bytes_per_s[1]\" is ["));
    EXPECT_THAT(refusal("/factors_16/gemm", value), HasSubstr("\"factors_16.gemm\" is "));
  }
  EXPECT_THAT(refusal("/ranks_per_host", 0), HasSubstr("\"ranks_per_host\" is 0: a number from 1 "));
  EXPECT_THAT(refusal("/communicator_bytes", 1e19), HasSubstr("\"communicator_bytes\" is 1e+19"));
  EXPECT_THAT(refusal("/products_32/1/0", 1), HasSubstr("sort the rows"));
  EXPECT_THAT(refusal("/products_32/0/1", 0), HasSubstr("\"products_32[0]\" is ["));
  // Rates are interpolated between logarithms of sizes.
  EXPECT_THAT(refusal("/products_32/0/0", 0), HasSubstr("\"products_32[0]\" is ["));
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)parse_hardware("{\"name\": NaN}", "mine.json"); }),
              AllOf(HasSubstr("'mine.json': it is not valid JSON"), HasSubstr("--measure")));
}

}  // namespace
}  // namespace sherd
