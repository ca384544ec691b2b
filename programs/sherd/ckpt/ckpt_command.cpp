#include "ckpt_command.h"

#include <charconv>
#include <cmath>
#include <limits>

#include <sherd/base/error.h>
#include <sherd/checkpoint/detail/weights_writer.h>

#include "arguments.h"

namespace sherd::tools {
namespace {

constexpr int kDifferent = 1;
constexpr int64_t kMaxWorld = 65536;

constexpr const char* kPathHelp =
    R"(PATH is a checkpoint (a folder with manifest.binpb), a save folder (its newest checkpoint is meant), a folder
of safetensors files (Hugging Face, PyTorch DCP, `model` or `optim` of a checkpoint) or one such file.
)";

// For CLI11, which wants a message, from a parser that throws.
template <class Parse>
auto checked(Parse parse) {
  return [parse](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const InvalidArgument& e) {
      return e.what();
    }
  };
}

DType parse_dtype(const std::string& text) {
  if (text == "fp32") return DType::f32;
  if (text == "bf16") return DType::bf16;
  if (text == "fp16") return DType::f16;
  throw InvalidArgument("'" + text + "' must be fp32, bf16 or fp16");
}

double parse_tolerance(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= 0)
    return value;
  throw InvalidArgument("'" + text + "' must be a number of 0 or more");
}

CLI::Option* add_path(CLI::App& sub, const std::string& name, std::filesystem::path& path,
                      const std::string& help) {
  return sub
      .add_option_function<std::string>(
          name, [&path](const std::string& text) { path = text; }, help)
      ->required()
      ->type_name("");
}

}  // namespace

CLI::App* CkptCommand::add_to(CLI::App& app) {
  app_ = app.add_subcommand("ckpt", "inspect, verify, diff and convert checkpoints");
  app_->require_subcommand(0, 1);
  add_inspect(*app_);
  add_verify(*app_);
  add_diff(*app_);
  add_export(*app_);
  add_import(*app_);
  add_reshard(*app_);
  add_prune(*app_);
  return app_;
}

void CkptCommand::add_inspect(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("inspect", "what is in it: step, tensors by module, pieces by rank");
  add_path(*sub, "PATH", inspect_.path, "what to inspect, see below");
  sub->add_flag("--tensors", inspect_.tensors, "list every tensor, not only modules, and long texts whole");
  sub->add_flag("--json", inspect_.json, "print everything as JSON instead");
  sub->footer(std::string(kPathHelp) + "\n" + kInspectJsonHelp);
}

void CkptCommand::add_verify(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("verify", "read every byte; name what is damaged or non-finite");
  add_path(*sub, "PATH", verify_.path, "what to verify, see below");
  sub->add_flag("--all", verify_.all, "every checkpoint of a save folder");
  sub->add_flag("--quiet", quiet_, "no progress");
  sub->footer(std::string(kPathHelp) +
              "A folder without a manifest has no checksums: then only the structure is checked.\n"
              "Exit code: 0 sound, 1 damaged (or not readable) or with weights that are not finite, 2 wrong "
              "arguments.\n");
}

void CkptCommand::add_diff(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("diff", "compare two, tensor by tensor, whatever their sharding");
  add_path(*sub, "A", diff_.a, "one, as PATH below");
  add_path(*sub, "B", diff_.b, "the other");
  auto* model = sub->add_flag_callback(
      "--model-only", [this] { diff_.optim = false; }, "leave optimizer state out");
  sub->add_flag_callback(
         "--optim-only", [this] { diff_.model = false; }, "leave the model out")
      ->excludes(model);
  sub->add_option_function<std::string>(
         "--tolerance", [this](const std::string& text) { diff_.tolerance = parse_tolerance(text); },
         "relative: |a - b| / max(|a|, |b|) up to this is the same, and dtypes may differ")
      ->type_name("X")
      ->check(checked(parse_tolerance));
  sub->add_flag("--json", diff_.json, "print JSON instead");
  sub->add_flag("--quiet", quiet_, "no progress");
  sub->footer(
      std::string(kPathHelp) +
      "Elements are compared by their bits: equal NaNs are the same, -0 and 0 are not. Steps and other\n"
      "training state are not compared.\n"
      "Exit code: 0 identical (or within --tolerance), 1 different (or not readable), 2 wrong "
      "arguments.\n\n" +
      kDiffJsonHelp);
}

void CkptCommand::add_export(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("export", "write whole tensors as safetensors for other programs");
  add_path(*sub, "PATH", export_.source, "what to export, see below");
  add_path(*sub, "OUT", export_.out, "a file, or a new folder as Hugging Face's, OUT/");
  sub->add_option_function<std::string>(
         "--dtype", [this](const std::string& text) { export_.dtype = parse_dtype(text); },
         "fp32, bf16 or fp16 for the model's floats; without it as stored")
      ->type_name("DTYPE")
      ->check(checked(parse_dtype));
  auto* shard = sub->add_option_function<std::string>(
                       "--max-shard-size",
                       [this](const std::string& text) { export_.max_shard_bytes = parse_bytes(text); },
                       "of a folder's files: bytes, or 500MB, 5GB, 512MiB (default 5GB)")
                    ->type_name("BYTES")
                    ->check(checked(parse_bytes));
  sub->add_flag("--ema", export_.averages,
                "averages of weights (train_gpt --ema) in the place of the weights");
  sub->add_flag("--optim", export_.optim, "optimizer state, too (optim.state.NAME.KEY, as stored)");
  sub->add_flag("--quiet", quiet_, "no progress");
  sub->footer(kPathHelp);
  sub->final_callback([this, shard] {
    if (shard->count() > 0 && is_weights_file(export_.out))
      throw CLI::ValidationError("--max-shard-size", "splits a folder's files, and OUT is one file");
  });
}

void CkptCommand::add_import(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("import", "make a checkpoint from weights of another program");
  add_path(*sub, "PATH", import_.source, "safetensors: a file, or a folder (Hugging Face, PyTorch DCP)");
  add_path(*sub, "DIR", import_.save_folder, "the save folder, created when missing");
  sub->add_option("--step", import_.step, "the step that it is named by")
      ->type_name("N")
      ->capture_default_str()
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()));
  sub->add_flag("--quiet", quiet_, "no progress");
}

void CkptCommand::add_reshard(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("reshard", "write a checkpoint as another number of ranks would");
  add_path(*sub, "SRC", reshard_.source, "a checkpoint, or a save folder (its newest)");
  add_path(*sub, "DIR", reshard_.save_folder, "the save folder to write into, created when missing");
  sub->add_option("--world", reshard_.world, "ranks; each gets a nearly even range of rows of every tensor")
      ->required()
      ->type_name("N")
      ->check(whole_number(1, kMaxWorld));
  sub->add_flag("--quiet", quiet_, "no progress");
}

void CkptCommand::add_prune(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("prune", "remove all but the newest checkpoints of a save folder");
  add_path(*sub, "DIR", prune_.save_folder, "the save folder; no run may be saving there");
  sub->add_option("--keep", prune_.keep, "how many stay")
      ->required()
      ->type_name("N")
      ->check(whole_number(1, std::numeric_limits<int64_t>::max()));
  sub->footer(
      "Stays: the newest N, and the newest N whose weights are finite, which are the same ones as long as\n"
      "training goes well: a checkpoint of a run that diverged never makes a good one go. Damaged ones do\n"
      "not count, and stay.\n");
}

int CkptCommand::run(std::ostream& out, std::ostream& err) const {
  const Console console{out, err, Progress::mode_of_stderr(quiet_)};
  const auto given = [&](const char* name) { return app_->got_subcommand(name); };
  if (given("inspect")) inspect(inspect_, console);
  if (given("verify")) verify(verify_, console);
  if (given("diff") && !diff(diff_, console)) return kDifferent;
  if (given("export")) export_tensors(export_, console);
  if (given("import")) import_weights(import_, console);
  if (given("reshard")) reshard(reshard_, console);
  if (given("prune")) prune(prune_, console);
  return 0;
}

}  // namespace sherd::tools
