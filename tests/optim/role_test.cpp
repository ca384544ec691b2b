// Names and shapes of models that people train, and which optimizer they must get.

#include <fmt/format.h>

#include <map>

#include <sherd/optim/detail/name_words.h>
#include <sherd/optim/routing.h>

#include "support/message_of.h"

namespace sherd::test {
namespace {

// Parameters by their full names; nothing is computed.
struct NamedParameters : ModuleBase {
  Parameter add(const std::string& name, Shape shape) { return param(name, std::move(shape), constant(0)); }
};

struct Expected {
  std::string name;
  Shape shape;
  Role role;
  bool warned = false;
};

struct Model {
  std::string name;
  std::vector<Expected> params;
  friend void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }
};

constexpr auto kHidden = Role::hidden, kEmbedding = Role::embedding, kHead = Role::head, kNorm = Role::norm,
               kBias = Role::bias, kRouter = Role::router, kConv = Role::conv, kVector = Role::vector,
               kStateSpace = Role::state_space;

std::vector<Model> models() {
  return {
      {"GPT2",
       {{"transformer.wte.weight", {50257, 768}, kEmbedding},
        {"transformer.wpe.weight", {1024, 768}, kEmbedding},
        {"transformer.h.0.ln_1.weight", {768}, kVector},
        {"transformer.h.0.attn.c_attn.weight", {768, 2304}, kHidden},  // [in, out]
        {"transformer.h.0.attn.c_attn.bias", {2304}, kVector},
        {"transformer.h.0.attn.c_proj.weight", {768, 768}, kHidden},
        {"transformer.h.0.mlp.c_fc.weight", {768, 3072}, kHidden},
        {"transformer.h.0.mlp.c_proj.weight", {3072, 768}, kHidden},
        {"transformer.ln_f.weight", {768}, kVector},
        {"lm_head.weight", {50257, 768}, kHead}}},
      {"NanoGpt",
       {{"token_emb.weight", {65, 384}, kEmbedding},
        {"pos_emb", {1, 256, 384}, kEmbedding},
        {"blocks.0.sa.heads.0.key.weight", {64, 384}, kHidden},
        {"blocks.0.attn.multi_head.weight", {384, 384}, kHidden},
        {"blocks.0.mlp.0.weight", {1536, 384}, kHidden},
        {"blocks.0.mlp.2.weight", {384, 1536}, kHidden},
        {"unembed.weight", {384, 65}, kHead}}},
      {"Llama",
       {{"model.embed_tokens.weight", {32000, 4096}, kEmbedding},
        {"model.layers.0.self_attn.q_proj.weight", {4096, 4096}, kHidden},
        {"model.layers.0.self_attn.k_proj.weight", {1024, 4096}, kHidden},
        {"model.layers.0.self_attn.o_proj.weight", {4096, 4096}, kHidden},
        {"model.layers.0.mlp.gate_proj.weight", {14336, 4096}, kHidden},
        {"model.layers.0.mlp.up_proj.weight", {14336, 4096}, kHidden},
        {"model.layers.0.mlp.down_proj.weight", {4096, 14336}, kHidden},
        {"model.layers.0.input_layernorm.weight", {4096}, kVector},
        {"model.norm.weight", {4096}, kVector},
        {"lm_head.weight", {32000, 4096}, kHead}}},
      {"LlamaAsReleased",
       {{"tok_embeddings.weight", {32000, 4096}, kEmbedding},
        {"layers.0.attention.wq.weight", {4096, 4096}, kHidden},
        {"layers.0.attention.wo.weight", {4096, 4096}, kHidden},
        {"layers.0.feed_forward.w1.weight", {11008, 4096}, kHidden},
        {"layers.0.feed_forward.w2.weight", {4096, 11008}, kHidden},
        {"layers.0.attention_norm.weight", {4096}, kVector},
        {"norm.weight", {4096}, kVector},
        {"output.weight", {32000, 4096}, kHead}}},
      {"Qwen3",
       {{"model.embed_tokens.weight", {151936, 2048}, kEmbedding},
        {"model.layers.3.self_attn.q_proj.weight", {2048, 2048}, kHidden},
        {"model.layers.3.self_attn.q_proj.bias", {2048}, kVector},
        {"model.layers.3.self_attn.q_norm.weight", {128}, kVector},
        {"model.layers.3.mlp.gate_proj.weight", {6144, 2048}, kHidden}}},
      {"QwenMoe",
       {{"model.embed_tokens.weight", {151936, 2048}, kEmbedding},
        {"model.layers.0.self_attn.q_proj.weight", {2048, 2048}, kHidden},
        {"model.layers.0.mlp.gate.weight", {60, 2048}, kRouter},
        {"model.layers.0.mlp.experts.0.gate_proj.weight", {1408, 2048}, kHidden},
        {"model.layers.0.mlp.experts.0.down_proj.weight", {2048, 1408}, kHidden},
        {"model.layers.0.mlp.shared_expert.up_proj.weight", {5632, 2048}, kHidden},
        {"model.layers.0.mlp.shared_expert_gate.weight", {1, 2048}, kRouter},
        {"model.layers.1.mlp.gate.weight", {60, 2048}, kRouter},
        {"model.layers.1.mlp.experts.gate_up_proj", {60, 2816, 2048}, kHidden},
        {"model.layers.1.mlp.experts.gate_up_proj_bias", {60, 2816}, kBias},
        {"model.layers.1.mlp.experts.down_proj", {60, 2048, 1408}, kHidden},
        {"lm_head.weight", {151936, 2048}, kHead}}},
      {"Mixtral",
       {{"model.layers.0.block_sparse_moe.gate.weight", {8, 4096}, kRouter},
        {"model.layers.0.block_sparse_moe.experts.0.w1.weight", {14336, 4096}, kHidden},
        {"model.layers.0.block_sparse_moe.experts.0.w2.weight", {4096, 14336}, kHidden},
        {"model.layers.1.ffn.w1", {8, 14336, 4096}, kHidden},
        {"model.layers.1.ffn.router.layer.weight", {8, 4096}, kRouter},
        {"model.layers.2.moe.gate.wg.weight", {8, 4096}, kRouter}}},
      {"Bert",
       {{"bert.embeddings.word_embeddings.weight", {30522, 768}, kEmbedding},
        {"bert.embeddings.position_embeddings.weight", {512, 768}, kEmbedding},
        {"bert.embeddings.token_type_embeddings.weight", {2, 768}, kEmbedding},
        {"bert.embeddings.LayerNorm.weight", {768}, kVector},
        {"bert.encoder.layer.0.attention.self.query.weight", {768, 768}, kHidden},
        {"bert.encoder.layer.0.attention.output.dense.weight", {768, 768}, kHidden},
        {"bert.encoder.layer.0.attention.output.LayerNorm.weight", {768}, kVector},
        {"bert.encoder.layer.0.intermediate.dense.weight", {3072, 768}, kHidden},
        {"bert.encoder.layer.0.output.dense.weight", {768, 3072}, kHidden},
        {"bert.pooler.dense.weight", {768, 768}, kHidden},
        {"cls.predictions.bias", {30522}, kVector},
        {"cls.predictions.transform.dense.weight", {768, 768}, kHead, true},
        {"cls.predictions.decoder.weight", {30522, 768}, kHead},
        {"cls.seq_relationship.weight", {2, 768}, kHead}}},
      {"VisionTransformer",
       {{"vit.embeddings.cls_token", {1, 1, 768}, kEmbedding},
        {"vit.embeddings.position_embeddings", {1, 197, 768}, kEmbedding},
        {"vit.embeddings.patch_embeddings.projection.weight", {768, 3, 16, 16}, kConv},
        {"vit.encoder.layer.0.attention.attention.query.weight", {768, 768}, kHidden},
        {"vit.encoder.layer.0.attention.output.dense.weight", {768, 768}, kHidden},
        {"vit.encoder.layer.0.output.dense.weight", {768, 3072}, kHidden},
        {"classifier.weight", {1000, 768}, kHead}}},
      {"VisionTransformerOfTimm",
       {{"cls_token", {1, 1, 768}, kEmbedding},
        {"pos_embed", {197, 768}, kEmbedding},
        {"patch_embed.proj.weight", {768, 768}, kEmbedding},  // of flattened patches
        {"blocks.0.attn.qkv.weight", {2304, 768}, kHidden},
        {"blocks.0.attn.rel_pos_h", {27, 64}, kEmbedding},
        {"blocks.0.mlp.fc1.weight", {3072, 768}, kHidden},
        {"blocks.0.mlp_tokens.fc1.weight", {384, 196}, kHidden},
        {"head.weight", {1000, 768}, kHead}}},
      {"VisionTransformerOfTorchvision",
       {{"class_token", {1, 1, 768}, kEmbedding},
        {"encoder.pos_embedding", {1, 197, 768}, kEmbedding},
        {"encoder.layers.encoder_layer_0.self_attention.in_proj_weight", {2304, 768}, kHidden},
        {"encoder.layers.encoder_layer_0.self_attention.in_proj_bias", {2304}, kVector},
        {"encoder.layers.encoder_layer_0.self_attention.out_proj.weight", {768, 768}, kHidden},
        {"encoder.layers.encoder_layer_0.mlp.0.weight", {3072, 768}, kHidden},
        {"heads.head.weight", {1000, 768}, kHead}}},
      {"T5",
       {{"shared.weight", {32128, 512}, kEmbedding},
        {"encoder.block.0.layer.0.SelfAttention.q.weight", {512, 512}, kHidden},
        {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {32, 8}, kEmbedding},
        {"encoder.block.0.layer.0.layer_norm.weight", {512}, kVector},
        {"encoder.block.0.layer.1.DenseReluDense.wi_0.weight", {1024, 512}, kHidden},
        {"encoder.block.1.layer.1.mlp.router.classifier.weight", {8, 512}, kRouter},
        {"encoder.block.1.layer.1.mlp.experts.expert_0.wi.weight", {2048, 512}, kHidden},
        {"decoder.block.0.layer.1.EncDecAttention.o.weight", {512, 512}, kHidden},
        {"decoder.block.0.layer.2.DenseReluDense.wo.weight", {512, 1024}, kHidden},
        {"lm_head.weight", {32128, 512}, kHead}}},
      {"Megatron",
       {{"embedding.word_embeddings.weight", {50304, 1024}, kEmbedding},
        {"decoder.layers.0.self_attention.linear_qkv.weight", {3072, 1024}, kHidden},
        {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", {1024}, kVector},
        {"decoder.layers.0.mlp.linear_fc1.weight", {4096, 1024}, kHidden},
        {"decoder.layers.0.mlp.shared_experts.linear_fc1.weight", {4096, 1024}, kHidden},
        {"output_layer.weight", {50304, 1024}, kHead}}},
      {"Mamba",
       {{"backbone.embeddings.weight", {50280, 768}, kEmbedding},
        {"backbone.layers.0.mixer.A_log", {1536, 16}, kStateSpace},
        {"backbone.layers.0.mixer.D", {1536}, kVector},
        {"backbone.layers.0.mixer.in_proj.weight", {3072, 768}, kHidden},
        {"backbone.layers.0.mixer.conv1d.weight", {1536, 1, 4}, kConv},
        {"backbone.layers.1.mixer.conv1d.weight", {1536, 4}, kConv},
        {"backbone.layers.0.mixer.x_proj.weight", {80, 1536}, kHidden},
        {"backbone.layers.0.mixer.dt_proj.weight", {1536, 48}, kHidden},
        {"backbone.layers.0.mixer.out_proj.weight", {768, 1536}, kHidden}}},
      {"Convolutions",
       {{"conv.weight", {16, 8, 3}, kConv},
        {"encoder.layers.0.conv.pointwise.weight", {512, 256, 1}, kConv},
        {"layer4.1.conv1.weight", {512, 512, 3, 3}, kConv},
        {"stages.0.layers.0.pwconv1.weight", {384, 96}, kConv, true},
        {"stages.0.layers.0.mixer.weight", {16, 8, 3}, kConv, true},  // or a stack
        {"fc.weight", {1000, 512}, kHead, true}}},
      {"Doubtful",
       {{"table.embed.weight", {1000, 64}, kEmbedding},
        {"blocks.0.gate.weight", {4, 64}, kRouter, true},
        {"blocks.0.norm1.linear.weight", {128, 64}, kNorm, true},
        {"blocks.0.norm1.scales", {2, 64}, kNorm},
        {"blocks.0.lm_head.weight", {1000, 64}, kHead, true},
        {"blocks.1.output.weight", {64, 64}, kHidden},
        {"encoder.weight", {64, 32}, kEmbedding, true},
        {"output.weight", {64, 32}, kHead, true},  // not the last matrix
        {"decoder.weight", {1000, 64}, kHead},
        {"final.weight", {64, 1000}, kHead, true},  // outside of all layers
        {"gain.weight", {1, 64}, kVector},
        {"up.weight", {64, 32}, kHidden}}},
      {"GatedLayer",
       {{"layers.0.mlp.gate.weight", {256, 64}, kHidden},  // as large as up
        {"layers.0.mlp.up.weight", {256, 64}, kHidden},
        {"layers.0.mlp.down.weight", {64, 256}, kHidden}}},
      {"ThisOnesSamples",
       {{"tok.weight", {256, 64}, kEmbedding},
        {"pos.weight", {128, 64}, kEmbedding},
        {"blocks.0.norm1.weight", {64}, kVector},
        {"blocks.0.qkv.weight", {192, 64}, kHidden},
        {"blocks.0.proj.weight", {64, 64}, kHidden},
        {"blocks.0.fc.weight", {256, 64}, kHidden},
        {"blocks.0.out.weight", {64, 256}, kHidden},
        {"blocks.1.moe.router.weight", {4, 64}, kRouter},
        {"blocks.1.moe.experts.fc.weight", {4, 256, 64}, kHidden},
        {"blocks.1.moe.experts.fc.bias", {4, 256}, kBias},
        {"blocks.1.moe.experts.out.weight", {4, 64, 256}, kHidden},
        {"norm.weight", {64}, kVector},
        {"head.weight", {256, 64}, kHead}}},
  };
}

class OfKnownModels : public ::testing::TestWithParam<Model> {};

TEST_P(OfKnownModels, EveryParameterGetsItsOptimizerAndItsRole) {
  NamedParameters model;
  for (auto& p : GetParam().params) model.add(p.name, p.shape);
  const Routing routing = route(model);
  std::string warnings;
  for (auto& w : routing.warnings) warnings += w + "\n";
  for (size_t i = 0; i < routing.routes.size(); ++i) {
    const Route& r = routing.routes[i];
    const Expected& want = GetParam().params[i];
    EXPECT_EQ(name_of(r.role), std::string(name_of(want.role))) << want.name << ": " << r.reason;
    EXPECT_EQ(r.algorithm, want.role == kHidden ? Algorithm::muon : Algorithm::adamw) << want.name;
    EXPECT_EQ(warnings.find("'" + want.name + "'") != std::string::npos, want.warned)
        << want.name << ": " << r.reason << "\n"
        << warnings;
    EXPECT_FALSE(r.reason.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Role, OfKnownModels, ::testing::ValuesIn(models()),
                         [](const auto& at) { return at.param.name; });

std::map<std::string, std::string> reasons(const Routing& routing) {
  std::map<std::string, std::string> all;
  for (auto& r : routing.routes) all[r.name] = r.reason;
  return all;
}

TEST(Role, TheTablePrintsTheEvidence) {
  NamedParameters model;
  model.add("tok.weight", {256, 64});
  model.add("token_emb.weight", {65, 384});
  model.add("blocks.0.mlp.gate.weight", {4, 64});
  model.add("blocks.0.mlp.experts.w1", {4, 64, 64});
  model.add("blocks.0.gain", {64, 1});
  model.add("output.weight", {256, 64});
  const Routing routing = route(model);
  const auto why = reasons(routing);
  EXPECT_EQ(why.at("tok.weight"), "embedding: word 'tok'");
  EXPECT_EQ(why.at("token_emb.weight"), "embedding: word 'emb' in 'token_emb'");
  EXPECT_EQ(why.at("blocks.0.mlp.gate.weight"), "router: 'gate' beside 'experts'");
  EXPECT_EQ(why.at("blocks.0.mlp.experts.w1"), "stack of hidden matrices: word 'experts'");
  EXPECT_EQ(why.at("blocks.0.gain"), "one row or column");
  EXPECT_EQ(why.at("output.weight"), "head: 'output', the last matrix");
  EXPECT_THAT(routing.format(), HasSubstr("adamw   embedding: word 'emb' in 'token_emb'"));
  EXPECT_THAT(routing.warnings, IsEmpty());
}

TEST(Role, OneWarningSpeaksForAllLayersAndItsRuleSettlesIt) {
  const auto build = [](NamedParameters& model) {
    for (int i = 8; i < 11; ++i) model.add(fmt::format("blocks.{}.norm1.linear.weight", i), {8, 4});
    model.add("blocks.8.kernels", {2, 3, 4});
  };
  NamedParameters model;
  build(model);
  const Routing routing = route(model);
  ASSERT_EQ(routing.warnings.size(), 2u);
  EXPECT_EQ(
      routing.warnings[0],
      "'blocks.8.norm1.linear.weight' and 2 more like it: ambiguous: a matrix inside the norm 'norm1'; if "
      "they are hidden matrices, add to RoutingOptions::rules "
      "'^blocks.[0-9]+.norm[0-9]+.linear.weight$=muon'");
  EXPECT_THAT(routing.warnings[1],
              AllOf(HasSubstr("'blocks.8.kernels': ambiguous"), HasSubstr("it is a hidden matrix")));
  EXPECT_THAT(routing.format(), HasSubstr("\nwarning: 'blocks.8.norm1.linear.weight' and 2 more"));

  NamedParameters again;
  build(again);
  const Routing settled =
      route(again, {.rules = {{"^blocks.[0-9]+.norm[0-9]+.linear.weight$", Algorithm::muon},
                              {"kernels", Algorithm::adamw}}});
  EXPECT_THAT(settled.warnings, IsEmpty());
  for (auto& r : settled.routes) EXPECT_EQ(r.algorithm == Algorithm::muon, r.name != "blocks.8.kernels");
}

TEST(Role, SuggestedRuleMatchesNoOtherParameter) {
  const auto build = [](NamedParameters& model) {
    model.add("blocks.0.norm1.linear.weight", {8, 4});
    model.add("blocks.0.norm1.linear_weight", {8, 4});
    model.add("blocks.1.norm1.linear.weight", {8, 4});
  };
  NamedParameters model;
  build(model);
  const std::string pattern = R"(^blocks\.[0-9]+\.norm[0-9]+\.linear\.weight$)";
  const Routing routing = route(model);
  ASSERT_FALSE(routing.warnings.empty());
  EXPECT_THAT(routing.warnings[0], HasSubstr("'" + pattern + "=muon'"));

  NamedParameters again;
  build(again);
  for (auto& r : route(again, {.rules = {{pattern, Algorithm::muon}}}).routes)
    EXPECT_EQ(r.algorithm == Algorithm::muon, r.name != "blocks.0.norm1.linear_weight") << r.name;
}

TEST(RoutingTable, ParametersThatDifferInANumberShareALine) {
  NamedParameters model;
  model.add("tok.weight", {256, 64});
  for (int i = 0; i < 12; ++i) {
    model.add("blocks." + std::to_string(i) + ".up.weight", {128, 64});
    model.add("blocks." + std::to_string(i) + ".norm.weight", {64});
  }
  model.add("blocks.12.up.weight", {256, 64});
  const std::string table = route(model).format();
  EXPECT_THAT(table, HasSubstr("\nblocks.[0-11].up.weight "));
  EXPECT_THAT(table, HasSubstr("\nblocks.[0-11].norm.weight "));
  EXPECT_THAT(table, HasSubstr("\nblocks.12.up.weight "));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
}

TEST(RoutingTable, HasTenLinesAtMost) {
  NamedParameters model;
  for (char c = 'a'; c < 'z'; ++c) model.add(std::string(1, c) + ".weight", {64, 64});
  const std::string table = route(model).format();
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 11);
  EXPECT_THAT(table, HasSubstr("\nand 16 more kinds of parameters\n"));
}

TEST(Role, NothingIsAmbiguousWhereAllGoesToAdamW) {
  NamedParameters model;
  model.add("blocks.0.kernels", {2, 3, 4});
  EXPECT_THAT(route(model, {.optimizer = Algorithm::adamw}).warnings, IsEmpty());
}

TEST(Role, RowBlocksDeclareMatrices) {
  NamedParameters model;
  model.add("blocks.0.kernels", {2, 4, 3}).set_row_blocks({2, 2});
  model.add("fused", {4, 1}).set_row_blocks({2, 2});
  for (auto& r : route(model).routes) EXPECT_EQ(r.algorithm, Algorithm::muon) << r.name;
}

TEST(Role, NotHiddenKeepsNamesFromMuon) {
  NamedParameters model;
  model.add("blocks.0.up.weight", {4, 3});
  model.add("blocks.0.down.weight", {3, 4});
  model.add("tok.weight", {4, 3});
  const Routing routing = route(model, {.rules = {}, .not_hidden = R"((^|\.)up(\.|$))"});
  EXPECT_EQ(routing.routes[0].algorithm, Algorithm::adamw);
  EXPECT_THAT(routing.routes[0].reason, HasSubstr("not_hidden"));
  EXPECT_EQ(routing.routes[1].algorithm, Algorithm::muon);
  EXPECT_EQ(routing.routes[2].algorithm, Algorithm::adamw) << "roles decide about the others";
  EXPECT_THROW((void)route(model, {.not_hidden = "("}), InvalidArgument);
}

TEST(Role, ATiedMatrixHasTheRoleOfAnyOfItsNames) {
  struct Holder : NamedParameters {
    void hold(const Parameter& other) { tie("weight", other); }
  };
  struct Tree : NamedParameters {
    void place(const std::string& name, ModuleBase& m) { child(name, m); }
  };
  const auto routed = [](const std::string& first, const std::string& second) {
    Tree root;
    Holder a, b;
    const Parameter p = a.add("weight", {30, 4});
    b.hold(p);
    root.place(first, a);
    root.place(second, b);
    return route(root);
  };
  const Routing head = routed("words", "lm_head");
  EXPECT_EQ(head.routes[0].reason, "head: word 'head' in 'lm_head' (tied)");
  EXPECT_EQ(routed("blocks.0.q", "blocks.1.q").routes[0].algorithm, Algorithm::muon) << "layers share it";
  const Routing doubtful = routed("words", "unwords");
  EXPECT_EQ(doubtful.routes[0].algorithm, Algorithm::adamw);
  EXPECT_EQ(doubtful.warnings.size(), 1u);
}

TEST(NameWords, NamesFallApartAtDotsDigitsAndCapitals) {
  const auto words = [](const std::string& text) { return parts_of(text).front().words; };
  EXPECT_THAT(words("LayerNorm"), ElementsAre("layer", "norm"));
  EXPECT_THAT(words("adaLN_modulation"), ElementsAre("ada", "ln", "modulation"));
  EXPECT_THAT(words("LMHead2"), ElementsAre("lm", "head", "2"));
  EXPECT_THAT(words("conv1d"), ElementsAre("conv", "1", "d"));
  EXPECT_THAT(words("__a--b/c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(words(""), IsEmpty());
  EXPECT_THAT(words("\xc3\xa9t\xc3\xa9_1"), ElementsAre("\xc3\xa9t\xc3\xa9", "1"));
  const NamedPlace place = place_of("model.layers.3.mlp.0.weight");
  EXPECT_EQ(place.owner.text, "mlp");
  EXPECT_EQ(place.prefix, "model.layers.3.");
  EXPECT_TRUE(place.numbered());
  EXPECT_FALSE(place.bare);
  EXPECT_EQ(place_of("weight").owner.text, "");
  EXPECT_EQ(place_of("").owner.text, "");
  EXPECT_EQ(place_of("..").owner.text, "");
}

}  // namespace
}  // namespace sherd::test
