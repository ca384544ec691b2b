// Writes the inputs that fuzzing starts from: real files and messages, and the same spoiled. Usage:
// make_seeds FOLDER
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <sherd/comm/bootstrap/detail/store_wire.h>

#include "support/hand_written.h"

namespace {

namespace fs = std::filesystem;
using namespace sherd;
using test::HandTensor;

class Seeds {
 public:
  explicit Seeds(fs::path folder) : folder_(std::move(folder)) { fs::create_directories(folder_); }

  void add(const std::string& bytes) {
    write(bytes);
    for (int i = 0; i < 8; ++i) {
      std::string spoiled = bytes;
      for (int flips = i / 2; flips >= 0; --flips)
        spoiled[random_() % spoiled.size()] = static_cast<char>(random_());
      write(spoiled);
      write(bytes.substr(0, random_() % bytes.size()));
    }
  }

 private:
  void write(const std::string& bytes) {
    std::ofstream(folder_ / std::to_string(count_++), std::ios::binary) << bytes;
  }

  fs::path folder_;
  int count_ = 0;
  std::mt19937 random_{1};
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

HandTensor cut_tensor(const char* name, DType dtype, const Shape& shape, size_t d, int64_t parts) {
  HandTensor tensor{name, Section::model, dtype, shape, {}};
  for (const Box& box : test::cut(shape, d, parts))
    tensor.pieces.emplace_back(box, std::to_string(tensor.pieces.size()) + ".safetensors");
  return tensor;
}

/// Data bytes and JSON of a file, as fuzz_safetensors takes them.
std::string unwrapped(const std::string& file, int64_t header_bytes) {
  const auto header = static_cast<size_t>(header_bytes);
  return std::string(1, static_cast<char>(file.size() - header)) + file.substr(8, header - 8);
}

/// Adds a rank's messages to a store, in pieces as fuzz_store takes them, and each message by itself.
void add_messages(Seeds& seeds) {
  using Op = StoreRequest::Op;
  namespace wire = store_wire;
  std::string all;
  const auto add = [&](const std::string& frame) {
    for (size_t at = 0; at < frame.size(); at += 256) all += '\x01' + frame.substr(at, 256);
    all += "\x7f";  // takes the answer
    seeds.add(frame.substr(wire::kLengthBytes));
    seeds.add(all);
  };
  add(wire::encode(wire::Opening{std::string(wire::kNonceBytes, 'c')}));
  add(wire::encode(wire::Hello{2, 3, "job", {}}));
  all.clear();  // after these, as what a rank that has been let in sends
  for (const Op op : {Op::set, Op::set_once, Op::get, Op::add, Op::erase, Op::all, Op::bye})
    for (const char* key : {"k", "k/0"})
      add(wire::encode(StoreRequest{op, op == Op::all ? 1 : -3, key, op == Op::set ? "12345678" : ""}));
  seeds.add(
      wire::encode(wire::Hello{1, 3, {}, std::string(wire::kProofBytes, 'p')}).substr(wire::kLengthBytes));
  seeds.add(
      wire::encode(wire::Welcome{wire::Welcome::Verdict::misfit, {}, "why"}).substr(wire::kLengthBytes));
  seeds.add(
      wire::encode(StoreReply{StoreReply::Status::ok, 7, {"one", "", "two"}}).substr(wire::kLengthBytes));
}

/// Token files: nanoGPT's, llm.c's, and a Megatron index behind the size of its .bin, as fuzz_tokens takes it.
void add_tokens(Seeds& seeds) {
  const auto put = [](std::string& to, auto number) {
    to.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const int32_t magic : {20240520, 20240801}) {
    std::string llmc;
    for (const int32_t word : {magic, 1, 4}) put(llmc, word);
    llmc.resize(1024);
    seeds.add(llmc + std::string(magic == 20240520 ? 8 : 16, '\x01'));
  }
  for (const uint8_t code : {4, 8}) {
    const int width = code == 4 ? 4 : 2;
    std::string index;
    put(index, static_cast<uint16_t>(5 * width));
    index.append("MMIDIDX\0\0", 9);
    put(index, uint64_t{1});
    put(index, code);
    put(index, uint64_t{2});
    put(index, uint64_t{3});
    for (const int32_t length : {2, 3}) put(index, length);
    for (const int64_t begin : {0, 2 * width}) put(index, begin);
    for (const int64_t bound : {0, 1, 2}) put(index, bound);
    seeds.add(index);
  }
}

constexpr const char* kTokenizers[] = {
    R"({"added_tokens":[{"id":3,"content":"</s>","special":true}],"decoder":{"type":"ByteLevel"},)"
    R"("model":{"type":"BPE","vocab":{"a":0,"\u0120b":1,"<x":2},"merges":[["a","b"]]}})",
    R"({"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},)"
    R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},)"
    R"("added_tokens":null,"model":{"vocab":{"<0x0A>":0,"\u2581a":1,"\u2581\u2581":2}}})",
    R"({"decoder":{"type":"Sequence","decoders":[{"type":"ByteLevel"}]},"model":{"vocab":{"a":65000}}})",
    R"({"added_tokens":[{"id":3,"content":"</s>","special":true,"lstrip":true,"single_word":true,"normalized":true}],)"
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend","prepend":"a"},)"
    R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
    R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","invert":false,"pattern":)"
    R"x({"Regex":"(?i:'s)|[^\\r\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)"}},)x"
    R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true},)"
    R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},"decoder":{"type":"ByteLevel"},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}},{"Sequence":{"id":"A"}}],)"
    R"("special_tokens":{"s":{"ids":[1]}}},)"
    R"("model":{"type":"BPE","byte_fallback":true,"unk_token":"b","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})"};

constexpr const char* kConfigs[] = {
    R"([{"name":"a","shape":[6,4],"dtype":"bf16","optimizer":"muon","unit":"u","blocks":[2,4]},)"
    R"({"name":"b","shape":[],"dtype":"f32","optimizer":"adamw","unit":"v","tied":true}])",
    R"({"name":"measured","memory_bytes":8e9,"communicator_bytes":0,"ranks_per_host":8,"peak_flops":1e15,)"
    R"("memory_bytes_per_s":3e12,"operation_s":3e-6,"products_16":[[1e8,1e13],[1e9,2e13]],"products_32":[[1,1]],)"
    R"("host":{"latency_s":1e-5,"bytes_per_s":[[1e5,1e10]]},"network":{"latency_s":0,"bytes_per_s":[[1,1]]},)"
    R"("factors_16":{"gemm":1.5},"factors_32":{},"compute_efficiency":1,"communication_efficiency":0.5})",
    R"({"model_type":"gpt2","vocab_size":9,"n_embd":8,"n_layer":2,"n_head":2,"n_inner":null,"resid_pdrop":0.1,)"
    R"("activation_function":"gelu_new","tie_word_embeddings":true})",
    R"({"model_type":"llama","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"num_key_value_heads":2,"rms_norm_eps":1e-5,"rope_scaling":{"rope_type":"llama3",)"
    R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64},)"
    R"("torch_dtype":"bfloat16","max_position_embeddings":128})",
    R"({"model_type":"qwen2","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"use_sliding_window":true,"sliding_window":7,"max_window_layers":1,)"
    R"("layer_types":["full_attention","sliding_attention"],"rope_parameters":{"rope_theta":1e4}})",
    R"({"model_type":"qwen3_moe","vocab_size":9,"hidden_size":8,"moe_intermediate_size":4,"num_hidden_layers":1,)"
    R"("num_attention_heads":2,"head_dim":4,"num_experts":4,"num_experts_per_tok":2,"norm_topk_prob":true,)"
    R"("router_aux_loss_coef":0.01,"output_router_logits":true,"mlp_only_layers":[]})",
    R"({"model_type":"deepseek_v3","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"moe_intermediate_size":4,"n_routed_experts":4,"num_experts_per_tok":2,"n_group":2,)"
    R"("topk_group":1,"first_k_dense_replace":1,"q_lora_rank":null,"kv_lora_rank":4,"qk_nope_head_dim":2,)"
    R"("qk_rope_head_dim":2,"v_head_dim":3,"num_nextn_predict_layers":1,"rope_scaling":{"type":"yarn","factor":4.0,)"
    R"("beta_fast":32,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":64}})",
    R"({"model_type":"olmo3","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"sliding_window":7,"layer_types":["sliding_attention","full_attention"],)"
    R"("rope_parameters":{"sliding_attention":{"rope_type":"default","rope_theta":1e4},"full_attention":)"
    R"({"rope_type":"yarn","factor":4.0,"attention_factor":1.2,"original_max_position_embeddings":64}}})",
    R"({"model_type":"mistral","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"num_key_value_heads":1,"sliding_window":7,"max_position_embeddings":64,)"
    R"("rope_scaling":{"type":"longrope","short_factor":[1,1.5],"long_factor":[2,4],"factor":4.0,)"
    R"("original_max_position_embeddings":16}})",
    R"({"model_type":"qwen2","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"num_key_value_heads":1,"use_sliding_window":true,"sliding_window":7,)"
    R"("max_window_layers":1,"rope_parameters":{"rope_type":"dynamic","factor":2.0,"rope_theta":1e6}})",
    R"({"model_type":"gemma3_text","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"head_dim":4,"query_pre_attn_scalar":16,"sliding_window":7,"sliding_window_pattern":2,)"
    R"("rope_theta":1e6,"rope_local_base_freq":1e4,"rope_scaling":{"rope_type":"linear","factor":8.0}})",
    R"({"model_type":"gpt_oss","vocab_size":9,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,)"
    R"("num_attention_heads":2,"num_key_value_heads":1,"num_local_experts":4,"num_experts_per_tok":2,"swiglu_limit":7.0,)"
    R"("layer_types":["sliding_attention","full_attention"],"rope_scaling":{"rope_type":"yarn","factor":4.0,)"
    R"("truncate":false,"original_max_position_embeddings":64}})"};

constexpr const char* kSettings[] = {
    R"({"text":"path","word":"two","steps":7,"seed":18446744073709551615,"lr":1e-3,"least":null,"quiet":true})",
    R"({"text":[["x"]],"word":"three","steps":-1,"seed":1.5,"lr":"fast","least":{"a":{}},"quiet":0})"};

constexpr const char* kPatterns[] = {"q_proj|v_proj\nmodel.layers.0.self_attn.q_proj\nmodel.norm",
                                     "!^model\\.layers\\.61\\.\nmodel.layers.6.mlp",
                                     "(^|[.])muon:\nfirst.muon:a",
                                     "(((\\w*)*)*)*Z\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                     "(?:([ab]{50}|b){9}|[^a-c]{0,3}?)+$\nabababababab",
                                     "^(?!a)(b)\\1\nab"};

}  // namespace

int main(int, char** argv) {
  const fs::path folder = argv[1], scratch = folder / "scratch";
  Seeds manifests(folder / "fuzz_manifest"), files(folder / "fuzz_safetensors"),
      messages(folder / "fuzz_store"), tokens(folder / "fuzz_tokens");
  add_messages(messages);
  add_tokens(tokens);
  const auto add_texts = [&](const char* target, auto& texts) {
    Seeds seeds(folder / target);
    for (const char* text : texts) seeds.add(text);
    seeds.add("{\"model\":" + std::string(4000, '['));
  };
  add_texts("fuzz_tokenizer", kTokenizers);
  add_texts("fuzz_config", kConfigs);
  add_texts("fuzz_settings", kSettings);
  add_texts("fuzz_pattern", kPatterns);
  const std::vector<std::vector<HandTensor>> checkpoints = {
      {cut_tensor("w", DType::f32, {2, 3}, 0, 1)},
      {cut_tensor("w", DType::f32, {4, 3}, 0, 2), cut_tensor("b", DType::bf16, {5}, 0, 2)},
      {cut_tensor("x", DType::u8, {2, 3, 2, 1, 2}, 1, 3), cut_tensor("e", DType::f64, {0, 3}, 0, 1)},
      {cut_tensor("d8", DType::u8, {1, 2, 1, 2, 1, 2, 1, 2}, 3, 2)},
      {},
  };
  for (const auto& tensors : checkpoints) {
    fs::remove_all(scratch);
    const Manifest manifest = test::write_by_hand(scratch, tensors);
    const std::string bytes = read(scratch / "manifest.binpb");
    manifests.add(bytes);
    if (bytes.size() > kManifestPrefix) manifests.add(bytes.substr(kManifestPrefix));
    std::string both;
    for (const CheckpointFile& record : manifest.files) {
      const std::string file = read(scratch / record.path);
      files.add(file);
      files.add(unwrapped(file, record.header_bytes));
      both += (both.empty() ? "" : "\xff") + unwrapped(file, record.header_bytes);
    }
    if (!both.empty()) files.add(both);
  }
  // Texts longer than the input, in messages that are longer still.
  manifests.add("\x0a\xff\xff\xff\x7f\x22\xff\xff\xff\x3f\x0a\xff\xff\xff\x1f");
  const std::string header = R"({"NAME":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  files.add("\x02" + header + "\xff\x02" + std::string(header).replace(2, 4, "v") +
            "\xff"
            R"({"weight_map":{"NAME":"a.safetensors","v":"b.safetensors"}})");
  fs::remove_all(scratch);
}
