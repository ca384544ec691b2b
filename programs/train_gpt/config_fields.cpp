#include "config_fields.h"

#include <algorithm>

namespace train_gpt {
namespace {

constexpr double kAny = 1e15;  // counters: far from any overflow
// The product batch * seq * 4 * dim of the largest values is below 2^63.
constexpr double kMaxDim = 1 << 17, kMaxSeq = 1 << 20, kMaxBatch = 1 << 20;

std::string_view canonical_strategy(std::string_view word) {
  if (word == "zero0") return "no_shard";
  if (word == "zero1") return "optim";
  if (word == "zero2") return "optim_grads";
  if (word == "zero3") return "optim_grads_params";
  return word;
}

}  // namespace

std::vector<sherd::FieldGroup> fields_of(TrainConfig& c) {
  return {
      {"Data",
       {{"data", &c.data, "PATH", "text: a file, or a folder with all files below it"},
        {"tokens", &c.tokens, "FILE[:WEIGHT],...",
         "token files instead of text: one stream in this order or, with weights, each its share of the "
         "sequences"},
        {"token_format", &c.token_format, "auto|u16|u32|llmc|megatron",
         "of token files; auto: llm.c's and Megatron's (.bin beside .idx) are known by their marks"},
        {"valid_tokens", &c.valid_tokens, "FILE,...",
         "token files to evaluate on; without them a fiftieth of the windows is held out"},
        {"order", &c.order, "auto|sequential|hashed|shuffled",
         "of the windows; shuffled: each once per epoch, at random; auto: that for --tokens, hashed for "
         "--data"},
        {"seq", &c.seq, "T", "tokens (bytes of text) per sequence", 1, kMaxSeq},
        {"batch", &c.batch, "N", "sequences per step over all ranks", 1, kMaxBatch},
        {"grad_accum", &c.grad_accum, "N", "microbatches each rank splits its sequences into", 1,
         kMaxBatch}}},
      {"Ranks and sharding",
       {{"ranks", &c.ranks, "N",
         "all ranks: replicas x shards x tp; with --comm nccl or mpi in a job, when not given: its processes",
         1, 1024},
        {"replicas", &c.replicas, "N", "groups of ranks that hold the model once each (HSDP)", 1, 1024},
        {"tp", &c.tp, "N", "ranks that share each matrix (tensor parallel); divides --heads and 256", 1,
         1024},
        {"sequence_parallel", &c.sequence_parallel, "true|false",
         "of a --model with --tp: each of these ranks keeps its part of the rows between products; equal to "
         "rounding"},
        {"strategy", &c.strategy, "no_shard|optim|optim_grads|optim_grads_params",
         "what is sharded; also known as zero0, zero1, zero2, zero3", 0, 0, canonical_strategy},
        {"outer", &c.outer, "no_shard|optim", "what is sharded over replicas as well"},
        {"layout", &c.layout,
         "ragged|even_rows|whole_param|whole_param:lpt|whole_param:size_match|whole_param:ping_pong",
         "where parameters are cut"},
        {"bucket_size", &c.bucket_size, "N",
         "whole_param with zero1 or zero2: least elements of a bucket of Muon's matrices, which spans "
         "blocks; 0: one",
         0, kAny},
        {"reshard_after_forward", &c.reshard_after_forward, "true|false",
         "zero3: free gathered parameters between forward and backward"},
        {"prefetch", &c.prefetch, "N", "units gathered ahead of the one that computes", 0, 1024},
        {"recompute", &c.recompute, "none|blocks",
         "blocks: drop their activations, and compute them again in backward"}}},
      {"Model",
       {{"model", &c.model, "MODEL",
         "a folder of Hugging Face (config.json and weights; gpt2, llama, mistral, qwen2, qwen3, qwen3_moe, "
         "mixtral), or "
         "a published shape such as gpt2-124m, llama3.2-1b, qwen3-0.6b; empty: the byte model that follows"},
        {"from_scratch", &c.from_scratch, "", "random first weights, of --model's shape alone"},
        {"strict_weights", &c.strict_weights, "",
         "refuse weights that hold tensors which are not part of the model; otherwise they are named and left "
         "out"},
        {"dim", &c.dim, "D", "width", 1, kMaxDim},
        {"layers", &c.layers, "L", "blocks", 1, 10000},
        {"heads", &c.heads, "H", "attention heads; divides --dim", 1, kMaxDim},
        {"experts", &c.experts, "E", "experts in every block in place of its MLP; 0: dense blocks", 0, 1024},
        {"expert_parallel", &c.expert_parallel, "K",
         "ranks that share the experts out; divides --ranks and --experts", 1, 1024},
        {"expert_top_k", &c.expert_top_k, "N", "experts of each token", 1, 64},
        {"moe_aux", &c.moe_aux, "X",
         "weight of the load-balancing loss: not printed, of each microbatch, so depends on --grad-accum", 0,
         1e6},
        {"seed", &c.seed, "N", "of the initial weights and of --sample"},
        {"init_weights", &c.init_weights, "PATH",
         "start from these weights: safetensors, or a folder of Hugging Face, PyTorch DCP or a checkpoint"}}},
      {"Training",
       {{"optimizer", &c.optimizer, "adamw|muon", "muon: for the blocks' matrices, AdamW for the rest"},
        {"steps", &c.steps, "N", "0: only build the model, e.g. for --export-weights", 0, kAny},
        {"stop_at", &c.stop_at, "N", "end this run after step N; schedules still end at --steps; 0: no", 0,
         kAny},
        {"lr", &c.lr, "X", "learning rate, greater than 0", 0, 1e6},
        {"lr_schedule", &c.lr_schedule, "constant|cosine|linear|wsd",
         "after warm-up; all but constant fall to --min-lr at --steps, wsd in its last --decay-steps"},
        {"warmup", &c.warmup, "N", "first steps, in which the rate rises linearly to --lr", 0, kAny},
        {"min_lr", &c.min_lr, "X", "where schedules that fall end; not given: --lr / 10", 0, 1e6},
        {"decay_steps", &c.decay_steps, "N", "of wsd: last steps, in which the rate falls linearly", 0, kAny},
        {"adam_beta1", &c.adam_beta1, "X", "of AdamW's first moment, less than 1", 0, 1},
        {"adam_beta2", &c.adam_beta2, "X", "of AdamW's second moment, less than 1", 0, 1},
        {"adam_eps", &c.adam_eps, "X", "added to the root of AdamW's second moment", 0, 1},
        {"weight_decay", &c.weight_decay, "X", "of parameters with two or more dimensions", 0, 1e6},
        {"grad_clip", &c.grad_clip, "X", "largest global gradient norm; 0: no clipping", 0, 1e30},
        {"skip_non_finite", &c.skip_non_finite, "true|false",
         "leave a step out, on all ranks, when its gradients are inf or NaN somewhere"},
        {"max_skipped_steps", &c.max_skipped_steps, "N",
         "of those in a row end the run with exit code 1; 0: never", 0, kAny},
        {"precision", &c.precision, "fp32|bf16", "of gathered parameters and activations"},
        {"route", &c.route, "RULES",
         "REGEX=muon;REGEX=adamw;...: overrides by parameter name, first match wins"}}},
      {"Guards and stopping",
       {{"loss_spike", &c.loss_spike, "K",
         "report steps whose loss is K robust deviations above the median of the 128 before; 0: none", 0,
         1e6},
        {"verify_step", &c.verify_step, "N",
         "do step N twice from the same state and compare all bits; a difference ends the run with exit code "
         "1; 0: no",
         0, kAny},
        {"check_replicas", &c.check_replicas, "K",
         "every K steps, and before every checkpoint, compare, in bits, weights, fp32 masters, optimizer states and "
         "buffers that several ranks hold; "
         "a difference ends the run with exit code 1, unsaved; 0: never",
         0, kAny},
        {"grace", &c.grace, "SECONDS",
         "after SIGTERM, SIGINT or SIGUSR1 for the step that runs and the save; longer ends the run with "
         "exit code 1; 0: "
         "no bound",
         0, 1e6},
        {"max_wall", &c.max_wall, "TIME",
         "save and stop before the program has run so long: 3h50m, 90m, 7200s or 01:30:00; empty: no "
         "limit"}}},
      {"Muon",
       {{"muon_mode", &c.muon_mode, "auto|local|owner|gram|gather",
         "how matrices reach the ranks that orthogonalize them; all but auto are forced or refused"},
        {"muon_allow_inexact", &c.muon_allow_inexact, "",
         "let auto sum Gram matrices over ranks, which rounds differently from one rank"},
        {"ns_form", &c.ns_form, "standard|gram", "of the Newton-Schulz iteration"},
        {"ns_coefficients", &c.ns_coefficients, "SET",
         "jordan, quintic, polar_express, cans, aol, deepseekv4, or a,b,c;a,b,c;..."},
        {"ns_steps", &c.ns_steps, "N", "steps of the iteration; 0: as many as the set has", 0, 64},
        {"ns_restart", &c.ns_restart, "STEPS",
         "gram form: steps after which X is formed anew, e.g. 2; by default where rounding demands it"},
        {"orthogonalizer", &c.orthogonalizer, "newton_schulz|svd", "svd: the exact polar factor, slow"},
        {"muon_momentum", &c.muon_momentum, "X", "of the momentum buffer", 0, 1},
        {"muon_scale", &c.muon_scale, "original|match_rms_adamw|spectral|unit_rms_norm|shape_scaling",
         "of the update, by the matrix's shape"},
        {"muon_scale_factor", &c.muon_scale_factor, "X", "a further factor", 0, 1e6},
        {"muon_decay", &c.muon_decay, "decoupled|independent|l2|palm", "how weight decay acts"},
        {"muon_payload", &c.muon_payload, "fp32|bf16|fp16", "of matrices on the wire"},
        {"muon_working", &c.muon_working, "fp32|bf16|fp16", "of matrices between products"},
        {"muon_tensor", &c.muon_tensor, "duplicated|distributed",
         "tensor-parallel matrices: gathered, or summed Gram matrices"},
        {"muon_transient", &c.muon_transient, "BYTES",
         "bound on messages and matrices in flight per rank; 0: 256 MiB on a CPU, a 32nd of a GPU's memory",
         0, kAny},
        {"explain_plan", &c.explain_plan, "", "print who orthogonalizes what, and what moves"}}},
      {"Machine",
       {{"device", &c.device, "cpu|cuda",
         "cuda: rank r (of a job's processes: the r-th of its host) computes on GPU r modulo their number"},
        {"comm", &c.comm, "local|nccl|mpi|auto",
         "local: ranks are threads; nccl: one GPU each, also as processes of torchrun, mpirun or srun; mpi: "
         "processes of mpirun on CPUs; auto: what the launcher's variables and --device ask for"},
        {"bootstrap", &c.bootstrap, "env|mpi|none",
         "how a job's processes meet; env: by RANK, WORLD_SIZE ... as launchers set them; none: not at all, "
         "each has all ranks"},
        {"mpi_library_order", &c.mpi_library_order, "",
         "--comm mpi: f32 sums in MPI's own order, whose bits are not those of --comm local"},
        {"nccl_exact_order", &c.nccl_exact_order, "", "sums with the bits of --comm local; slower"},
        {"nccl_check_calls", &c.nccl_check_calls, "",
         "compare every call among ranks before it is made, to find a hang; slow"},
        {"nccl_register_buffers", &c.nccl_register_buffers, "", "register units' memory with NCCL"},
        {"nccl_windows", &c.nccl_windows, "",
         "units' buffers in NCCL's own memory and symmetric windows (NCCL 2.27 and newer)"},
        {"tf32", &c.tf32, "", "cuda: products of fp32 matrices with 10 bits of mantissa, faster"},
        {"symmetric_products", &c.symmetric_products, "blocks|hopper",
         "cuda, Muon in 16 bits: by cuBLASLt, or by sherd's own kernel (compute capability 9.0)"},
        {"kernels", &c.kernels, "cpu|reference", "of the cpu; reference: slow and plain"},
        {"threads", &c.threads, "N", "kernel threads per rank (cpu); 0: cores / ranks", 0, 1024},
        {"memory_limit", &c.memory_limit, "BYTES",
         "that a rank holds, kept ones included, with suffix K, M or G; 0: none", 0, kAny},
        {"max_queued", &c.max_queued, "N",
         "pieces of work (kernels, collectives) the host may queue ahead on a stream; then it waits", 1,
         kAny},
        {"comm_timeout", &c.comm_timeout, "SECONDS", "longest wait for another rank, greater than 0", 0, 1e6},
        {"flight_recorder", &c.flight_recorder, "FOLDER",
         "where each rank writes its last collectives (flight_rank_00003.json) when the run fails; `sherd "
         "trace "
         "FOLDER` compares them"}}},
      {"Checkpoints",
       {{"save", &c.save, "DIR",
         "folder of checkpoints; one is saved after the last step; may hold another run's only with "
         "--overwrite"},
        {"save_every", &c.save_every, "K", "and after every K-th step; 0: only after the last", 0, kAny},
        {"keep", &c.keep, "N",
         "newest checkpoints of this run, and of those it goes on from, to keep, and the newest N whose "
         "weights are "
         "finite, should those be others; 0: all",
         0, kAny},
        {"save_failure", &c.save_failure, "warn|stop",
         "a save that fails (disk full), or a line of --metrics: training goes on and tries again when the "
         "next is due, or ends; a run without its last checkpoint or without lines ends with exit code 1"},
        {"save_retry", &c.save_retry, "TIME",
         "after the last step, or after a signal within --grace: repeat a save that fails, with growing "
         "pauses, for so "
         "long: 10m, 90s or 1h; 0: never"},
        {"overwrite", &c.overwrite, "",
         "--save may hold another run: its checkpoints are removed once the first of this run is complete; "
         "those that --resume goes on from stay"},
        {"async_save", &c.async_save, "", "write behind training, from a copy in memory"},
        {"resume", &c.resume, "PATH",
         "go on from a checkpoint, or from the newest good one of a folder of them, on any ranks; data, "
         "model, "
         "training and Muon are as that run had them, unless given; --steps counts from its beginning"},
        {"resume_parts", &c.resume_parts, "all|model|optimizer",
         "what to take; model: weights only, training starts at step 0"},
        {"allow_new_state", &c.allow_new_state, "",
         "optimizer state that the checkpoint lacks starts from zero, unknown state is left out"}}},
      {"Output",
       {{"eval_every", &c.eval_every, "N",
         "evaluate on held-out text every N steps and after the last; 0: never", 0, kAny},
        {"eval_windows", &c.eval_windows, "N",
         "held-out windows per evaluation, at equal distances; 0: all; default: 256 of --data, all of token files",
         0, kAny},
        {"metrics", &c.metrics, "FILE", "one JSON object per step"},
        {"log_dir", &c.log_dir, "DIR", "the same figures for TensorBoard: a new event file in this folder"},
        {"measure_peak", &c.measure_peak, "true|false",
         "with those two: time plain products of matrices at start, for the share of their speed (mfu)"},
        {"loss_svg", &c.loss_svg, "FILE", "picture of the loss curve"},
        {"trace", &c.trace, "FILE", "what every rank's streams did when, for chrome://tracing or Perfetto"},
        {"timeline", &c.timeline, "FILE", "the same as a picture (SVG)"},
        {"trace_steps", &c.trace_steps, "N", "steps of those two: from the run's third on, or its last ones",
         1, 1000},
        {"export_weights", &c.export_weights, "PATH",
         "final weights (safetensors): a file, or a new folder for Hugging Face tools, FOLDER/"},
        {"export_dtype", &c.export_dtype, "fp32|bf16|fp16", "of the exported weights"},
        {"export_hf", &c.export_hf, "FOLDER",
         "final weights of a --model as a folder for transformers, like the one that it came from"},
        {"quiet", &c.quiet, "", "print errors only, and what --sample and --eval-only ask for"}}},
      {"Evaluation and sampling",
       {{"eval_only", &c.eval_only, "",
         "train nothing: evaluate the checkpoint of --resume, or --model, on held-out data"},
        {"sample_only", &c.sample_only, "",
         "train nothing: generate text from the checkpoint of --resume, or from --model; 256 bytes or tokens "
         "unless --sample says"},
        {"sample", &c.sample, "N", "bytes of text to generate at the end", 0, 1e6},
        {"prompt", &c.prompt, "TEXT", "what the text begins with; by default a line break"},
        {"temperature", &c.temperature, "X", "by which logits are divided; 0: always the likeliest byte", 0,
         1e6},
        {"top_p", &c.top_p, "X", "draw from the likeliest bytes that have this probability together", 0, 1},
        {"prompt_tokens", &c.prompt_tokens, "LIST",
         "of a --model: numbers of tokens, with commas, that the text begins with"},
        {"tokenizer", &c.tokenizer, "FILE",
         "tokenizer.json that decodes tokens; empty: that of --model's folder"}}},
  };
}

std::vector<std::string_view> names_of_group(std::string_view title) {
  TrainConfig any;
  std::vector<std::string_view> names;
  for (const sherd::FieldGroup& group : fields_of(any)) {
    if (group.title != title) continue;
    for (const sherd::Field& field : group.fields) names.push_back(field.name);
  }
  return names;
}

}  // namespace train_gpt
