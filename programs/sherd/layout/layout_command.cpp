#include "layout_command.h"

#include <limits>
#include <ostream>

#include <fmt/format.h>

#include <sherd/base/error.h>

#include "arguments.h"
#include "layout_json.h"
#include "layout_summary.h"

namespace sherd::tools {
namespace {

constexpr int64_t kMaxLayoutWorld = int64_t{1} << 20;
constexpr int64_t kMaxAlign = int64_t{1} << 30;

constexpr const char* kInputHelp = R"(FILE is a JSON list of the model's parameters in model order:
  [{"name": "l0.q", "shape": [4096, 4096], "dtype": "bf16", "optimizer": "muon", "unit": "l0"}, ...]
  dtype      fp32 (float32, f32), bf16 (bfloat16), fp16 (float16, f16)
  optimizer  muon (a matrix, or a 3-D stack of matrices) or adamw
  unit       what is gathered together; "root" is the outermost one
  tied       optional, true for a parameter that is used in two places (listed once)
  blocks     optional, rows of the matrices in a fused one, e.g. [4096, 1024, 1024]
  master     optional, of a bf16 parameter: f32, bf16 or split; each form of a unit has a buffer of its own

Under whole_param the matrices of all units are in one buffer for each dtype, in buckets that span units (those of "root"
in the last ones, for its backward ends last), as training has them under zero1 and zero2. Under zero3 it packs each unit
by itself, and its ties go to the rank with the least carried cost: --per-unit shows that. Everything lies where training
puts it.

)";

}  // namespace

CLI::App* LayoutCommand::add_to(CLI::App& app) {
  CLI::App* sub = app.add_subcommand(
      "layout", "print where a model's parameters would lie, and the plan of Muon or SOAP");
  sub->add_option("--params", params, "the model, see below")->required()->type_name("FILE");
  sub->add_option("--world", world, "ranks that shard the model")
      ->required()
      ->type_name("N")
      ->check(whole_number(1, kMaxLayoutWorld));
  sub->add_option("--policy", policy,
                  "ragged, even_rows, whole_param, whole_param:lpt, whole_param:size_match or "
                  "whole_param:ping_pong")
      ->type_name("POLICY")
      ->capture_default_str()
      ->check([](const std::string& text) -> std::string {
        try {
          (void)parse_layout(text);
          return "";
        } catch (const InvalidArgument& e) {
          return e.what();
        }
      });
  sub->add_option("--bucket-elements", bucket_elements,
                  "whole_param: least elements of a bucket; without it there is one bucket")
      ->type_name("K")
      ->check(whole_number(1, std::numeric_limits<int64_t>::max()));
  sub->add_flag("--per-unit", per_unit,
                "whole_param: pack the matrices of each unit by themselves, as zero3 does");
  sub->add_option("--align-elements", align, "slices are a multiple of this many elements")
      ->type_name("A")
      ->capture_default_str()
      ->check(whole_number(1, kMaxAlign));
  sub->add_option("--optimizer", optimizer,
                  "of the parameters whose optimizer in FILE is muon: muon or soap (KL-SOAP)")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(CLI::IsMember({"muon", "soap"}));
  sub->add_option("--whole-balance", whole_balance,
                  "soap: weight of state bytes against cost in the load that the plan balances, 0 to 1")
      ->type_name("W")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  sub->add_flag("--json", json, "print JSON instead of a summary");
  sub->footer(std::string(kInputHelp) + kLayoutJsonHelp);
  return sub;
}

void LayoutCommand::run(std::ostream& out, std::ostream& err) const {
  const LayoutChoice choice = parse_layout(policy);
  if (bucket_elements > 0 && per_unit)
    err << "sherd layout: --bucket-elements has no effect with --per-unit, which has one bucket per unit\n";
  else if (bucket_elements > 0 && choice.policy != LayoutPolicy::whole_param)
    err << fmt::format(
        "sherd layout: --bucket-elements has no effect under {}, which has one bucket per unit\n", policy);
  if (optimizer != "soap" && whole_balance != LayoutCommand().whole_balance)
    err << "sherd layout: --whole-balance has no effect without --optimizer soap: Muon's state is not on "
           "owners\n";
  const ArrangeOptions options{.world = static_cast<int>(world),
                               .layout = choice,
                               .bucket_elements = bucket_elements,
                               .align = align,
                               .per_unit = per_unit,
                               .soap = optimizer == "soap",
                               .state_weight = whole_balance};
  std::vector<ParamEntry> model = read_params(params);
  const Arrangement a = [&] {
    try {
      return Arrangement::make(std::move(model), options);
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(fmt::format("{}: {}", params, e.what()));
    }
  }();
  if (json) {
    write_json(out, a);
  } else {
    out << summary(a);
  }
  if (!out.flush()) throw IoError("the output could not be written; is the disk full, or the reader gone?");
}

}  // namespace sherd::tools
