// Forecasts beside runs: collectives and bytes are equal, peak memory of a step and of the run is within 1 %.
#include "train_gpt/run/forecast.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/comm/launcher.h>

#include "parse_flags.h"
#include "temporary_folder.h"
#include "train_gpt/run/trainer.h"
#include "train_gpt/run/windows.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {
namespace {

/// Counts of one rank's runtime in its third step.
struct Counted {
  std::map<std::string, std::pair<int64_t, int64_t>> comm;  // calls and bytes of all communicators
  std::map<std::string, std::pair<int64_t, int64_t>> reported;
  int64_t peak_bytes = 0, run_peak_bytes = 0;
  std::map<std::string, int64_t> by_class;
};

std::map<std::string, std::pair<int64_t, int64_t>> pairs_of(const sherd::CommCounts& counts) {
  std::map<std::string, std::pair<int64_t, int64_t>> pairs;
  for (auto& [name, c] : counts) pairs[name] = {c.calls, c.bytes};
  return pairs;
}

sherd::LaunchOptions one_thread() {
  return {.device = {.kernels = sherd::parse_cpu_kernels(TEST_KERNELS), .threads = 1}};
}

std::vector<Counted> run(const TrainConfig& config, const std::shared_ptr<const sherd::TokenWindows>& windows,
                         int64_t memory_limit = 0) {
  std::vector<Counted> all(static_cast<size_t>(config.ranks));
  sherd::LaunchOptions options = one_thread();
  options.device.memory_limit = memory_limit;
  sherd::launch(static_cast<int>(config.ranks), options, [&](sherd::RankContext& rank) {
    Trainer trainer(rank, config, windows);
    for (int i = 0; i < 2; ++i) trainer.train_step();
    const sherd::CommCounts before = rank.world->counts();
    sherd::Allocator& allocator = rank.device->allocator();
    const int64_t before_step = allocator.peak_bytes();
    allocator.reset_peak();
    const sherd::StepResult step = trainer.train_step();
    Counted& c = all[static_cast<size_t>(rank.world->rank())];
    c.comm = pairs_of(minus(rank.world->counts(), before));
    c.reported = pairs_of(step.comm);
    c.peak_bytes = allocator.peak_bytes();
    c.run_peak_bytes = std::max(before_step, c.peak_bytes);
    for (const sherd::MemoryClass kind : sherd::kMemoryClasses)
      c.by_class[std::string(name_of(kind))] = allocator.bytes_at_peak(kind);
  });
  return all;
}

struct Case {
  const char* name;
  std::vector<std::string> flags;
  /// Rows that experts on other ranks get depend on the data: bytes of all_to_all_v are not compared.
  bool exchanges_rows = false;
  /// config.json; null: the byte model.
  const char* model = nullptr;
};

constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64})";
/// Two tensor-parallel ranks share its key heads unevenly.
constexpr const char* kQwen2 = R"({"model_type": "qwen2", "vocab_size": 128, "hidden_size": 96,
  "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
  "max_position_embeddings": 64})";
constexpr const char* kOlmo2 = R"({"model_type": "olmo2", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64})";
constexpr const char* kQwen3Moe = R"({"model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
  "norm_topk_prob": true, "tie_word_embeddings": true, "max_position_embeddings": 64})";

constexpr const char* kDeepseek = R"({"model_type": "deepseek_v3", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 96, "moe_intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
  "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
  "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
  "num_nextn_predict_layers": 1, "max_position_embeddings": 64})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 128, "n_embd": 64, "n_layer": 2,
  "n_head": 4, "n_positions": 64})";
/// Windows, sinks, and experts in all blocks.
constexpr const char* kGptOss = R"({"model_type": "gpt_oss", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
  "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "attention_bias": true,
  "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 64})";

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class ForecastOf : public testing::TestWithParam<Case> {
 protected:
  TrainConfig config() const {
    std::vector<std::string> flags = GetParam().flags;
    const std::string data = folder_.write("data.txt", text());
    if (GetParam().model == nullptr) {
      flags.insert(flags.end(), {"--data", data});
    } else {
      folder_.write("model/config.json", GetParam().model);
      flags.insert(flags.end(), {"--model", folder_ / "model", "--from-scratch", "--tokens", data,
                                 "--token-format", "u16"});
    }
    return parse(flags);
  }

 private:
  /// Letters; as u16, tokens below 128.
  static std::string text() {
    std::string bytes(20'000, '\0');
    for (size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>('a' + i * i % 19);
    return bytes;
  }
  TemporaryFolder folder_;
};

std::map<std::string, std::pair<int64_t, int64_t>> without_rows(
    std::map<std::string, std::pair<int64_t, int64_t>> comm, bool exchanges) {
  if (exchanges) comm["all_to_all_v"].second = 0;
  return comm;
}

TEST_P(ForecastOf, EqualsTheRun) {
  const TrainConfig c = config();
  const std::vector<Counted> counted = run(c, open_windows(c));
  for (int rank = 0; rank < c.ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Counted& real = counted[static_cast<size_t>(rank)];
    const Forecast planned = forecast(c, rank, {.device = {one_thread().device}});
    std::map<std::string, std::pair<int64_t, int64_t>> comm;
    for (const sherd::PlannedCollective& p : planned.rank.collectives) {
      comm[p.name].first += p.calls;
      comm[p.name].second += p.bytes;
    }
    const bool rows = GetParam().exchanges_rows;
    EXPECT_EQ(without_rows(comm, rows), without_rows(real.comm, rows));
    EXPECT_EQ(without_rows(comm, rows), without_rows(real.reported, rows)) << "in the metrics";
    EXPECT_EQ(without_rows(pairs_of(planned.comm), rows), without_rows(real.reported, rows));
    if (rows) continue;
    const auto off = [](int64_t plan, int64_t measured) {
      return std::abs(static_cast<double>(plan - measured)) / static_cast<double>(measured);
    };
    EXPECT_LE(off(planned.rank.peak_bytes, real.peak_bytes), 0.01)
        << "planned " << planned.rank.peak_bytes << ", measured " << real.peak_bytes << "\nplanned "
        << testing::PrintToString(planned.rank.by_class) << "\nmeasured "
        << testing::PrintToString(real.by_class);
    EXPECT_LE(off(planned.run_peak_bytes, real.run_peak_bytes), 0.01)
        << "of the run: planned " << planned.run_peak_bytes << ", measured " << real.run_peak_bytes;
  }
}

// At the limit the allocator returns what it keeps for reuse.
TEST_P(ForecastOf, RunsInTheMemoryThatIsPlannedAtALimit) {
  if (GetParam().exchanges_rows) GTEST_SKIP() << "experts' rows depend on the data";
  const TrainConfig c = config();
  const auto most = [&](int64_t memory, bool held) {
    int64_t bytes = 0;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Forecast f = forecast(
          c, rank, {.device = {.device = one_thread().device, .keep_within = sherd::planned_limit(memory)}});
      bytes = std::max(bytes, held ? f.rank.peak_bytes + f.rank.by_class.at("slack") : f.run_peak_bytes);
    }
    return bytes;
  };
  const int64_t peak = most(0, false), near = peak / 98 * 99, wide = peak / 96 * 100;
  ASSERT_LE(most(wide, true), sherd::planned_limit(wide)) << "it fits";
  const int64_t memory = most(near, true) <= sherd::planned_limit(near) ? near : wide;
  EXPECT_NO_THROW((void)run(c, open_windows(c), memory)) << memory << " bytes, peak " << peak;
}

std::vector<Case> cases() {
  const std::vector<std::string> byte = {"--dim", "64",    "--layers", "3",       "--heads",
                                         "4",     "--seq", "32",       "--batch", "16"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = byte;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  // Most of the peak is SOAP's scratch, which grows from matrix to matrix of the first step.
  const auto by_soap = [](std::vector<std::string> more) {
    more.insert(more.end(), {"--optimizer", "soap", "--dim", "128", "--layers", "2", "--heads", "4", "--seq",
                             "32", "--batch", "8"});
    return more;
  };
  const auto with_model = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--seq", "32", "--batch", "16"});
    return more;
  };
  return {
      {"one_rank_adamw", with({})},
      {"one_rank_muon", with({"--optimizer", "muon"})},
      {"zero0_adamw_2", with({"--ranks", "2", "--strategy", "zero0"})},
      {"zero1_muon_owner_4",
       with({"--ranks", "4", "--strategy", "zero1", "--optimizer", "muon", "--muon-mode", "owner"})},
      {"zero2_muon_gather_2",
       with({"--ranks", "2", "--strategy", "zero2", "--optimizer", "muon", "--muon-mode", "gather"})},
      {"zero3_adamw_8", with({"--ranks", "8"})},
      {"zero3_muon_owner_8", with({"--ranks", "8", "--optimizer", "muon", "--muon-mode", "owner"})},
      {"zero3_muon_gram_4", with({"--ranks", "4", "--optimizer", "muon", "--muon-allow-inexact"})},
      {"zero3_muon_gather_4", with({"--ranks", "4", "--optimizer", "muon", "--muon-mode", "gather"})},
      {"zero3_bf16_muon_4",
       with({"--ranks", "4", "--optimizer", "muon", "--precision", "bf16", "--muon-payload", "bf16"})},
      {"even_rows_zero2_4", with({"--ranks", "4", "--strategy", "zero2", "--layout", "even_rows"})},
      {"whole_param_zero1_muon_4",
       with({"--ranks", "4", "--strategy", "zero1", "--layout", "whole_param", "--optimizer", "muon"})},
      {"whole_param_zero2_muon_4", with({"--ranks", "4", "--strategy", "zero2", "--layout", "whole_param",
                                         "--bucket-size", "60000", "--optimizer", "muon"})},
      {"whole_param_zero3_muon_4", with({"--ranks", "4", "--layout", "whole_param", "--optimizer", "muon"})},
      {"hsdp_zero3_muon_4", with({"--ranks", "4", "--replicas", "2", "--optimizer", "muon"})},
      {"hsdp_outer_optim_zero2_4",
       with({"--ranks", "4", "--replicas", "2", "--strategy", "zero2", "--outer", "optim"})},
      {"accumulation_zero2_4", with({"--ranks", "4", "--strategy", "zero2", "--grad-accum", "2"})},
      {"accumulation_zero3_muon_2", with({"--ranks", "2", "--grad-accum", "4", "--optimizer", "muon"})},
      {"recompute_zero3_4", with({"--ranks", "4", "--recompute", "blocks"})},
      {"no_reshard_prefetch_2",
       with({"--ranks", "2", "--reshard-after-forward", "false", "--prefetch", "2"})},
      {"tp_2_zero3_muon_4", with({"--ranks", "4", "--tp", "2", "--optimizer", "muon"})},
      {"tp_2_distributed_muon_4", with({"--ranks", "4", "--tp", "2", "--optimizer", "muon", "--muon-tensor",
                                        "distributed", "--muon-allow-inexact"})},
      {"context_2_of_33_tokens_zero1_2",
       with({"--ranks", "2", "--context", "2", "--seq", "33", "--strategy", "zero1"})},
      {"llama_context_2_recompute_bf16_4",
       with_model({"--ranks", "4", "--context", "2", "--recompute", "blocks", "--precision", "bf16"}), false,
       kLlama},
      {"deepseek_v3_context_4_multi_token_4",
       with_model({"--ranks", "4", "--context", "4", "--mtp-weight", "0.3", "--moe-bias-speed", "0.001"}),
       false, kDeepseek},
      {"experts_zero3_muon_4", with({"--ranks", "4", "--experts", "4", "--optimizer", "muon"})},
      {"expert_parallel_2_zero3_4", with({"--ranks", "4", "--experts", "4", "--expert-parallel", "2"}), true},
      {"llama_zero3_muon_4", with_model({"--ranks", "4", "--optimizer", "muon"}), false, kLlama},
      {"llama_bf16_recompute_zero2_2",
       with_model({"--ranks", "2", "--strategy", "zero2", "--precision", "bf16", "--recompute", "blocks"}),
       false, kLlama},
      {"llama_tp_2_sequence_parallel_4",
       with_model({"--ranks", "4", "--tp", "2", "--sequence-parallel", "true", "--optimizer", "muon"}), false,
       kLlama},
      {"qwen2_tp_2_clip_4",
       with_model({"--ranks", "4", "--tp", "2", "--optimizer", "muon", "--qk-clip", "1"}), false, kQwen2},
      {"olmo2_tp_2_muon_4", with_model({"--ranks", "4", "--tp", "2", "--optimizer", "muon"}), false, kOlmo2},
      {"olmo2_tp_4_bf16_recompute_4",
       with_model({"--ranks", "4", "--tp", "4", "--precision", "bf16", "--recompute", "blocks"}), false,
       kOlmo2},
      {"qwen3_moe_zero3_muon_4", with_model({"--ranks", "4", "--optimizer", "muon"}), false, kQwen3Moe},
      {"deepseek_v3_zero3_muon_4",
       with_model({"--ranks", "4", "--optimizer", "muon", "--moe-bias-speed", "0.001"}), false, kDeepseek},
      {"deepseek_v3_multi_token_zero3_muon_4",
       with_model({"--ranks", "4", "--optimizer", "muon", "--mtp-weight", "0.3"}), false, kDeepseek},
      {"deepseek_v3_multi_token_tp_2_recompute_4",
       with_model({"--ranks", "4", "--tp", "2", "--recompute", "blocks", "--mtp-weight", "0.3"}), false,
       kDeepseek},
      {"deepseek_v3_tp_2_recompute_4", with_model({"--ranks", "4", "--tp", "2", "--recompute", "blocks"}),
       false, kDeepseek},
      {"one_rank_soap", by_soap({})},
      {"zero0_soap_2", by_soap({"--ranks", "2", "--strategy", "zero0"})},
      {"zero1_soap_4", by_soap({"--ranks", "4", "--strategy", "zero1"})},
      {"zero2_soap_accumulation_2", by_soap({"--ranks", "2", "--strategy", "zero2", "--grad-accum", "2"})},
      {"zero3_soap_4", by_soap({"--ranks", "4"})},
      {"zero3_bf16_soap_max_dim_4",
       by_soap({"--ranks", "4", "--precision", "bf16", "--soap-max-dim", "128"})},
      {"even_rows_zero3_soap_2", by_soap({"--ranks", "2", "--layout", "even_rows"})},
      {"whole_param_zero1_soap_4",
       by_soap({"--ranks", "4", "--strategy", "zero1", "--layout", "whole_param"})},
      {"hsdp_zero3_soap_4", by_soap({"--ranks", "4", "--replicas", "2"})},
      {"tp_2_zero3_soap_4", by_soap({"--ranks", "4", "--tp", "2"})},
      {"deepseek_v3_soap_1", with_model({"--optimizer", "soap"}), false, kDeepseek},
      {"deepseek_v3_zero3_soap_2", with_model({"--ranks", "2", "--optimizer", "soap"}), false, kDeepseek},
      {"deepseek_v3_tp_2_soap_4", with_model({"--ranks", "4", "--tp", "2", "--optimizer", "soap"}), false,
       kDeepseek},
      {"context_2_zero3_muon_4", with({"--ranks", "4", "--context", "2", "--optimizer", "muon"})},
      {"context_4_zero2_accumulation_4",
       with({"--ranks", "4", "--context", "4", "--strategy", "zero2", "--grad-accum", "2"})},
      {"context_4_zero0_4", with({"--ranks", "4", "--context", "4", "--strategy", "zero0"})},
      {"context_3_uneven_bf16_recompute_6",
       with({"--ranks", "6", "--context", "3", "--seq", "50", "--dim", "96", "--heads", "6", "--precision",
             "bf16", "--recompute", "blocks"})},
      {"context_2_tp_2_hsdp_8", with({"--ranks", "8", "--context", "2", "--tp", "2", "--replicas", "2"})},
      {"context_2_prefetch_4",
       with({"--ranks", "4", "--context", "2", "--reshard-after-forward", "false", "--prefetch", "2"})},
      {"context_2_experts_muon_4",
       with({"--ranks", "4", "--context", "2", "--experts", "4", "--optimizer", "muon"})},
      {"context_2_expert_parallel_4",
       with({"--ranks", "4", "--context", "2", "--experts", "4", "--expert-parallel", "4"}), true},
      {"context_2_expert_parallel_2_tp_2_hsdp_8",
       with({"--ranks", "8", "--context", "2", "--tp", "2", "--replicas", "2", "--experts", "4",
             "--expert-parallel", "2", "--recompute", "blocks"}),
       true},
      {"llama_context_2_muon_4", with_model({"--ranks", "4", "--context", "2", "--optimizer", "muon"}), false,
       kLlama},
      {"qwen2_context_3_uneven_clip_6",
       with_model({"--ranks", "6", "--context", "3", "--optimizer", "muon", "--qk-clip", "1"}), false,
       kQwen2},
      {"gpt2_context_4_4", with_model({"--ranks", "4", "--context", "4"}), false, kGpt2},
      {"gpt_oss_context_2_tp_2_sequence_parallel_8",
       with_model({"--ranks", "8", "--context", "2", "--tp", "2", "--sequence-parallel", "true"}), false,
       kGptOss},
      {"deepseek_v3_multi_token_context_2_muon_4",
       with_model({"--ranks", "4", "--context", "2", "--optimizer", "muon", "--mtp-weight", "0.3"}), false,
       kDeepseek},
      {"deepseek_v3_multi_token_context_2_tp_2_sequence_parallel_recompute_4",
       with_model({"--ranks", "4", "--context", "2", "--tp", "2", "--sequence-parallel", "true",
                   "--recompute", "blocks", "--mtp-weight", "0.3"}),
       false, kDeepseek},
  };
}

/// 8 sequences of a llama on 4 ranks.
Forecast of_llama(const TemporaryFolder& model, int context, std::vector<std::string> flags = {}) {
  model.write("config.json", kLlama);
  flags.insert(flags.end(), {"--model", model.path(), "--from-scratch", "--tokens", "zeros", "--ranks", "4",
                             "--seq", "32", "--batch", "8", "--context", std::to_string(context)});
  return forecast(parse(flags), 0, {.device = {one_thread().device}});
}

// nn/context_parallel.h has the formula. 4 heads and 2 key heads of 16 columns, 3 blocks.
TEST(Forecast, ContextExchangesHeadsInEveryAttention) {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 8 * 32 / 4, kColumns = (2 * 4 + 2 * 2) * 16, kLayers = 3;
  const auto exchanges = [&](int context, const std::vector<std::string>& more = {}) {
    return pairs_of(of_llama(folder, context, more).comm)["all_to_all_v"];
  };
  EXPECT_EQ(exchanges(1).first, 0);
  const int64_t forward = kLayers * kRows / 2 * kColumns;
  EXPECT_EQ(exchanges(2), std::pair(4 * kLayers, 2 * forward * 4));
  EXPECT_EQ(exchanges(2, {"--precision", "bf16"}), std::pair(4 * kLayers, 2 * forward * 2));
  EXPECT_EQ(exchanges(2, {"--recompute", "blocks"}), std::pair(6 * kLayers, 3 * forward * 4));
}

double attention_flops(const Forecast& f) {
  double sum = 0;
  for (const sherd::DryEntry& e : f.rank.record.entries)
    if (e.what.kind == sherd::WorkKind::attention || e.what.kind == sherd::WorkKind::attention_backward)
      sum += static_cast<double>(e.work.times) * e.work.flops;
  return sum;
}

TEST(Forecast, ContextSplitsTheWorkOfAttentionEvenly) {
  const TemporaryFolder folder;
  const Forecast whole = of_llama(folder, 1), split = of_llama(folder, 2);
  EXPECT_GT(attention_flops(whole), 0);
  EXPECT_EQ(attention_flops(split), attention_flops(whole));
  EXPECT_EQ(training_flops(split.work, 32), training_flops(whole.work, 32)) << "of a token";
}

// Eight ranks with 1024 tokens each, of sequences over 1 to 8 of them. Weights and states are over all ranks in each case.
TEST(Forecast, SequenceAndContextDoubledTogetherKeepTheMemoryOfARank) {
  const TemporaryFolder folder;
  folder.write("model/config.json", R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8,
    "max_position_embeddings": 8192})");
  const std::string data = folder.write("data.txt", std::string(40'000, '\0'));
  std::map<int64_t, sherd::RankForecast> of;
  for (const int64_t context : {1, 2, 4, 8})
    of[context] = forecast(parse({"--model", folder / "model", "--from-scratch", "--tokens", data,
                                  "--token-format", "u16", "--ranks", "8", "--context",
                                  std::to_string(context), "--seq", std::to_string(1024 * context), "--batch",
                                  std::to_string(8 / context), "--recompute", "blocks"}),
                           0, {.device = {one_thread().device}})
                      .rank;
  // The CPU's kernel has the rows of a head in scratch memory, by thread: as many as a sequence has.
  const auto without_scratch = [&](int64_t context) {
    return static_cast<double>(of[context].peak_bytes - of[context].by_class["scratch"]);
  };
  for (const int64_t context : {2, 4, 8}) {
    SCOPED_TRACE("context " + std::to_string(context));
    EXPECT_LE(without_scratch(context), 1.03 * without_scratch(context / 2))
        << testing::PrintToString(of[context].by_class) << "\n"
        << testing::PrintToString(of[context / 2].by_class);
    for (const char* kind : {"parameter", "master", "optimizer", "gathered"})
      EXPECT_EQ(of[context].by_class[kind], of[1].by_class[kind]) << kind;
  }
}

TEST(Forecast, HasTheCopyOfAnAsynchronousSave) {
  const TemporaryFolder folder;
  const std::vector<std::string> flags{"--ranks",  "3",
                                       "--dim",    "32",
                                       "--layers", "2",
                                       "--heads",  "2",
                                       "--seq",    "16",
                                       "--batch",  "6",
                                       "--data",   folder.write("data.txt", std::string(4000, 'a')),
                                       "--save",   folder / "run"};
  std::vector<std::string> asynchronous = flags;
  asynchronous.push_back("--async-save");
  const TrainConfig without = parse(flags), with = parse(asynchronous);
  sherd::launch(3, one_thread(), [&](sherd::RankContext& rank) {
    Trainer trainer(rank, with, open_windows(with));
    const sherd::SavedRun run = trainer.saved_run();
    const sherd::CheckpointSaver saver(rank.world, checkpoint_tensors(run.model, run.optimizer),
                                       {.folder = folder / "run", .async = true});
    const int r = rank.world->rank();
    const int64_t more = forecast(with, r).run_peak_bytes - forecast(without, r).run_peak_bytes;
    EXPECT_GE(more, saver.staging_bytes());
    EXPECT_LT(more, saver.staging_bytes() + 512) << "the allocator's rounding";
  });
}

INSTANTIATE_TEST_SUITE_P(Runs, ForecastOf, testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace train_gpt
