// `sherd plan`: published figures, the JSON's fields, refused input.
#include <cmath>

#include <nlohmann/json.hpp>

#include "plan/plan_flags.h"
#include "program.h"
#include "support/message_of.h"
#include "train_gpt/rules/parse_config.h"

namespace sherd::tools {
namespace {

using nlohmann::json;

class PlanProgram : public ::testing::Test {
 protected:
  Finished plan(const std::string& arguments) const { return run_sherd(folder_, "plan " + arguments); }
  json plan_of(const std::string& arguments) const {
    const Finished f = plan(arguments + " --json");
    EXPECT_EQ(f.exit_code, 0) << f.err;
    return json::parse(f.out);
  }
  TemporaryFolder folder_;
};

// Presets that no machine of ours holds: the plan is of the step that train_gpt would run.
TEST(PlannedPresets, EqualTheStepOfTrainGptOnADryDevice) {
  using Words = std::vector<std::string>;
  const std::tuple<const char*, double, Words> runs[] = {
      // with the published number of active parameters
      {"deepseek-v3", 37e9, {"--ranks", "64", "--expert-parallel", "64", "--batch", "64"}},
      {"kimi-k2", 32.9e9, {"--ranks", "64", "--expert-parallel", "32", "--batch", "64"}},
      {"kimi-k2",
       32.9e9,
       {"--ranks", "32", "--tp", "2", "--sequence-parallel", "true", "--expert-parallel", "16", "--batch",
        "32", "--grad-accum", "2", "--strategy", "zero1"}},
      {"gpt-oss-120b", 5.13e9, {"--ranks", "16", "--tp", "2", "--expert-parallel", "16", "--batch", "8"}}};
  for (const auto& [preset, active, arrangement] : runs) {
    SCOPED_TRACE(preset);
    const auto with = [&arrangement = arrangement](Words words) {
      words.insert(words.end(), arrangement.begin(), arrangement.end());
      words.insert(words.end(), {"--seq", "512", "--recompute", "blocks", "--optimizer", "muon"});
      return words;
    };
    const PlanRequest request = parse_plan({.hardware = "b200", .run = with({"--preset", preset})});
    const Plan planned = make_plan(request, PlannedRanks::few);
    const Words run = with({"train_gpt", "--model", preset, "--from-scratch", "--tokens", "zeros",
                            "--precision", "bf16", "--device", "cuda"});
    std::vector<const char*> argv;
    for (const std::string& word : run) argv.push_back(word.c_str());
    const train_gpt::TrainConfig config =
        train_gpt::parse_config(static_cast<int>(argv.size()), argv.data()).config;
    EXPECT_EQ(planned.ranks.empty(), false);
    for (const RankForecast& rank : planned.ranks) {
      const train_gpt::Forecast step =
          train_gpt::forecast(config, rank.rank,
                              {.device = {.device = {.kernels = KernelSet::reference},
                                          .total_memory = request.hardware.memory_bytes,
                                          .keep_within = planned_limit(request.memory_bytes())}});
      EXPECT_EQ(planned.parameters, step.parameters.all);
      EXPECT_EQ(planned.active_parameters, step.parameters.active);
      EXPECT_NEAR(static_cast<double>(step.parameters.active) / active, 1, .15)
          << "with or without embeddings";
      EXPECT_EQ(rank.peak_bytes, step.rank.peak_bytes);
      EXPECT_EQ(rank.by_class, step.rank.by_class);
      EXPECT_EQ(rank.collectives, step.rank.collectives);
    }
  }
}

// A stage has a fourth of the blocks, the last norm, and an embedding and a head of one token.
TEST_F(PlanProgram, PlansAMiddleStageOfAPipeline) {
  const std::string run = "--preset llama3-8b --hardware cpu --seq 128 --strategy zero0 --grad-accum 4";
  const json whole = plan_of(run + " --world 1"), stage = plan_of(run + " --world 4 --pipeline 4");
  for (const char* key : {"parameters", "active_parameters", "flops_per_token"})
    EXPECT_EQ(stage.at(key), whole.at(key)) << key;
  const int64_t dim = 4096, vocab = 128256,
                blocks = whole.at("parameters").get<int64_t>() - dim - 2 * vocab * dim;
  EXPECT_EQ(stage.at("ranks")[0].at("by_class").at("parameter"), 4 * (blocks / 4 + dim + 2 * dim));
}

// Tokens/s and TFLOP/s per GPU as published together: Megatron Bridge's and NeMo's tables of 2025 and 2026.
TEST(PlannedFlops, AgreeWithPublishedPairs) {
  const std::tuple<const char*, int64_t, double, double> pairs[] = {
      {"llama3-8b", 8192, 14451, 744},  {"llama3-70b", 8192, 5248, 2348},    {"llama3-70b", 8192, 4224, 1892},
      {"llama3-70b", 8192, 866.8, 389}, {"qwen3-30b-a3b", 4096, 12040, 277}, {"deepseek-v3", 4096, 1002, 250},
      {"deepseek-v3", 4096, 865, 216},  {"kimi-k2", 4096, 924, 189}};
  for (const auto& [name, seq, tokens, tflops] : pairs) {
    const std::string sequence = std::to_string(seq);
    const PlanRequest r = parse_plan({.run = {"--preset", name, "--seq", sequence}});
    const double flops = training_flops(train_gpt::token_work(r.config), seq);
    EXPECT_NEAR(flops * tokens / (tflops * 1e12), 1, .005) << name << " " << tokens;
  }
}

TEST_F(PlanProgram, PrintsTheFieldsThatScriptsRead) {
  const json p = plan_of("--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --optimizer muon --hardware cpu");
  EXPECT_EQ(p.at("parameters"), p.at("active_parameters"));
  EXPECT_GT(p.at("flops_per_token"), 0);
  EXPECT_EQ(p.at("ranks").size(), 4);
  for (const json& r : p.at("ranks")) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : r.at("by_class").items())
      sum += name == "slack" ? 0 : bytes.get<int64_t>();
    EXPECT_EQ(sum, r.at("peak_bytes"));
  }
  for (const json& c : p.at("collectives"))
    EXPECT_TRUE(c.contains("name") && c.at("link") == "host" && c.at("calls") > 0 && c.contains("bytes"));
  EXPECT_GT(p.at("newton_schulz_flops"), 0);
  const json& ms = p.at("step_ms");
  EXPECT_NEAR(ms.at("total"),
              ms.at("compute").get<double>() + ms.at("exposed_communication").get<double>() +
                  ms.at("optimizer").get<double>(),
              1e-9);
  EXPECT_GT(p.at("tokens_per_s"), 0);
  EXPECT_EQ(p.at("mfu"), json()) << "the peak of a CPU is not known";
  EXPECT_EQ(p.at("fits"), true);
}

TEST_F(PlanProgram, SearchesTheFastestRunThatFits) {
  const std::string base = "--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --batch 8 --hardware h100";
  const std::string run = base + " --context 1 --search";
  const json all = plan_of(run);
  EXPECT_EQ(all.at("fits"), true);
  EXPECT_LE(all.at("bound_ms"), all.at("best")[0].at("step_ms"));
  for (const json& c : all.at("candidates"))
    EXPECT_GE(c.at("step_ms").get<double>() * 1.0001, all.at("bound_ms").get<double>());
  // What it finds is what a plan of these flags says.
  std::string flags;
  for (const json& flag : all.at("best")[0].at("flags")) flags += " " + flag.get<std::string>();
  const json plan_of_best = plan_of(base + flags);
  EXPECT_DOUBLE_EQ(plan_of_best.at("step_ms").at("total"), all.at("best")[0].at("step_ms"));
  EXPECT_THAT(plan(run + " --tp 2 --keep-bits").out,
              AllOf(HasSubstr("\n  train_gpt --seq 32 "), HasSubstr("--tp 2 "),
                    HasSubstr("FullyShardOptions options;"), HasSubstr("without --tp: "),
                    HasSubstr("without --keep-bits: "), Not(HasSubstr("(other bits)"))));
  EXPECT_EQ(plan(run + " --svg " + (folder_.path() / "search.svg").string()).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "search.svg"));
}

TEST_F(PlanProgram, PlansTheChoiceOfAuto) {
  const std::string run = "--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --batch 8 --hardware h100";
  double fastest = 1e9;
  for (const char* const strategy : {"zero0", "zero1", "zero2", "zero3"})
    fastest =
        std::min(fastest, plan_of(run + " --strategy " + strategy).at("step_ms").at("total").get<double>());
  const json chosen = plan_of(run + " --strategy auto --layout ragged --prefetch 1 --recompute none");
  EXPECT_LE(chosen.at("step_ms").at("total"), fastest * 1.005);
  EXPECT_NE(chosen.at("strategy"), "auto");
  EXPECT_THAT(plan(run + " --strategy auto").out, HasSubstr("the fastest that fits: "));
}

TEST_F(PlanProgram, SearchSaysByHowMuchNothingFits) {
  const std::string run =
      "--world 2 --dim 256 --heads 4 --layers 2 --seq 32 --batch 2 --hardware h100 --search --keep-bits "
      "--offload none";
  EXPECT_THAT(plan(run + " --memory-limit 16M").out,
              AllOf(HasSubstr("NOTHING FITS in 99 % of 16.0 MiB of a rank. The nearest takes "),
                    HasSubstr(" too much: "), HasSubstr("without --keep-bits: "),
                    HasSubstr("--ranks 32: nothing fits")));
}

TEST_F(PlanProgram, RefusesConstraintsThatCannotBe) {
  for (const auto& [flags, message] :
       {std::pair("--search --world 8 --batch 3",
                  "--search: no arrangement of 8 ranks that is allowed divides a batch of 3"),
        {"--strategy auto --pipeline 2 --world 8 --preset llama3-8b",
         "--strategy auto: of runs of train_gpt alone"},
        {"--strategy auto --compare --world 2", "--strategy auto: the choice for these ranks alone"},
        {"--strategy auto --sweep world=1..8", "--strategy auto: the choice for these ranks alone"},
        {"--keep-bits --world 8", "--keep-bits: a constraint of --search; give both"},
        {"--max-tp 2 --world 8", "--max-tp: a constraint of --search; give both"},
        {"--search --pipeline 2 --world 8 --preset llama3-8b", "--search: of runs of train_gpt alone"},
        {"--search --compare --world 8", "--search: an answer of its own; leave --compare and --sweep out"},
        {"--search --tp 4 --max-tp 2 --world 8", "--max-tp: --tp is given and not searched for"},
        {"--search --batch x", "--batch 'x': must be a whole number of at least 1"},
        {"--svg a.svg", "--svg: a picture of --sweep or --search; give one of them"}}) {
    const Finished f = plan(flags);
    EXPECT_EQ(f.exit_code, 2) << flags;
    EXPECT_THAT(f.err, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(f.err, '\n'), 1) << f.err;
  }
}

// Dense peaks of the data sheets, in TFLOP/s: bf16, f32 and tf32 on an H100.
TEST_F(PlanProgram, MfuIsOfTheDensePeakInTheRunsPrecision) {
  const std::string run = "--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --hardware h100";
  for (const auto& [flags, peak] : {std::pair("", 989.0),
                                    {" --precision fp32", 67},
                                    {" --precision fp32 --device cuda --tf32", 989 / 2.0}}) {
    const json p = plan_of(run + flags);
    const double flops = p.at("flops_per_token").get<double>() * p.at("tokens_per_s").get<double>() / 4;
    EXPECT_NEAR(p.at("mfu").get<double>() * peak * 1e12 / flops, 1, 1e-9) << flags;
  }
  EXPECT_THAT(plan(run).out, HasSubstr(" TFLOP/s of a rank, MFU "));
  EXPECT_THAT(plan("--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --hardware cpu").out,
              AllOf(HasSubstr(" TFLOP/s of a rank; "), Not(HasSubstr("MFU"))));
}

// docs/gpu-results.md, call 3: tokens/s of one H200, and of two models the milliseconds of two steps by class (gpt2's norm of
// gradients, 1 ms, is too rough). Residual sums apart, bytes of rope and the pass of clipping have gone since: GB of a step, which are
// added here.
TEST_F(PlanProgram, PredictsTheStepsThatAnH200Ran) {
  const std::string
      gpt2 = "--preset gpt2-124m --seq 1024 --batch 64",
      llama = "--preset llama3.2-1b --seq 2048 --batch 4",
      bytes = "--device cuda --precision bf16 --dim 2048 --layers 26 --heads 16 --seq 1024 --batch 16",
      muon = " --optimizer muon --ns-form gram --muon-working fp16 --muon-payload fp16";
  const std::string trace = folder_ / "trace.json";
  const auto planned = [&](const std::string& run) {
    return plan_of(run + " --hardware h200 --trace " + trace);
  };
  for (const auto& [run, measured] : {std::pair(gpt2, 503518.0),
                                      {gpt2 + muon, 477377},
                                      {llama, 59663},
                                      {llama + muon, 38711},
                                      {bytes, 69875},
                                      {bytes + muon, 45950}})
    EXPECT_NEAR(planned(run).at("tokens_per_s").get<double>() / measured, 1, .1) << run;

  const double passes = hardware_profile("h200").rates_16.at(WorkKind::compute).back().rate,
               updates = hardware_profile("h200").rates_16.at(WorkKind::optimizer).back().rate;
  struct Traced {
    std::string run;
    std::map<std::string, double> two_steps;  // by kind, ms
    double gone, clipping;                    // GB
  };
  for (const Traced& t :
       {Traced{gpt2,
               {{"product", 175}, {"attention", 39}, {"compute", 28}, {"loss", 12}, {"optimizer", 2}},
               4.8,
               1},
        Traced{llama,
               {{"product", 177},
                {"attention", 33},
                {"compute", 21},
                {"loss", 4},
                {"optimizer", 19},
                {"squares", 11}},
               2.7,
               9.9}}) {
    (void)planned(t.run);
    std::map<std::string, double> ms = {{"compute", 1e12 * t.gone / passes},
                                        {"squares", 1e12 * t.clipping / updates}};
    std::ifstream in(trace);
    const json events = json::parse(in).at("traceEvents");
    for (const json& e : events)
      if (e.at("ph") == "X")
        ms[e.at("cat") == "attention_backward" ? "attention" : e.at("cat").get<std::string>()] +=
            e.at("dur").get<double>() / 1e3;
    for (const auto& [kind, measured] : t.two_steps)
      EXPECT_NEAR(2 * ms[kind] / measured, 1, .15) << t.run << " " << kind;
  }
}

TEST_F(PlanProgram, ComparesCandidatesTheFastestThatFitsFirst) {
  const json all =
      plan_of("--world 4 --dim 64 --heads 4 --layers 2 --seq 32 --optimizer muon --hardware cpu --compare")
          .at("candidates");
  EXPECT_EQ(all.size(), 36);
  EXPECT_EQ(all[0].at("why"), "fastest that fits");
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_GE(all[i].at("step_ms").at("total"), all[0].at("step_ms").at("total"));
    EXPECT_TRUE(all[i].contains("strategy") && all[i].contains("layout") && all[i].contains("muon_mode"));
    EXPECT_NE(all[i].at("why"), "");
  }
}

// Muon's plan for 70,000 matrices and 256 ranks takes seconds: it is left out where the rest does not fit.
TEST_F(PlanProgram, ComparesWithoutTheOptimizerWhatDoesNotFit) {
  const json p = plan_of("--preset kimi-k2 --world 256 --hardware b200 --optimizer muon --compare");
  const json& all = p.at("candidates");
  EXPECT_EQ(all.size(), 36);
  for (const json& c : all) {
    EXPECT_EQ(c.at("fits"), false);
    EXPECT_EQ(c.at("without_optimizer"), true);
    EXPECT_EQ(c.at("step_ms").at("optimizer"), 0);
    EXPECT_THAT(c.at("why"), HasSubstr("does not fit: without the optimizer "));
  }
  EXPECT_GT(p.at("step_ms").at("optimizer"), 0) << "the run's own plan is complete";
}

TEST_F(PlanProgram, SweepsOverRanksAndDrawsThem) {
  const Finished f = plan("--preset llama3.2-1b --seq 512 --hardware a100 --sweep world=8..64 --svg " +
                          (folder_ / "sweep.svg"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  for (const char* world : {"  8 ", " 16 ", " 32 ", " 64 "}) EXPECT_THAT(f.out, HasSubstr(world));
  std::ifstream svg(folder_ / "sweep.svg");
  std::stringstream text;
  text << svg.rdbuf();
  EXPECT_THAT(text.str(), AllOf(HasSubstr("<svg"), HasSubstr("memory per rank, GiB"), HasSubstr("</svg>")));
}

TEST_F(PlanProgram, WritesAPredictedTrace) {
  const Finished f = plan("--world 2 --dim 64 --heads 4 --hardware cpu --trace " + (folder_ / "trace.json"));
  EXPECT_EQ(f.exit_code, 0) << f.err;
  std::ifstream in(folder_ / "trace.json");
  EXPECT_GT(json::parse(in).at("traceEvents").size(), 100);
}

/// The parameters of a llama, in its order.
std::string llama_list(int64_t layers, int64_t dim, int64_t hidden, int64_t vocab) {
  json list = json::array();
  const auto add = [&](const std::string& name, json shape, const char* optimizer, const std::string& unit) {
    list.push_back(
        {{"name", name}, {"shape", shape}, {"dtype", "f32"}, {"optimizer", optimizer}, {"unit", unit}});
  };
  add("embed_tokens.weight", {vocab, dim}, "adamw", "root");
  for (int64_t i = 0; i < layers; ++i) {
    const std::string unit = "layers." + std::to_string(i);
    add(unit + ".norm1.weight", {dim}, "adamw", unit);
    for (const char* n : {"q_proj", "k_proj", "v_proj", "o_proj"})
      add(unit + "." + n + ".weight", {dim, dim}, "muon", unit);
    add(unit + ".norm2.weight", {dim}, "adamw", unit);
    for (const char* n : {"gate_proj", "up_proj"})
      add(unit + "." + n + ".weight", {hidden, dim}, "muon", unit);
    add(unit + ".down_proj.weight", {dim, hidden}, "muon", unit);
  }
  add("norm.weight", {dim}, "adamw", "root");
  add("lm_head.weight", {vocab, dim}, "adamw", "root");
  return list.dump();
}

// The same model as a folder and as a list: what the optimizer and the collectives do is the same.
TEST_F(PlanProgram, PlansAListOfParametersAsTheModelItIsOf) {
  folder_.write(
      "model/config.json",
      R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
                    "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 320, "rms_norm_eps": 1e-5,
                    "max_position_embeddings": 128, "tie_word_embeddings": false, "hidden_act": "silu"})");
  const std::string list = folder_.write("params.json", llama_list(3, 256, 512, 320));
  const std::string run = " --world 4 --seq 128 --hardware cpu --optimizer muon";
  json listed = plan_of("--params " + list + run), model = plan_of("--model " + (folder_ / "model") + run);
  // Rank with the largest peak; activations may make it another rank.
  for (json* p : {&listed, &model})
    for (json& c : p->at("collectives"))
      if (c.at("name") == "all_to_all_v") c.erase("bytes");
  for (const char* key : {"parameters", "active_parameters", "newton_schulz_flops", "collectives"})
    EXPECT_EQ(listed.at(key), model.at(key)) << key;
  for (const char* name : {"parameter", "master", "gradient", "optimizer"})
    EXPECT_EQ(listed.at("ranks")[0].at("by_class").value(name, 0),
              model.at("ranks")[0].at("by_class").value(name, 0))
        << name;
  EXPECT_LT(listed.at("flops_per_token"), model.at("flops_per_token")) << "attention is not known";
}

TEST_F(PlanProgram, PlansTheHeadersOfASafetensorsFile) {
  const std::string header =
      R"({"layers.0.fc.weight":{"dtype":"BF16","shape":[64,32],"data_offsets":[0,4096]},)"
      R"("layers.1.fc.weight":{"dtype":"BF16","shape":[32,64],"data_offsets":[4096,8192]},)"
      R"("head.weight":{"dtype":"BF16","shape":[10,32],"data_offsets":[8192,8832]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size() % 256);
  bytes[1] = static_cast<char>(header.size() / 256);
  const std::string file = folder_.write("m.safetensors", bytes + header + std::string(8832, '\0'));
  const json p = plan_of("--params " + file + " --world 2 --seq 16 --hardware cpu");
  EXPECT_EQ(p.at("parameters"), 2 * 64 * 32 + 10 * 32);
  EXPECT_EQ(p.at("flops_per_token"), 6 * (2 * 64 * 32 + 10 * 32));
  EXPECT_EQ(p.at("muon_mode"), "auto");
  EXPECT_GT(p.at("newton_schulz_flops"), 0);
}

TEST_F(PlanProgram, FrozenWeightsHaveNoGradientProducts) {
  const std::string run = "--preset llama3-8b --world 8 --seq 128 --hardware h100";
  const double all = plan_of(run).at("flops_per_token"),
               lora = plan_of(run + " --lora-rank 8").at("flops_per_token");
  EXPECT_NEAR(lora / all, 4.0 / 6, .01)
      << "adapters and attention, whose scores have both gradients, are small here";
}

// 8 sequences on 8 ranks: whole, or each on 4 of them.
TEST_F(PlanProgram, PlansSequencesOnSeveralRanks) {
  const std::string run =
      "--preset llama3-8b --world 8 --seq 8192 --hardware h100 --recompute blocks --batch 8";
  const json whole = plan_of(run), split = plan_of(run + " --context 4");
  EXPECT_EQ(whole.at("flops_per_token"), split.at("flops_per_token"));
  const double added =
      split.at("step_ms").at("compute").get<double>() / whole.at("step_ms").at("compute").get<double>();
  EXPECT_NEAR(added, 1, .02) << "the same FLOPs on each rank, and copies around the exchanges";
  const auto exchanges = [](const json& p) {
    json found;
    for (const json& c : p.at("collectives"))
      if (c.at("name") == "all_to_all_v") found = c;
    return found;
  };
  EXPECT_TRUE(exchanges(whole).is_null());
  // In bf16, of 32 blocks: forward, again in backward, and backward.
  EXPECT_EQ(exchanges(split).at("calls"), 32 * 3 * 2);
  EXPECT_EQ(exchanges(split).at("bytes"), 32 * 3 * int64_t{8192} * 3 / 4 * (2 * 32 + 2 * 8) * 128 * 2);
  EXPECT_EQ(exchanges(split).at("link"), "host");
  // Tensor-parallel ranks are next to each other, those of a sequence beside these.
  const std::string byte = "--dim 64 --heads 16 --layers 1 --seq 32 --hardware h100 --world 16 --tp 2";
  EXPECT_EQ(exchanges(plan_of(byte + " --context 4")).at("link"), "host");
  EXPECT_EQ(exchanges(plan_of(byte + " --context 8")).at("link"), "network");
}

TEST_F(PlanProgram, PlansOneSequenceForTheRanksThatShareIt) {
  const std::string run = "--preset llama3-8b --hardware b200 --context 8 --recompute blocks";
  EXPECT_THAT(plan(run + " --world 32").out,
              AllOf(HasSubstr(", sequences on 8 ranks;"), HasSubstr("4 sequences of 4096 tokens per step")));
  const Finished sweep = plan(run + " --world 8 --sweep world=8..32");
  EXPECT_EQ(sweep.exit_code, 0) << sweep.err;
  EXPECT_THAT(sweep.out, HasSubstr("  32 "));
  const json stage = plan_of(run + " --world 64 --pipeline 4 --grad-accum 8");
  EXPECT_EQ(stage.at("flops_per_token"), plan_of(run + " --world 8").at("flops_per_token"));
}

TEST_F(PlanProgram, APipelinesStageReturnsWhatItKeepsAtTheLimit) {
  const std::string run =
      "--preset llama3-8b --world 8 --hardware h100 --pipeline 4 --batch 16 --grad-accum 4 --optimizer muon";
  const json wide = plan_of(run), near = plan_of(run + " --memory-limit 45G");
  EXPECT_GT(wide.at("ranks").at(0).at("by_class").at("slack").get<int64_t>(),
            near.at("ranks").at(0).at("by_class").at("slack").get<int64_t>());
  EXPECT_EQ(near.at("fits"), true);
  EXPECT_GT(near.at("step_ms").at("total").get<double>(), wide.at("step_ms").at("total").get<double>());
}

TEST_F(PlanProgram, RefusesWhatCannotBePlannedInOneLineWithTheRemedy) {
  const std::pair<const char*, const char*> wrong[] = {
      {"--world 6 --replicas 4", "--replicas 4: must divide --ranks 6"},
      {"--preset kimi-k2 --world 256 --pipeline 7", "--pipeline 7: must divide --world 256"},
      {"--preset kimi-k2 --world 256 --expert-parallel 3", "--expert-parallel 3: must divide"},
      {"--preset llama9", "no published shape"},
      {"--hardware h500", "hardware 'h500' is unknown"},
      {"--preset kimi-k2 --world 256 --pipeline 16 --expert-parallel 32",
       "--expert-parallel 32: must divide --ranks 16 (--ranks: of one of 16 stages)"},
      {"--preset kimi-k2 --world 256 --pipeline 64", "--pipeline 64: the model has 61 blocks"},
      {"--preset gpt2-124m --world 2 --pipeline 2", "learned positions; leave it out"},
      {"--world 2 --pipeline 2", "stages are planned of a --model"},
      {"--world 4 --sweep 8..16", "write world=FIRST..LAST"},
      {"--world 4 --no-such-flag 1", "no-such-flag"},
      {"--svg picture.svg", "--sweep"},
      {"--preset llama3-8b --world 8 --seq 8192 --context 3", "--context 3: must divide --ranks 8"},
      {"--preset llama3-8b --world 16 --context 16",
       "--context 16: must divide the 32 heads and 8 key heads"},
      {"--preset llama3-8b --world 8 --seq 4 --context 8",
       "--context 8: sequences of --seq 4 have fewer tokens"},
      {"--preset llama3-8b --world 8 --seq 16384 --context 2", "no positions for sequences of 16384 tokens"},
      {"--params a.json --preset llama3-8b", "--params and --model (--preset): give one of them"},
      {"--params a.json --context 2", "--context: a model of --params is planned without; leave it out"},
      {"--params a.json --pipeline 2", "leave it out"}};
  for (const auto& [flags, message] : wrong) {
    const Finished f = plan(flags);
    EXPECT_EQ(f.exit_code, 2) << flags;
    EXPECT_THAT(f.err, HasSubstr(message)) << flags;
    EXPECT_EQ(f.out, "") << flags;
  }
}

TEST_F(PlanProgram, NamesAListThatCannotBeRead) {
  const Finished f = plan("--params no-such-file.json");
  EXPECT_EQ(f.exit_code, 1);
  EXPECT_THAT(f.err, HasSubstr("no-such-file.json': cannot be read"));
}

TEST_F(PlanProgram, RefusesAnUnknownKeyOfAProfile) {
  std::string text = to_text(hardware_profile("h100"));
  text.replace(text.find("\"peak_flops\""), 12, "\"peak\"");
  const Finished f = plan("--hardware " + folder_.write("mine.json", text));
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, AllOf(HasSubstr("mine.json"), HasSubstr("\"peak_flops\" is missing")));
}

}  // namespace
}  // namespace sherd::tools
