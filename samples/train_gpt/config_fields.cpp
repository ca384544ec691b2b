#include "config_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

namespace train_gpt {
namespace {

using C = TrainConfig;

constexpr double kAny = 1e15;  // counters: far from any overflow
// The product batch * seq * 4 * dim of the largest values is below 2^63.
constexpr double kMaxDim = 1 << 17, kMaxSeq = 1 << 20, kMaxBatch = 1 << 20;

const std::vector<FieldGroup>& groups() {
  static const std::vector<FieldGroup> all = {
      {"Data",
       {{"data", &C::data, "PATH", "text: a file, or a folder with all files below it"},
        {"seq", &C::seq, "T", "bytes (tokens) per sequence", 1, kMaxSeq},
        {"batch", &C::batch, "N", "sequences per step over all ranks", 1, kMaxBatch},
        {"grad_accum", &C::grad_accum, "N", "microbatches each rank splits its sequences into", 1,
         kMaxBatch}}},
      {"Ranks and sharding",
       {{"ranks", &C::ranks, "N",
         "all ranks: replicas x shards x tp; with --comm nccl in a job, when not given: its processes", 1,
         1024},
        {"replicas", &C::replicas, "N", "groups of ranks that hold the model once each (HSDP)", 1, 1024},
        {"tp", &C::tp, "N", "ranks that share each matrix (tensor parallel); divides --heads and 256", 1,
         1024},
        {"strategy", &C::strategy, "no_shard|optim|optim_grads|optim_grads_params",
         "what is sharded; also known as zero0, zero1, zero2, zero3"},
        {"outer", &C::outer, "no_shard|optim", "what is sharded over replicas as well"},
        {"layout", &C::layout,
         "ragged|even_rows|whole_param|whole_param:lpt|whole_param:size_match|whole_param:ping_pong",
         "where parameters are cut"},
        {"reshard_after_forward", &C::reshard_after_forward, "true|false",
         "zero3: free gathered parameters between forward and backward"},
        {"prefetch", &C::prefetch, "N", "units gathered ahead of the one that computes", 0, 1024}}},
      {"Model",
       {{"dim", &C::dim, "D", "width", 1, kMaxDim},
        {"layers", &C::layers, "L", "blocks", 1, 10000},
        {"heads", &C::heads, "H", "attention heads; divides --dim", 1, kMaxDim},
        {"experts", &C::experts, "E", "experts in every block in place of its MLP; 0: dense blocks", 0, 1024},
        {"expert_parallel", &C::expert_parallel, "K",
         "ranks that share the experts out; divides --ranks and --experts", 1, 1024},
        {"expert_top_k", &C::expert_top_k, "N", "experts of each token", 1, 2},
        {"moe_aux", &C::moe_aux, "X",
         "weight of the load-balancing loss: not printed, of each microbatch, so depends on --grad-accum", 0,
         1e6},
        {"seed", &C::seed, "N", "of the initial weights and of --sample"},
        {"init_weights", &C::init_weights, "PATH",
         "start from these weights: safetensors, or a folder of Hugging Face, PyTorch DCP or a checkpoint"}}},
      {"Training",
       {{"optimizer", &C::optimizer, "adamw|muon", "muon: for the blocks' matrices, AdamW for the rest"},
        {"steps", &C::steps, "N", "0: only build the model, e.g. for --export-weights", 0, kAny},
        {"stop_at", &C::stop_at, "N", "end this run after step N; schedules still end at --steps; 0: no", 0,
         kAny},
        {"lr", &C::lr, "X", "learning rate, greater than 0", 0, 1e6},
        {"lr_schedule", &C::lr_schedule, "constant|cosine",
         "after warm-up; cosine falls to lr / 10 at --steps"},
        {"warmup", &C::warmup, "N", "first steps, in which the rate rises linearly to --lr", 0, kAny},
        {"weight_decay", &C::weight_decay, "X", "of parameters with two or more dimensions", 0, 1e6},
        {"grad_clip", &C::grad_clip, "X", "largest global gradient norm; 0: no clipping", 0, 1e30},
        {"skip_non_finite", &C::skip_non_finite, "true|false",
         "leave a step out, on all ranks, when its gradients are inf or NaN somewhere"},
        {"max_skipped_steps", &C::max_skipped_steps, "N",
         "of those in a row end the run with exit code 1; 0: never", 0, kAny},
        {"precision", &C::precision, "fp32|bf16", "of gathered parameters and activations"},
        {"route", &C::route, "RULES",
         "REGEX=muon;REGEX=adamw;...: overrides by parameter name, first match wins"}}},
      {"Muon",
       {{"muon_mode", &C::muon_mode, "auto|local|owner|gram|gather",
         "how matrices reach the ranks that orthogonalize them; all but auto are forced or refused"},
        {"muon_allow_inexact", &C::muon_allow_inexact, "",
         "let auto sum Gram matrices over ranks, which rounds differently from one rank"},
        {"ns_form", &C::ns_form, "standard|gram", "of the Newton-Schulz iteration"},
        {"ns_coefficients", &C::ns_coefficients, "SET",
         "jordan, quintic, polar_express, cans, aol, deepseekv4, or a,b,c;a,b,c;..."},
        {"ns_steps", &C::ns_steps, "N", "steps of the iteration; 0: as many as the set has", 0, 64},
        {"ns_restart", &C::ns_restart, "STEPS",
         "gram form: steps after which X is formed anew, e.g. 2; by default where rounding demands it"},
        {"orthogonalizer", &C::orthogonalizer, "newton_schulz|svd", "svd: the exact polar factor, slow"},
        {"muon_momentum", &C::muon_momentum, "X", "of the momentum buffer", 0, 1},
        {"muon_scale", &C::muon_scale, "original|match_rms_adamw|spectral|unit_rms_norm|shape_scaling",
         "of the update, by the matrix's shape"},
        {"muon_scale_factor", &C::muon_scale_factor, "X", "a further factor", 0, 1e6},
        {"muon_decay", &C::muon_decay, "decoupled|independent|l2|palm", "how weight decay acts"},
        {"muon_payload", &C::muon_payload, "fp32|bf16|fp16", "of matrices on the wire"},
        {"muon_working", &C::muon_working, "fp32|bf16|fp16", "of matrices between products"},
        {"muon_tensor", &C::muon_tensor, "duplicated|distributed",
         "tensor-parallel matrices: gathered, or summed Gram matrices"},
        {"muon_transient", &C::muon_transient, "BYTES",
         "bound on messages and matrices in flight per rank; 0: 256 MiB on a CPU, a 32nd of a GPU's memory", 0,
         kAny},
        {"explain_plan", &C::explain_plan, "", "print who orthogonalizes what, and what moves"}}},
      {"Machine",
       {{"device", &C::device, "cpu|cuda",
         "cuda: rank r (of a job's processes: the r-th of its host) computes on GPU r modulo their number"},
        {"comm", &C::comm, "local|nccl",
         "local: ranks are threads; nccl: one GPU each, also as processes of torchrun, mpirun or srun"},
        {"bootstrap", &C::bootstrap, "env|mpi|none",
         "how a job's processes meet; env: by RANK, WORLD_SIZE ... as launchers set them; none: not at all, "
         "each has all ranks"},
        {"nccl_exact_order", &C::nccl_exact_order, "", "sums with the bits of --comm local; slower"},
        {"nccl_check_calls", &C::nccl_check_calls, "",
         "compare every call among ranks before it is made, to find a hang; slow"},
        {"nccl_register_buffers", &C::nccl_register_buffers, "", "register units' memory with NCCL"},
        {"nccl_windows", &C::nccl_windows, "",
         "units' buffers in NCCL's own memory and symmetric windows (NCCL 2.27 and newer)"},
        {"tf32", &C::tf32, "", "cuda: products of fp32 matrices with 10 bits of mantissa, faster"},
        {"symmetric_products", &C::symmetric_products, "blocks|hopper",
         "cuda, Muon in 16 bits: by cuBLASLt, or by sherd's own kernel (compute capability 9.0)"},
        {"kernels", &C::kernels, "cpu|reference", "of the cpu; reference: slow and plain"},
        {"threads", &C::threads, "N", "kernel threads per rank (cpu); 0: cores / ranks", 0, 1024},
        {"memory_limit", &C::memory_limit, "BYTES",
         "that a rank holds, kept ones included, with suffix K, M or G; 0: none", 0, kAny},
        {"max_queued", &C::max_queued, "N",
         "pieces of work (kernels, collectives) the host may queue ahead on a stream; then it waits", 1, kAny},
        {"comm_timeout", &C::comm_timeout, "SECONDS", "longest wait for another rank, greater than 0", 0,
         1e6}}},
      {"Checkpoints",
       {{"save", &C::save, "DIR",
         "folder of checkpoints; one is saved after the last step; may hold another run's only with "
         "--overwrite"},
        {"save_every", &C::save_every, "K", "and after every K-th step; 0: only after the last", 0, kAny},
        {"keep", &C::keep, "N",
         "newest checkpoints of this run, and of those it goes on from, to keep, and the newest N whose "
         "weights are "
         "finite, should those be others; 0: all",
         0, kAny},
        {"save_failure", &C::save_failure, "warn|stop",
         "a save that fails (disk full), or a line of --metrics: training goes on and tries again when the "
         "next is due, or ends; a run without its last checkpoint or without lines ends with exit code 1"},
        {"overwrite", &C::overwrite, "",
         "--save may hold another run: its checkpoints are removed once the first of this run is complete; "
         "those that --resume goes on from stay"},
        {"async_save", &C::async_save, "", "write behind training, from a copy in memory"},
        {"resume", &C::resume, "PATH",
         "go on from a checkpoint, or from the newest good one of a folder of them, on any ranks; --steps "
         "counts from the run's beginning"},
        {"resume_parts", &C::resume_parts, "all|model|optimizer",
         "what to take; model: weights only, training starts at step 0"},
        {"allow_new_state", &C::allow_new_state, "",
         "optimizer state that the checkpoint lacks starts from zero, unknown state is left out"}}},
      {"Output",
       {{"eval_every", &C::eval_every, "N",
         "evaluate on held-out text every N steps and after the last; 0: never", 0, kAny},
        {"sample", &C::sample, "N", "bytes of text to generate at the end", 0, 1e6},
        {"metrics", &C::metrics, "FILE", "one JSON object per step"},
        {"loss_svg", &C::loss_svg, "FILE", "picture of the loss curve"},
        {"trace", &C::trace, "FILE", "what every rank's streams did when, for chrome://tracing or Perfetto"},
        {"timeline", &C::timeline, "FILE", "the same as a picture (SVG)"},
        {"trace_steps", &C::trace_steps, "N", "steps of those two: from the run's third on, or its last ones",
         1, 1000},
        {"export_weights", &C::export_weights, "PATH",
         "final weights (safetensors): a file, or a new folder for Hugging Face tools, FOLDER/"},
        {"export_dtype", &C::export_dtype, "fp32|bf16|fp16", "of the exported weights"},
        {"quiet", &C::quiet, "", "print errors only, and what --sample asks for"}}},
  };
  return all;
}

std::vector<std::string_view> allowed_words(const Field& field) {
  std::vector<std::string_view> words;
  std::string_view rest = field.value;
  if (rest.find('|') == rest.npos) return words;
  while (true) {
    const size_t bar = rest.find('|');
    words.push_back(rest.substr(0, bar));
    if (bar == rest.npos) return words;
    rest.remove_prefix(bar + 1);
  }
}

/// The whole text as a number.
template <class T>
bool parse_number(std::string_view text, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  value = parsed;
  return true;
}

bool parse_bytes(std::string_view text, int64_t& value) {
  int shift = 0;
  if (!text.empty()) {
    const size_t suffix = std::string_view("KMGkmg").find(text.back());
    if (suffix != std::string_view::npos) {
      shift = 10 * static_cast<int>(suffix % 3 + 1);
      text.remove_suffix(1);
    }
  }
  int64_t number = 0;
  if (!parse_number(text, number) || number < 0) return false;
  if (number > (std::numeric_limits<int64_t>::max() >> shift)) return false;
  value = number << shift;
  return true;
}

std::string_view canonical(std::string_view word) {
  if (word == "zero0") return "no_shard";
  if (word == "zero1") return "optim";
  if (word == "zero2") return "optim_grads";
  if (word == "zero3") return "optim_grads_params";
  return word;
}

}  // namespace

std::span<const FieldGroup> field_groups() { return groups(); }

std::string flag_of(const Field& field) {
  std::string flag = std::string("--") + field.name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string set_from_text(const Field& field, TrainConfig& config, const std::string& text) {
  return std::visit(
      [&](auto member) -> std::string {
        auto& value = config.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          value = field.name == std::string_view("strategy") ? canonical(text) : text;
          return "";
        } else if constexpr (std::is_same_v<T, bool>) {
          if (text != "true" && text != "false") return "must be true or false";
          value = text == "true";
          return "";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          const bool bytes = field.value == std::string_view("BYTES");
          if (bytes)
            return parse_bytes(text, value) ? ""
                                            : "must be a number of bytes such as 1500000, 64K, 200M or 2G";
          return parse_number(text, value) ? "" : "must be a whole number";
        } else if constexpr (std::is_same_v<T, uint64_t>) {
          return parse_number(text, value) ? "" : "must be a whole number from 0 to 2^64 - 1";
        } else {
          return parse_number(text, value) ? "" : "must be a number";
        }
      },
      field.member);
}

std::string check_value(const Field& field, const TrainConfig& config) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = config.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          const auto words = allowed_words(field);
          if (words.empty() || std::find(words.begin(), words.end(), value) != words.end()) return "";
          return fmt::format("must be one of {}", field.value);
        } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          const auto number = static_cast<double>(value);
          if (number >= field.low && number <= field.high) return "";  // false for a NaN
          return fmt::format("must be from {:.15g} to {:.15g}", field.low, field.high);
        } else {
          return "";
        }
      },
      field.member);
}

std::string show_value(const Field& field, const TrainConfig& config) {
  return std::visit([&](auto member) { return fmt::format("{}", config.*member); }, field.member);
}

std::string help_text() {
  std::string text =
      "train_gpt: trains a byte-level GPT on CPUs or GPUs, sharded the way --strategy says.\n\n"
      "Usage: train_gpt [flags]\n\n"
      "  --config FILE             Protobuf text with any of the fields below (underscores for dashes); "
      "flags win\n"
      "  --help                    this text\n"
      "  --version                 version and what was built in\n";
  const TrainConfig defaults;
  for (const FieldGroup& group : groups()) {
    text += fmt::format("\n{}\n", group.title);
    for (const Field& field : group.fields) {
      const bool words = !allowed_words(field).empty();
      const std::string flag = flag_of(field) + (words ? "" : fmt::format(" {}", field.value));
      text += fmt::format("  {:<25} {}", flag, field.help);
      const std::string value = show_value(field, defaults);
      const bool is_switch = field.value[0] == '\0';
      if (words) text += fmt::format("\n{:28}{}", "", field.value);
      if (!value.empty() && !is_switch) text += fmt::format(" [{}]", value);
      text += '\n';
    }
  }
  return text;
}

}  // namespace train_gpt
