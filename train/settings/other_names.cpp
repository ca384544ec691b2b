#include <sherd/train/settings/other_names.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/train/settings/fields.h>

namespace sherd {
namespace {

/// A name elsewhere, without dashes and underscores; here a setting, with a value where it is one. Without a setting the
/// advice says what to do.
struct OtherName {
  std::string_view other, setting, value, advice;
};
constexpr std::string_view kPerDevice = "it counts sequences of a step over all ranks and microbatches",
                           kBySteps =
                               "runs are measured in steps: an epoch has the data's windows / --batch steps",
                           kNoFp16 = "fp16 is not supported; bf16 needs no loss scaling",
                           kByLauncher =
                               "ranks and addresses are read from the launcher's environment; leave it out";
constexpr OtherName kOtherNames[] = {
    {"batchsize", "batch", "", ""},
    {"bs", "batch", "", ""},
    {"globalbatchsize", "batch", "", ""},
    {"totalbatchsize", "batch", "", ""},
    {"trainbatchsize", "batch", "", ""},
    {"perdevicetrainbatchsize", "batch", "", kPerDevice},
    {"perdevicebatchsize", "batch", "", kPerDevice},
    {"microbatchsize", "grad_accum", "", "a microbatch has --batch / ranks / --grad-accum sequences"},
    {"trainmicrobatchsizepergpu", "grad_accum", "",
     "a microbatch has --batch / ranks / --grad-accum sequences"},
    {"localbatchsize", "batch", "", kPerDevice},
    {"gradientaccumulationsteps", "grad_accum", "", ""},
    {"gradaccumulation", "grad_accum", "", ""},
    {"gradaccumsteps", "grad_accum", "", ""},
    {"accumulationsteps", "grad_accum", "", ""},
    {"accumsteps", "grad_accum", "", ""},
    {"accumulategradbatches", "grad_accum", "", ""},
    {"learningrate", "lr", "", ""},
    {"maxlr", "lr", "", ""},
    {"peaklr", "lr", "", ""},
    {"minlearningrate", "min_lr", "", ""},
    {"finallearningratefrac", "min_lr", "", "it is a rate, not a fraction"},
    {"lrschedulertype", "lr_schedule", "", ""},
    {"lrscheduler", "lr_schedule", "", ""},
    {"lrdecaystyle", "lr_schedule", "", ""},
    {"decaytype", "lr_schedule", "", ""},
    {"lrdecayiters", "steps", "", "schedules end there"},
    {"lrdecaysteps", "steps", "", "schedules end there"},
    {"warmupsteps", "warmup", "", ""},
    {"warmupiters", "warmup", "", ""},
    {"lrwarmupiters", "warmup", "", ""},
    {"lrwarmupsteps", "warmup", "", ""},
    {"warmupratio", "warmup", "", "it is a number of steps"},
    {"lrwarmupfraction", "warmup", "", "it is a number of steps"},
    {"epochs", "steps", "", kBySteps},
    {"epoch", "steps", "", kBySteps},
    {"nepochs", "steps", "", kBySteps},
    {"maxepochs", "steps", "", kBySteps},
    {"numepochs", "steps", "", kBySteps},
    {"numtrainepochs", "steps", "", kBySteps},
    {"maxsteps", "steps", "", ""},
    {"maxiters", "steps", "", ""},
    {"numiterations", "steps", "", ""},
    {"iterations", "steps", "", ""},
    {"numsteps", "steps", "", ""},
    {"trainiters", "steps", "", ""},
    {"trainsteps", "steps", "", ""},
    {"exitinterval", "stop_at", "", ""},
    {"maxgradnorm", "grad_clip", "", ""},
    {"maxnorm", "grad_clip", "", ""},
    {"clipgrad", "grad_clip", "", ""},
    {"gradientclipping", "grad_clip", "", ""},
    {"gradientclipval", "grad_clip", "", ""},
    {"wd", "weight_decay", "", ""},
    {"beta1", "adam_beta1", "", ""},
    {"beta2", "adam_beta2", "", ""},
    {"adambetas", "adam_beta1", "", ""},
    {"adamepsilon", "adam_eps", "", ""},
    {"eps", "adam_eps", "", ""},
    {"optim", "optimizer", "", ""},
    {"optimizername", "optimizer", "", ""},
    {"bf16", "precision", "bf16", ""},
    {"bfloat16", "precision", "bf16", ""},
    {"fp32", "precision", "fp32", ""},
    {"float32", "precision", "fp32", ""},
    {"fp16", "precision", "bf16", kNoFp16},
    {"float16", "precision", "bf16", kNoFp16},
    {"half", "precision", "bf16", kNoFp16},
    {"dtype", "precision", "", ""},
    {"modeldtype", "precision", "", ""},
    {"torchdtype", "precision", "", ""},
    {"mixedprecision", "precision", "", ""},
    {"mixedprecisionparam", "precision", "", ""},
    {"amp", "precision", "bf16", ""},
    {"seqlength", "seq", "", ""},
    {"seqlen", "seq", "", ""},
    {"sequencelength", "seq", "", ""},
    {"maxseqlen", "seq", "", ""},
    {"maxseqlength", "seq", "", ""},
    {"maxlength", "seq", "", ""},
    {"modelmaxlength", "seq", "", ""},
    {"blocksize", "seq", "", ""},
    {"contextlength", "seq", "", ""},
    {"nlayer", "layers", "", ""},
    {"nlayers", "layers", "", ""},
    {"numlayers", "layers", "", ""},
    {"numhiddenlayers", "layers", "", ""},
    {"depth", "layers", "", ""},
    {"nhead", "heads", "", ""},
    {"nheads", "heads", "", ""},
    {"numheads", "heads", "", ""},
    {"numattentionheads", "heads", "", ""},
    {"nembd", "dim", "", ""},
    {"hiddensize", "dim", "", ""},
    {"dmodel", "dim", "", ""},
    {"numexperts", "experts", "", ""},
    {"moeroutertopk", "expert_top_k", "", ""},
    {"nproc", "ranks", "", ""},
    {"nprocpernode", "ranks", "", ""},
    {"np", "ranks", "", ""},
    {"ngpus", "ranks", "", ""},
    {"gpus", "ranks", "", ""},
    {"numgpus", "ranks", "", ""},
    {"worldsize", "ranks", "", ""},
    {"tensormodelparallelsize", "tp", "", ""},
    {"tensorparallelsize", "tp", "", ""},
    {"tensorparalleldegree", "tp", "", ""},
    {"expertmodelparallelsize", "expert_parallel", "", ""},
    {"expertparalleldegree", "expert_parallel", "", ""},
    {"dataparallelreplicatedegree", "replicas", "", ""},
    {"dataparallelsharddegree", "", "",
     "parameters are sharded over --ranks / --replicas / --tp ranks; leave it out"},
    {"dataparallelsize", "", "", "it is --ranks / --tp; leave it out"},
    {"pipelinemodelparallelsize", "", "", "pipelines are not supported; shard more (--strategy zero3, --tp)"},
    {"pipelineparalleldegree", "", "", "pipelines are not supported; shard more (--strategy zero3, --tp)"},
    {"contextparallelsize", "", "",
     "context parallelism is not supported; shard rows by --tp and --sequence-parallel"},
    {"contextparalleldegree", "", "",
     "context parallelism is not supported; shard rows by --tp and --sequence-parallel"},
    {"fsdp", "strategy", "optim_grads_params", ""},
    {"fullyshard", "strategy", "optim_grads_params", ""},
    {"usedistributedoptimizer", "strategy", "optim", ""},
    {"zerolevel", "strategy", "", "zero0 to zero3 are its words"},
    {"zerostage", "strategy", "", "zero0 to zero3 are its words"},
    {"deepspeed", "strategy", "", "zero0 to zero3 are its words"},
    {"gradientcheckpointing", "recompute", "blocks", ""},
    {"activationcheckpointing", "recompute", "blocks", ""},
    {"activationcheckpointmode", "recompute", "blocks", ""},
    {"recomputeactivations", "recompute", "blocks", ""},
    {"recomputegranularity", "recompute", "blocks", ""},
    {"modelnameorpath", "model", "", ""},
    {"modelname", "model", "", ""},
    {"modelpath", "model", "", ""},
    {"pretrainedmodelnameorpath", "model", "", ""},
    {"initfrom", "model", "", "--resume continues a run"},
    {"dataset", "data", "", "token files are --tokens"},
    {"datasetname", "data", "", "token files are --tokens"},
    {"datasetpath", "data", "", "token files are --tokens"},
    {"datapath", "tokens", "", "text is --data"},
    {"traindata", "data", "", "token files are --tokens"},
    {"trainfile", "data", "", "token files are --tokens"},
    {"inputbin", "tokens", "", ""},
    {"inputvalbin", "valid_tokens", "", ""},
    {"validdata", "valid_tokens", "", ""},
    {"validationfile", "valid_tokens", "", ""},
    {"tokenizername", "tokenizer", "", ""},
    {"tokenizermodel", "tokenizer", "", ""},
    {"tokenizerpath", "tokenizer", "", ""},
    {"outputdir", "save", "", ""},
    {"outdir", "save", "", ""},
    {"output", "save", "", ""},
    {"checkpointdir", "save", "", ""},
    {"checkpointfolder", "save", "", ""},
    {"overwriteoutputdir", "overwrite", "", ""},
    {"savesteps", "save_every", "", ""},
    {"saveinterval", "save_every", "", ""},
    {"ckptinterval", "save_every", "", ""},
    {"checkpointinterval", "save_every", "", ""},
    {"checkpointevery", "save_every", "", ""},
    {"savetotallimit", "keep", "", ""},
    {"keeplatestk", "keep", "", ""},
    {"loadbestmodelatend", "keep_best", "", ""},
    {"load", "resume", "", ""},
    {"continue", "resume", "", ""},
    {"resumefrom", "resume", "", ""},
    {"resumefromcheckpoint", "resume", "", ""},
    {"checkpoint", "resume", "", ""},
    {"evalsteps", "eval_every", "", ""},
    {"evalinterval", "eval_every", "", ""},
    {"evaliters", "eval_windows", "", ""},
    {"valinterval", "eval_every", "", ""},
    {"valmaxsteps", "eval_windows", "", ""},
    {"doeval", "eval_only", "", ""},
    {"sampleevery", "sample", "", "text is generated at the end alone"},
    {"loggingdir", "log_dir", "", ""},
    {"tensorboarddir", "log_dir", "", ""},
    {"logfile", "metrics", "", ""},
    {"outputlogdir", "metrics", "", ""},
    {"loggingsteps", "", "",
     "each step is printed, --quiet prints none; --metrics FILE has a line for each step"},
    {"loginterval", "", "",
     "each step is printed, --quiet prints none; --metrics FILE has a line for each step"},
    {"reportto", "log_dir", "", "--metrics FILE has JSON lines"},
    {"wandb", "log_dir", "", "--metrics FILE has JSON lines"},
    {"lorar", "lora_rank", "", ""},
    {"targetmodules", "lora_targets", "", ""},
    {"loratargetmodules", "lora_targets", "", ""},
    {"randomseed", "seed", "", ""},
    {"usecpu", "device", "cpu", ""},
    {"nocuda", "device", "cpu", ""},
    {"cuda", "device", "cuda", ""},
    {"gpu", "device", "cuda", ""},
    {"backend", "comm", "", ""},
    {"ddpbackend", "comm", "", ""},
    {"distributedbackend", "comm", "", ""},
    {"distributedtimeoutminutes", "comm_timeout", "", "in seconds"},
    {"ddptimeout", "comm_timeout", "", ""},
    {"numworkers", "threads", "", ""},
    {"dataloadernumworkers", "threads", "", ""},
    {"compile", "", "", "kernels are compiled ahead; leave it out"},
    {"torchcompile", "", "", "kernels are compiled ahead; leave it out"},
    {"localrank", "", "", kByLauncher},
    {"masteraddr", "", "", kByLauncher},
    {"masterport", "", "", kByLauncher},
    {"nnodes", "", "", kByLauncher},
    {"dropout", "", "", "the models have no dropout; leave it out"},
    {"hiddendropout", "", "", "the models have no dropout; leave it out"},
    {"attentiondropout", "", "", "the models have no dropout; leave it out"},
    {"vocabsize", "", "", "the vocabulary is that of --model, or 256 byte values; leave it out"}};

/// Letters and digits alone, small, of the part after the last dot.
std::string plain(std::string_view name) {
  name = name.substr(0, name.find('='));
  if (const size_t dot = name.rfind('.'); dot != name.npos) name.remove_prefix(dot + 1);
  std::string letters;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

/// Characters to insert, delete or replace between the two (Levenshtein, 1966).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::string suggestion(std::string_view unknown, const std::vector<std::string_view>& known) {
  const std::string name = plain(unknown);
  if (name.empty()) return "";
  const auto meant = [](std::string_view setting) {
    return fmt::format("; did you mean {}?", flag_of(setting));
  };
  const auto is_known = [&](std::string_view setting) { return std::ranges::count(known, setting) > 0; };
  for (const std::string_view setting : known)
    if (plain(setting) == name) return meant(setting);
  const auto other = std::ranges::find(kOtherNames, name, &OtherName::other);
  // Advice without a setting is about training: not for programs without --lr.
  const bool serves =
      other != std::end(kOtherNames) && is_known(other->setting.empty() ? "lr" : other->setting);
  if (serves && other->setting.empty()) return fmt::format("; {}", other->advice);
  if (serves)
    return fmt::format("; did you mean {}{}{}?{}{}", flag_of(other->setting), other->value.empty() ? "" : " ",
                       other->value, other->advice.empty() ? "" : " ", other->advice);
  // What is cut short, or has something behind it.
  constexpr size_t kShown = 3, kFewest = 3;
  std::vector<std::string> begin;
  for (const std::string_view setting : known)
    if (name.size() >= kFewest && plain(setting).starts_with(name)) begin.push_back(flag_of(setting));
  if (!begin.empty() && begin.size() <= kShown)
    return fmt::format("; did you mean {}?", fmt::join(begin, " or "));
  const auto far = [&](std::string_view setting) { return distance(name, plain(setting)); };
  const auto nearest = std::ranges::min_element(known, {}, far);
  // Two swapped letters count twice, in a name of four letters, too.
  if (nearest == known.end() || 3 * far(*nearest) > name.size() + 2) return "";
  return meant(*nearest);
}

std::vector<std::string_view> settings_of_other_names() {
  std::vector<std::string_view> settings;
  for (const OtherName& other : kOtherNames)
    if (!other.setting.empty()) settings.push_back(other.setting);
  return settings;
}

}  // namespace sherd
