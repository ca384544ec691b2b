// hf_folder IN OUT RANKS like|new: reads a Hugging Face folder into parameters that are divided as a model of
// sherd divides them (q, k and v of GPT-2 apart, experts in stacks), spread over ranks by zero3, and writes
// them to the folder OUT: `like` IN, or `new` with a config.json made from what was understood of IN's.
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <sherd/checkpoint/weights.h>
#include <sherd/comm/launcher.h>

#include <sherd/nn/hf/model_config.h>

namespace {

using namespace sherd;

/// Parameters of a folder, and their places in it.
struct Division {
  std::map<std::string, Shape> parameters;
  StoredForms forms{.forms = {{}}, .copies = {{"lm_head.weight", "model.embed_tokens.weight"}}};

  explicit Division(const StoredFolder& folder, bool tied) {
    if (!tied) forms.copies.clear();
    for (const SafetensorsReader& file : folder.weights())
      for (const SafetensorsEntry& e : file.entries())
        if (!forms.copies.contains(e.name)) add(e.name, e.shape);
  }

 private:
  void add(const std::string& name, const Shape& shape) {
    static const std::regex one_expert(R"((.*\.experts)\.(\d+)\.(.*))"),
        fused(R"(.*\.experts\.gate_up_proj)"), columns(R"((.*)c_attn\.(weight|bias))");
    std::smatch match;
    if (std::regex_match(name, match, one_expert)) {
      const std::string stack = match.str(1) + "." + match.str(3);
      const int64_t e = std::stoll(match.str(2));
      Shape& whole = parameters.try_emplace(stack, Shape{0, shape[0], shape[1]}).first->second;
      whole[0] = std::max(whole[0], e + 1);
      place(stack, name, shape, {{e, 0, 0}, {1, shape[0], shape[1]}}, {{0, 0}, shape});
    } else if (std::regex_match(name, fused)) {
      const Box half{{0, 0, 0}, {shape[0], shape[1] / 2, shape[2]}};
      for (const int64_t part : {0, 1}) {
        const std::string own = name + (part == 0 ? ".gate" : ".up");
        parameters[own] = half.size;
        place(own, name, shape, half, {{0, part * half.size[1], 0}, half.size});
      }
    } else if (std::regex_match(name, match, columns)) {
      Shape own = shape;
      own.back() /= 3;
      for (const int64_t part : {0, 1, 2}) {
        const std::string parameter = match.str(1) + "qkv"[part] + "." + match.str(2);
        Box in_tensor{Shape(own.size(), 0), own};
        in_tensor.offset.back() = part * own.back();
        parameters[parameter] = own;
        place(parameter, name, shape, {Shape(own.size(), 0), own}, in_tensor);
      }
    } else {
      parameters[name] = shape;
    }
  }
  void place(const std::string& parameter, const std::string& tensor, const Shape& shape, Box in_parameter,
             Box in_tensor) {
    forms.forms[0][parameter].push_back({tensor, shape, std::move(in_parameter), std::move(in_tensor)});
  }
};

class Parameters : public ModuleBase {
 public:
  explicit Parameters(const Division& division) {
    for (const auto& [name, shape] : division.parameters) param(name, shape, normal(1));
  }
};

void copy(const std::string& in, const std::string& out, int ranks, bool like) {
  const sherd::hf::ModelConfig config = sherd::hf::read_model_config(in);
  const auto folder = StoredFolder::open(in);
  const Division division(*folder, config.description.tied);
  launch(ranks, [&](RankContext& r) {
    Parameters model(division);
    fully_shard(model, DeviceMesh(r.world, {{"shard", ranks}}), {.strategy = Strategy::optim_grads_params});
    import_weights(model, in, division.forms);
    ExportOptions options{.dtype = config.dtype.value_or(DType::f32), .max_shard_bytes = 40'000};
    if (like)
      options.like = folder;
    else
      options.files["config.json"] = sherd::hf::model_config_text(config.description, options.dtype);
    export_weights(model, out, division.forms, options);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "hf_folder IN OUT RANKS like|new\n";
    return 2;
  }
  try {
    copy(argv[1], argv[2], std::stoi(argv[3]), std::string(argv[4]) == "like");
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
