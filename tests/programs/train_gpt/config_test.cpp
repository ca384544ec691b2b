#include "train_gpt/rules/parse_config.h"
#include "train_gpt/settings/train_config.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sherd/base/error.h>
#include <sherd/comm/backend.h>
#include <sherd/train/settings/other_names.h>

#include "parse_flags.h"
#include "support/message_of.h"
#include "temporary_folder.h"
#include "train_gpt/settings/launch_flags.h"
#include "train_gpt/settings/settings.h"

namespace train_gpt {
namespace {

using sherd::InvalidArgument;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Every field differs from its default.
TrainConfig other_config() {
  TrainConfig c;
  c.data = "some/text";
  c.tokens = "a.bin:0.5,b.bin:0.5";
  c.sft = "chats";
  c.packing = true;
  c.token_format = "u32";
  c.valid_tokens = "c.bin";
  c.eval_data = "web=d.bin:2,code=e.bin:1";
  c.order = "sequential";
  c.seq = 64;
  c.batch = 48;
  c.grad_accum = 3;
  c.ranks = 8;
  c.replicas = 2;
  c.tp = 2;
  c.sequence_parallel = true;
  c.strategy = "optim";
  c.outer = "optim";
  c.layout = "whole_param";
  c.bucket_size = 1000;
  c.reshard_after_forward = false;
  c.prefetch = 0;
  c.recompute = "blocks";
  c.model = "llama";
  c.from_scratch = true;
  c.dim = 96;
  c.layers = 2;
  c.heads = 6;
  c.experts = 16;
  c.expert_parallel = 4;
  c.expert_top_k = 1;
  c.moe_aux = 0.5;
  c.moe_bias_speed = 0.25;
  c.mtp_weight = 0.125;
  c.freeze = "embed";
  c.lora_rank = 4;
  c.lora_alpha = 8;
  c.lora_targets = "q_proj";
  c.route = "fc=adamw;head=muon;proj=soap";
  c.muon_mode = "owner";
  c.muon_allow_inexact = true;
  c.ns_form = "gram";
  c.ns_coefficients = "polar_express";
  c.ns_steps = 7;
  c.ns_restart = "2,4";
  c.orthogonalizer = "svd";
  c.muon_momentum = 0.9;
  c.muon_scale = "spectral";
  c.muon_scale_factor = 0.5;
  c.muon_fraction = 0.25;
  c.muon_decay = "palm";
  c.muon_payload = "bf16";
  c.muon_working = "fp16";
  c.muon_tensor = "distributed";
  c.muon_transient = 1 << 20;
  c.explain_plan = true;
  c.soap_max_dim = 64;
  c.soap_beta = 0.99;
  c.soap_eps = 1e-10;
  c.whole_balance = 0.75;
  c.seed = 18446744073709551615u;
  c.init_weights = "in file.safetensors";
  c.strict_weights = true;
  c.optimizer = "muon";
  c.steps = 7;
  c.stop_at = 5;
  c.lr = 0.1234567890123456789;
  c.lr_schedule = "wsd";
  c.warmup = 5;
  c.min_lr = 0.0012345678901234567;
  c.decay_steps = 2;
  c.adam_beta1 = 0.85;
  c.adam_beta2 = 0.999;
  c.adam_eps = 1e-7;
  c.weight_decay = 0;
  c.qk_clip = 50;
  c.grad_clip = 0;
  c.skip_non_finite = false;
  c.max_skipped_steps = 3;
  c.precision = "bf16";
  c.loss_spike = 7;
  c.verify_step = 4;
  c.check_replicas = 3;
  c.grace = 25;
  c.max_wall = "3h50m";
  c.device = "cuda";
  c.comm = "nccl";
  c.bootstrap = "mpi";
  c.mpi_library_order = true;
  c.nccl_exact_order = c.nccl_check_calls = c.nccl_register_buffers = c.nccl_windows = c.nccl_nvls = true;
  c.tf32 = true;
  c.symmetric_products = "hopper";
  c.attention = "own";
  c.kernels = "reference";
  c.threads = 2;
  c.memory_limit = 3 << 20;
  c.max_queued = 500;
  c.comm_timeout = 0.5;
  c.flight_recorder = "flights";
  c.save = "checkpoints";
  c.save_every = 10;
  c.keep = 3;
  c.keep_best = true;
  c.async_save = true;
  c.resume = "old/step_00000010";
  c.resume_parts = "optimizer";
  c.allow_new_state = true;
  c.overwrite = true;
  c.save_failure = "stop";
  c.save_retry = "90s";
  c.eval_every = 10;
  c.eval_windows = 7;
  c.metrics = "m.jsonl";
  c.log_dir = "events";
  c.measure_peak = false;
  c.plan = false;
  c.loss_svg = "l.svg";
  c.trace = "t.json";
  c.timeline = "t.svg";
  c.trace_steps = 5;
  c.export_weights = "out.safetensors";
  c.export_dtype = "bf16";
  c.export_hf = "out";
  c.export_adapter = "adapter";
  c.quiet = true;
  c.eval_only = c.sample_only = true;
  c.sample = 200;
  c.prompt = "int main";
  c.temperature = 0.5;
  c.top_p = 0.75;
  c.prompt_tokens = "1,2";
  c.tokenizer = "tokenizer.json";
  return c;
}

/// The same in two that a run accepts: the byte model's cut blocks have no experts, and --data is there.
std::vector<TrainConfig> other_runs() {
  const TrainConfig standard;
  TrainConfig cut = other_config(), experts = other_config();
  cut.experts = standard.experts;
  cut.expert_parallel = standard.expert_parallel;
  cut.expert_top_k = standard.expert_top_k;
  cut.moe_aux = standard.moe_aux;
  experts.tp = 1;
  cut.valid_tokens.clear();  // one of the two is evaluated
  experts.eval_data.clear();
  cut.orthogonalizer = standard.orthogonalizer;  // svd and a fraction of the rows take whole matrices
  cut.muon_fraction = standard.muon_fraction;
  experts.muon_tensor = standard.muon_tensor;
  cut.skip_non_finite = standard.skip_non_finite;  // what is not skipped has no limit
  experts.max_skipped_steps = standard.max_skipped_steps;
  cut.mpi_library_order = false;  // one of them on GPUs over NCCL, the other on CPUs over MPI
  cut.kernels = standard.kernels;
  experts.device = standard.device;
  experts.comm = "mpi";
  experts.nccl_exact_order = experts.nccl_check_calls = experts.nccl_register_buffers = experts.nccl_windows =
      experts.nccl_nvls = false;
  experts.tf32 = false;
  experts.symmetric_products = standard.symmetric_products;
  experts.attention = standard.attention;
  for (TrainConfig* c : {&cut, &experts}) {
    c->eval_only = c->sample_only = c->from_scratch = false;  // both of them train
    c->sequence_parallel = false;                             // of models
    c->moe_bias_speed = standard.moe_bias_speed;              // of models
    c->mtp_weight = standard.mtp_weight;
    c->packing = false;
    c->lora_rank = standard.lora_rank;
    c->lora_alpha = standard.lora_alpha;
    c->lora_targets = standard.lora_targets;
    for (std::string* of_models : {&c->tokens, &c->sft, &c->model, &c->export_hf, &c->export_adapter,
                                   &c->prompt_tokens, &c->tokenizer})
      of_models->clear();
  }
  return {cut, experts};
}

/// The config as flags, through its JSON.
std::vector<std::string> flags_of(const TrainConfig& config) {
  std::vector<std::string> flags;
  const nlohmann::ordered_json json = to_json(config);
  for (const auto& [name, value] : json.items()) {
    std::string flag = name;
    flag.insert(0, "--");
    std::replace(flag.begin(), flag.end(), '_', '-');
    const bool is_switch = name == "quiet" || name == "muon_allow_inexact" || name == "explain_plan" ||
                           name == "async_save" || name == "tf32" || name.starts_with("nccl_") ||
                           name == "mpi_library_order" || name == "allow_new_state" || name == "overwrite" ||
                           name == "eval_only" || name == "sample_only" || name == "from_scratch" ||
                           name == "strict_weights" || name == "packing" || name == "keep_best";
    if (!is_switch)
      flags.insert(flags.end(), {flag, value.is_string() ? value.get<std::string>() : value.dump()});
    if (is_switch && value.get<bool>()) flags.push_back(flag);
  }
  return flags;
}

/// The config as the text of a --config file, through its JSON.
std::string file_of(const TrainConfig& config) {
  std::string text = "# made by a test\n";
  const nlohmann::ordered_json json = to_json(config);
  for (const auto& [name, value] : json.items()) {
    const bool as_text = name == "memory_limit" || name == "muon_transient";
    text += name + ": " + (as_text ? "\"" + value.dump() + "\"" : value.dump()) + "\n";
  }
  return text;
}

TEST(Config, DefaultsAreThoseOfTheManual) {
  const TrainConfig c = parse({});
  EXPECT_EQ(c, TrainConfig{});
  EXPECT_EQ(c.data, default_data_folder());
  const nlohmann::ordered_json expected = nlohmann::ordered_json::parse(R"({
    "data": "", "tokens": "", "sft": "", "packing": false, "token_format": "auto", "valid_tokens": "", "eval_data": "", "order": "auto", "seq": 128, "batch": 16, "grad_accum": 1,
    "ranks": 1, "replicas": 1, "tp": 1, "sequence_parallel": false, "strategy": "optim_grads_params", "outer": "no_shard", "layout": "ragged", "bucket_size": 40000000,
    "reshard_after_forward": true, "prefetch": 1, "recompute": "none",
    "model": "", "from_scratch": false, "strict_weights": false, "dim": 128, "layers": 4, "heads": 4,
    "experts": 0, "expert_parallel": 1, "expert_top_k": 2, "moe_aux": 0.01, "moe_bias_speed": 0.0, "mtp_weight": 0.0, "freeze": "", "lora_rank": 0, "lora_alpha": 16.0, "lora_targets": "q_proj|v_proj", "seed": 0, "init_weights": "",
    "optimizer": "adamw", "steps": 100, "stop_at": 0, "lr": 0.003, "lr_schedule": "constant", "warmup": 0, "min_lr": null, "decay_steps": 0,
    "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-08, "weight_decay": 0.1, "qk_clip": 0.0,
    "grad_clip": 1.0, "skip_non_finite": true, "max_skipped_steps": 10, "precision": "fp32", "route": "",
    "loss_spike": 12.0, "verify_step": 0, "check_replicas": 0, "grace": 0.0, "max_wall": "",
    "muon_mode": "auto", "muon_allow_inexact": false, "ns_form": "standard", "ns_coefficients": "jordan",
    "ns_steps": 0, "ns_restart": "", "orthogonalizer": "newton_schulz", "muon_momentum": 0.95,
    "muon_scale": "match_rms_adamw", "muon_scale_factor": 1.0, "muon_fraction": 1.0, "muon_decay": "decoupled", "muon_payload": "fp32",
    "muon_working": "fp32", "muon_tensor": "duplicated", "muon_transient": 0, "explain_plan": false,
    "soap_max_dim": 8192, "soap_beta": 0.95, "soap_eps": 1e-07, "whole_balance": 0.5,
    "device": "cpu", "comm": "local", "bootstrap": "env", "mpi_library_order": false, "nccl_exact_order": false, "nccl_check_calls": false,
    "nccl_register_buffers": false, "nccl_windows": false, "nccl_nvls": false, "tf32": false, "symmetric_products": "auto", "attention": "auto", "kernels": "cpu", "threads": 0, "memory_limit": 0, "max_queued": 16384, "comm_timeout": 300.0, "flight_recorder": "",
    "save": "", "save_every": 0, "keep": 0, "keep_best": false, "save_failure": "warn", "save_retry": "10m", "overwrite": false, "async_save": false, "resume": "", "resume_parts": "all",
    "allow_new_state": false,
    "eval_every": 0, "eval_windows": null, "metrics": "", "log_dir": "", "measure_peak": true, "plan": true, "loss_svg": "", "trace": "", "timeline": "", "trace_steps": 2, "export_weights": "", "export_dtype": "fp32", "export_hf": "", "export_adapter": "",
    "quiet": false, "eval_only": false, "sample_only": false, "sample": 0, "prompt": "", "temperature": 0.7, "top_p": 1.0, "prompt_tokens": "", "tokenizer": ""})");
  nlohmann::ordered_json shown = to_json(c);
  shown["data"] = "";
  EXPECT_EQ(shown.dump(), expected.dump());
}

TEST(Config, EveryFieldHasAFlag) {
  for (const TrainConfig& c : other_runs()) EXPECT_EQ(parse(flags_of(c)), c);
}

TEST(Config, EveryFieldIsInTheFile) {
  const TemporaryFolder folder;
  for (const TrainConfig& c : other_runs())
    EXPECT_EQ(parse({"--config", folder.write("c.txt", file_of(c))}), c);
}

TEST(Config, FileAndFlagsKnowTheSameFields) {
  EXPECT_EQ(static_cast<size_t>(proto::TrainConfig::descriptor()->field_count()),
            to_json(TrainConfig{}).size());
  const nlohmann::ordered_json json = to_json(TrainConfig{});
  for (const auto& [name, value] : json.items()) {
    EXPECT_NE(proto::TrainConfig::descriptor()->FindFieldByName(name), nullptr) << name;
    EXPECT_NE(to_json(other_config())[name], value) << "other_config() must differ in " << name;
  }
}

TEST(Config, ModelsHaveSizesOfTheirOwn) {
  const std::vector<std::string> scratch = {"--model", "gpt2-124m", "--from-scratch", "--tokens", "t.bin"};
  const TrainConfig c = parse(scratch);
  EXPECT_EQ(c.dim, 768);
  EXPECT_EQ(c.layers, 12);
  EXPECT_EQ(parse({"--model", "qwen3-30b-a3b", "--from-scratch", "--steps", "0"}).expert_top_k, 8);
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = scratch;
    all.insert(all.end(), more.begin(), more.end());
    return refusal(all);
  };
  EXPECT_THAT(with({"--dim", "64", "--expert-top-k", "2"}),
              HasSubstr("--dim, --expert-top-k: --model gpt2-124m has sizes of its own"));
  EXPECT_THAT(with({"--seq", "2048"}), AllOf(HasSubstr("gpt2-124m"), HasSubstr("1024")));
  EXPECT_THAT(with({"--data", "x"}), HasSubstr("--tokens is what is trained on"));
  EXPECT_THAT(with({"--sample", "5"}), HasSubstr("give --prompt-tokens"));
  EXPECT_THAT(
      with({"--sample", "5", "--prompt", "Once"}),
      HasSubstr("--prompt-tokens \"$(scripts/tokenize.py --tokenizer tokenizer.json --prompt TEXT)\""));
  EXPECT_THAT(refusal({"--model", "gpt2-124m", "--tokens", "t"}), HasSubstr("give --from-scratch"));
  EXPECT_THAT(refusal({"--model", "gpt2-124m", "--from-scratch"}), HasSubstr("give --tokens or --sft FILE"));
  EXPECT_THAT(refusal({"--model", "gpt5"}), AllOf(HasSubstr("no such folder"), HasSubstr("llama3-8b")));
  EXPECT_THAT(refusal({"--from-scratch", "--export-hf", "o", "--tokenizer", "t", "--prompt-tokens", "1"}),
              AllOf(HasSubstr("--from-scratch:"), HasSubstr("--export-hf:"), HasSubstr("--tokenizer:"),
                    HasSubstr("--prompt-tokens:")));
  EXPECT_THAT(refusal({"--token-format", "u16"}), HasSubstr("token files are missing"));

  // A size is refused wherever it stands, for it would not be used.
  const TemporaryFolder folder;
  EXPECT_THAT(with({"--config", folder.write("c.txt", "layers: 3 dim: 64")}),
              HasSubstr("--dim, --layers: --model gpt2-124m has sizes of its own"));
  EXPECT_THAT(
      with({"--ranks", "5", "--batch", "5", "--tp", "5"}),
      HasSubstr("--tp 5: must, of --model gpt2-124m, divide its 12 heads and the 3072 hidden columns"));
  EXPECT_EQ(parse({"--model", "gpt2-124m", "--from-scratch", "--steps", "0", "--ranks", "4", "--tp", "4"}).tp,
            4);
  EXPECT_THAT(with({"--sample", "5", "--prompt-tokens", "1,50257"}),
              HasSubstr("--prompt-tokens 1,50257: '50257' is not a token; give numbers below 50257"));
  EXPECT_THAT(with({"--prompt-tokens", "1", "--tokenizer", "t"}),
              HasSubstr("--prompt-tokens, --tokenizer: no text is generated; give --sample N"));
  EXPECT_EQ(parse({"--config", folder.write("d.txt", "prompt_tokens: '1'"), "--model", "gpt2-124m",
                   "--from-scratch", "--steps", "0"})
                .sample_bytes(),
            0);
}

TEST(Config, ListsOfTokenFilesAreReadWithTheFlags) {
  const auto said = [](const char* tokens, const char* valid) {
    return refusal({"--tokens", tokens, "--valid-tokens", valid});
  };
  EXPECT_THAT(
      said("a.bin:0.5,b.bin", "v.bin:1"),
      AllOf(HasSubstr("2 problems"), HasSubstr("--tokens 'a.bin:0.5,b.bin': 1 of 2 files have weights"),
            HasSubstr("--valid-tokens: 'v.bin' has a weight")));
  EXPECT_THAT(said("a.bin:0", "v.bin"), HasSubstr("the weight of 'a.bin' is 0"));
  EXPECT_THAT(said("a.bin:1000.000001,b.bin:1000", "v.bin"), HasSubstr("use fewer decimal places"));
}

TEST(Config, FirstWeightsMayBeEvaluated) {
  const std::vector<std::string> preset = {"--eval-only", "--model", "gpt2-124m", "--tokens", "t"};
  EXPECT_THAT(refusal(preset),
              AllOf(HasSubstr("a problem"), HasSubstr("no weights here; give --init-weights PATH")));
  std::vector<std::string> flags = preset;
  flags.insert(flags.end(), {"--init-weights", "w"});
  EXPECT_EQ(parse(flags).init_weights, "w");
  EXPECT_EQ(parse({"--eval-only", "--init-weights", "w"}).init_weights, "w");
  EXPECT_THAT(refusal({"--eval-only", "--init-weights", "w", "--resume", "r"}),
              HasSubstr("give one of the two"));
}

TEST(Config, MuonFlagsAreCheckedTogether) {
  EXPECT_THAT(refusal({"--optimizer", "muon", "--ns-coefficients", "best"}), HasSubstr("polar_express"));
  EXPECT_THAT(refusal({"--muon-fraction", "0"}), HasSubstr("--muon-fraction 0: must be greater than 0"));
  EXPECT_THAT(refusal({"--muon-fraction", "0.5", "--muon-mode", "gram"}),
              HasSubstr("--muon-fraction 0.5: needs whole matrices"));
  EXPECT_THAT(refusal({"--ns-restart", "2"}), HasSubstr("--ns-form gram"));
  EXPECT_THAT(refusal({"--ns-restart", "5", "--ns-form", "gram"}), HasSubstr("5 steps"));
  EXPECT_THAT(refusal({"--ns-restart", "3,2", "--ns-form", "gram"}), HasSubstr("increasing"));
  EXPECT_THAT(refusal({"--muon-working", "bf16", "--ns-form", "gram"}), HasSubstr("fp16 or fp32"));
  EXPECT_THAT(refusal({"--route", "fc"}), HasSubstr("REGEX=muon"));
  EXPECT_THAT(refusal({"--route", "(=muon"}), HasSubstr("--route"));
  EXPECT_THAT(refusal({"--route", "fc=sgd"}), HasSubstr("adamw, muon, normuon or soap"));
  EXPECT_EQ(parse({"--optimizer", "muon", "--ns-coefficients", "2,-1.5,0.5", "--ns-steps", "4", "--ns-form",
                   "gram", "--ns-restart", "2"})
                .ns_steps,
            4);
}

TEST(Config, MuonFlagsWithoutMuonAreRefusedAndInAFileTheyMayWait) {
  EXPECT_THAT(refusal({"--muon-mode", "owner", "--ns-steps", "4"}),
              AllOf(HasSubstr("--muon-mode"), HasSubstr("--ns-steps"), HasSubstr("--optimizer muon")));
  EXPECT_EQ(parse({"--optimizer", "muon", "--muon-mode", "owner"}).muon_mode, "owner");
  EXPECT_EQ(parse({"--route", "qkv=muon;tok=adamw", "--muon-mode", "owner"}).muon_mode, "owner");
  EXPECT_THAT(refusal({"--route", "qkv=adamw", "--muon-mode", "owner"}),
              HasSubstr("no parameter goes to Muon"));
  const TemporaryFolder folder;
  const std::string file = folder.write("run.txtpb", "optimizer: \"muon\" muon_mode: \"owner\"");
  EXPECT_EQ(parse({"--config", file, "--optimizer", "adamw"}).muon_mode, "owner");
}

TEST(Config, NorMuonTakesTheFlagsOfMuon) {
  EXPECT_EQ(parse({"--optimizer", "normuon", "--muon-mode", "owner"}).muon_mode, "owner");
  EXPECT_EQ(parse({"--route", "fc=normuon", "--ns-steps", "4"}).ns_steps, 4);
  EXPECT_THAT(refusal({"--optimizer", "normuon", "--muon-fraction", "0.5"}),
              HasSubstr("--muon-fraction 0.5: NorMuon normalizes all rows"));
  EXPECT_THAT(refusal({"--optimizer", "normuon", "--muon-scale", "spectral"}), HasSubstr("match_rms_adamw"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--route", "fc=normuon"}), HasSubstr("use one of them"));
}

TEST(Config, SoapFlagsWithoutSoapAreRefused) {
  EXPECT_THAT(refusal({"--soap-max-dim", "64"}),
              HasSubstr("no parameter goes to SOAP; give --optimizer soap"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--soap-beta", "0.9"}), HasSubstr("--soap-beta"));
  EXPECT_THAT(refusal({"--optimizer", "soap", "--muon-mode", "owner"}),
              HasSubstr("no parameter goes to Muon"));
  EXPECT_THAT(refusal({"--optimizer", "soap", "--soap-beta", "1"}),
              HasSubstr("--soap-beta 1: must be less than 1"));
  EXPECT_THAT(refusal({"--optimizer", "soap", "--soap-eps", "0"}),
              HasSubstr("--soap-eps 0: must be greater than 0"));
  EXPECT_EQ(parse({"--optimizer", "soap", "--soap-max-dim", "64", "--explain-plan"}).soap_max_dim, 64);
  EXPECT_EQ(parse({"--route", "fc=soap", "--soap-max-dim", "64"}).soap_max_dim, 64);
}

TEST(Config, VersionNamesTheProgramAndWhatWasBuiltIn) {
  const CommandLine line = parse_line({"--version"});
  ASSERT_TRUE(line.help.has_value());
  EXPECT_THAT(
      *line.help,
      testing::MatchesRegex(
          "train_gpt [0-9.]+ \\(CUDA .*, NCCL .*, cuDNN attention .*, MPI .*; this processor: AVX.*\\)\n"));
}

TEST(Config, FlagsWinOverTheFileInAnyOrder) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.txt", "ranks: 4\nlr: 0.5 quiet: true\nstrategy: 'zero1'");
  for (const auto& flags : {std::vector<std::string>{"--lr", "0.25", "--config", file},
                            std::vector<std::string>{"--config=" + file, "--lr=0.25"}}) {
    const TrainConfig c = parse(flags);
    EXPECT_EQ(c.ranks, 4);
    EXPECT_EQ(c.lr, 0.25);
    EXPECT_EQ(c.strategy, "optim");
    EXPECT_TRUE(c.quiet);
    EXPECT_EQ(c.seq, 128);
  }
  // A default given as a flag still wins, and repairs what would be wrong in the file.
  EXPECT_EQ(parse({"--config", folder.write("d.txt", "ranks: 0"), "--ranks", "1"}).ranks, 1);
}

TEST(Config, LastOfEqualFlagsCounts) {
  EXPECT_EQ(parse({"--steps", "5", "--quiet", "--steps=6", "--quiet"}).steps, 6);
}

TEST(Config, StrategyAliases) {
  const std::pair<const char*, const char*> aliases[] = {
      {"zero0", "no_shard"}, {"zero1", "optim"}, {"zero2", "optim_grads"}, {"zero3", "optim_grads_params"}};
  for (const auto& [alias, name] : aliases) {
    EXPECT_EQ(parse({"--strategy", alias}).strategy, name);
    EXPECT_EQ(parse({"--strategy", name}).strategy, name);
  }
  EXPECT_THAT(
      refusal({"--strategy", "zero4"}),
      AllOf(HasSubstr("--strategy zero4"), HasSubstr("no_shard|optim|optim_grads|optim_grads_params")));
  EXPECT_THAT(refusal({"--outer", "zero1"}), HasSubstr("--outer zero1: must be one of no_shard|optim"));
}

TEST(Config, ReshardAfterForwardTakesAValue) {
  EXPECT_TRUE(parse({"--reshard-after-forward", "true"}).reshard_after_forward);
  EXPECT_FALSE(parse({"--reshard-after-forward", "false"}).reshard_after_forward);
  EXPECT_THAT(refusal({"--reshard-after-forward", "no"}),
              HasSubstr("--reshard-after-forward no: must be true or false"));
}

TEST(Config, MemoryLimitSuffixes) {
  EXPECT_EQ(parse({"--memory-limit", "1500000"}).memory_limit, 1500000);
  EXPECT_EQ(parse({"--memory-limit", "64K"}).memory_limit, 64 << 10);
  EXPECT_EQ(parse({"--memory-limit", "200m"}).memory_limit, 200 << 20);
  EXPECT_EQ(parse({"--memory-limit", "2G"}).memory_limit, int64_t{2} << 30);
  for (const char* wrong :
       {"", "G", "2T", "2GB", "-1", "-9223372036854775808K", "1.5G", "9223372036854775807K", "2 G"}) {
    EXPECT_THAT(refusal({"--memory-limit", wrong}), HasSubstr("must be a number of bytes")) << wrong;
  }
  const TemporaryFolder folder;
  EXPECT_EQ(parse({"--config", folder.write("c", "memory_limit: '3M'")}).memory_limit, 3 << 20);
  EXPECT_THAT(refusal({"--config", folder.write("d", "memory_limit: '3X'")}),
              HasSubstr(folder / "d: memory_limit \"3X\": must be a number of bytes"));
}

TEST(Config, WeightsOfAModelHaveAFineTuningRate) {
  const std::vector<std::string> weights = {"--model", "gpt2-124m", "--tokens", "t", "--init-weights", "w"};
  const std::vector<std::string> fresh = {"--model", "gpt2-124m", "--tokens", "t", "--from-scratch"};
  const auto with_rate = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--lr", "0.001"});
    return flags;
  };
  EXPECT_EQ(parse({}).lr, 3e-3);
  EXPECT_EQ(parse(fresh).lr, 3e-3);
  EXPECT_EQ(parse(weights).lr, 2e-5);
  EXPECT_EQ(parse(with_rate(weights)).lr, 1e-3);
}

TEST(Config, UnknownFlagsAreNamed) {
  EXPECT_THAT(refusal({"--rank", "3"}), HasSubstr("--rank: unknown flag; did you mean --ranks?"));
  EXPECT_THAT(refusal({"--learning-rate-of-it=1"}),
              HasSubstr("--learning-rate-of-it=1: unknown flag; --help-all"));
  EXPECT_THAT(refusal({"-r"}), HasSubstr("-r: unknown flag"));
  EXPECT_THAT(refusal({"--grad_accum", "3"}),
              HasSubstr("--grad_accum: unknown flag; did you mean --grad-accum?"));
  EXPECT_THAT(refusal({"--no-such=1", "--other"}), AllOf(HasSubstr("--no-such"), HasSubstr("--other")));
  EXPECT_THAT(refusal({"--steps"}), HasSubstr("--steps"));
  EXPECT_THAT(refusal({"--metrics", "--quiet"}), HasSubstr("--metrics"));
}

TEST(Config, FlagsOfOtherProgramsAreNamedWithTheOnesHere) {
  const std::pair<const char*, const char*> cases[] = {
      // Hugging Face Trainer
      {"--learning-rate", "--lr?"},
      {"--per_device_train_batch_size",
       "--batch? it counts sequences of a step over all ranks and microbatches"},
      {"--gradient-accumulation-steps", "--grad-accum?"},
      {"--num_train_epochs", "--steps? runs are measured in steps"},
      {"--max_steps", "--steps?"},
      {"--output_dir", "--save?"},
      {"--resume_from_checkpoint", "--resume?"},
      {"--gradient_checkpointing", "--recompute blocks?"},
      {"--max_grad_norm", "--grad-clip?"},
      {"--bf16", "--precision bf16?"},
      {"--model_name_or_path", "--model?"},
      // torchtitan
      {"--training.local_batch_size", "--batch?"},
      {"--training.seq_len", "--seq?"},
      {"--parallelism.tensor_parallel_degree", "--tp?"},
      // Megatron-LM
      {"--train-iters", "--steps?"},
      {"--micro-batch-size", "--grad-accum?"},
      {"--tensor-model-parallel-size", "--tp?"},
      {"--num-layers", "--layers?"},
      {"--save-interval", "--save-every?"},
      // nanoGPT
      {"--block_size", "--seq?"},
      {"--n_embd", "--dim?"},
      {"--max_iters", "--steps?"},
      {"--eval_interval", "--eval-every?"},
      // near misses
      {"--batchsize", "--batch?"},
      {"--epochs", "--steps?"},
      {"--warm", "--warmup?"}};
  for (const auto& [flag, here] : cases)
    EXPECT_THAT(refusal({flag, "1"}), HasSubstr(std::string(flag) + ": unknown flag; did you mean " + here));
  EXPECT_THAT(refusal({"--dropout", "0.1"}), HasSubstr("the models have no dropout; leave it out"));
  EXPECT_THAT(refusal({"--data"}), HasSubstr("--data: 1 required PATH missing"));
  EXPECT_THAT(refusal({"--data", "t", "text.txt"}), HasSubstr("such as --data PATH"));
  EXPECT_THAT(refusal({"text.txt"}),
              HasSubstr("'text.txt': expected a flag; values follow flags, such as --data PATH"));
}

// Names of other programs lead to settings that exist.
TEST(Config, EverySuggestionIsASetting) {
  TrainConfig any;
  std::vector<std::string_view> all;
  for (const sherd::FieldGroup& group : fields_of(any))
    for (const sherd::Field& field : group.fields) all.emplace_back(field.name);
  for (const std::string_view setting : sherd::settings_of_other_names())
    EXPECT_TRUE(std::ranges::count(all, setting) > 0) << setting;
}

TEST(Config, WhatIsNotAModelsFolderIsNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const auto of = [](const std::string& model) { return refusal({"--model", model, "--tokens", "t"}); };
  EXPECT_THAT(
      of("meta-llama/Llama-3.2-1B"),
      HasSubstr(
          "--model meta-llama/Llama-3.2-1B: no such folder, and nothing is downloaded; run `hf download "
          "meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B`, then give --model Llama-3.2-1B"));
  EXPECT_THAT(of("./nosuch"),
              HasSubstr("no such folder, and no published shape; these are known: gpt2-124m"));
  EXPECT_THAT(of("Llama3.2-1B"), HasSubstr("did you mean llama3.2-1b?"));
  const std::string config = folder.write("m/config.json", "{}");
  EXPECT_THAT(of(config), HasSubstr("a file; name the folder that it is in, --model " + (folder / "m")));
  folder.write("run/latest", "step_00000002");
  folder.write("run/step_00000002/manifest.binpb", "x");
  EXPECT_THAT(of(folder / "run"),
              HasSubstr("checkpoints of a run, not a model's folder; give --resume " + (folder / "run")));
  folder.write("step/manifest.binpb", "x");
  EXPECT_THAT(of(folder / "step"), HasSubstr("checkpoints of a run, not a model's folder"));
  folder.write("bare/model.safetensors", "x");
  EXPECT_THAT(of(folder / "bare"), HasSubstr("the folder has no config.json; name one with config.json and"));
  folder.write("lfs/config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 700\n");
  EXPECT_THAT(of(folder / "lfs"),
              HasSubstr("lfs/config.json': it is a git-lfs pointer, not the file itself; run `git "
                        "lfs pull` in its repository"));
  EXPECT_THAT(refusal({"--resume", (folder / "m")}),
              HasSubstr("m: a Hugging Face folder, not a checkpoint; give --model "));
  EXPECT_THAT(refusal({"--resume", folder / "m"}), Not(HasSubstr("its settings cannot be read")));
}

TEST(Config, ErrorsInTheFileNameLineAndColumn) {
  const TemporaryFolder folder;
  const std::string typo = folder.write("typo.txt", "ranks: 4\n  stepz: 10\nlr: 0.1\n");
  EXPECT_THAT(refusal({"--config", typo}), AllOf(HasSubstr(typo + ":2:"), HasSubstr("stepz")));
  const std::string type = folder.write("type.txt", "ranks: 4\nlr: 0.1\nsteps: \"many\"\n");
  EXPECT_THAT(refusal({"--config", type}), HasSubstr(type + ":3:8:"));
  const std::string twice = folder.write("twice.txt", "ranks: 4\nranks: 5\n");
  EXPECT_THAT(refusal({"--config", twice}), AllOf(HasSubstr(twice + ":2:"), HasSubstr("ranks")));
  const std::string cut = folder.write("cut.txt", "data: \"abc\n");
  EXPECT_THAT(refusal({"--config", cut, "--seq", "0"}), AllOf(HasSubstr(cut + ":1:"), HasSubstr("--seq 0")));
}

TEST(Config, AMissingFileIsAWrongFlag) {
  EXPECT_THAT(
      refusal({"--config", "/no/such/file", "--seq", "0"}),
      AllOf(HasSubstr("--config: cannot open '/no/such/file': No such file or directory; name a file of "
                      "options"),
            HasSubstr("--seq 0")));
  EXPECT_THAT(refusal({"--config", "/tmp"}), HasSubstr("--config: cannot read '/tmp': Is a directory"));
  EXPECT_THAT(refusal({"--config", ""}), HasSubstr("--config"));
}

TEST(Config, HelpListsEveryFlagAndPrintsNothing) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const CommandLine line = parse_line({"--steps", "5", "--help-all"});
  EXPECT_EQ(::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr(), "");
  ASSERT_TRUE(line.help.has_value());
  TrainConfig any;
  for (const sherd::FieldGroup& group : fields_of(any)) {
    for (const sherd::Field& field : group.fields) EXPECT_THAT(*line.help, HasSubstr("  " + flag_of(field)));
  }
  EXPECT_THAT(*line.help,
              AllOf(HasSubstr("--config FILE"), HasSubstr("zero3"), HasSubstr("constant|cosine")));
}

TEST(ByteData, DefaultIsTheFolderOfStandardHeaders) {
  const std::filesystem::path folder = default_data_folder();
  EXPECT_TRUE(folder.is_absolute());
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "vector"));
  EXPECT_TRUE(std::filesystem::is_regular_file(folder / "algorithm"));
  EXPECT_EQ(folder, std::filesystem::canonical(folder));
}

}  // namespace
}  // namespace train_gpt
