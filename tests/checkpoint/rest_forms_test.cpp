// Weights and state in 16 bits are saved as they rest, resume elsewhere with the same bits, and convert on request.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <sherd/checkpoint/files/checkpoint_folder.h>
#include <sherd/checkpoint/resume.h>
#include <sherd/checkpoint/saver.h>
#include <sherd/checkpoint/state_dict.h>
#include <sherd/checkpoint/weights.h>
#include <sherd/optim/normuon.h>
#include <sherd/optim/soap.h>

#include "support/message_of.h"
#include "support/sgd.h"
#include "support/toy_model.h"
#include "temporary_folder.h"

namespace sherd::test {
namespace {

constexpr double kLr = 0.03;

struct Forms {
  Master master = Master::f32;
  DType state = DType::f32;
  Place place = Place::device;  // of state and masters
};

/// A model of odd shapes that one algorithm updates as far as it can.
struct Trained : GivenGradients {
  Parameter matrix = add("matrix.weight", {9, 5}), stack = add("stack.weight", {3, 4, 6}),
            wide = add("wide.weight", {65, 128}), gain = add("gain.weight", {7});
  std::optional<Optimizer> optimizer;

  Trained(RankContext& r, const Algorithm& algorithm, Forms forms, Strategy strategy,
          LayoutPolicy layout = LayoutPolicy::ragged, uint64_t seed = 5) {
    const Routing routing =
        route(*this, {.rules = {{.pattern = "matrix|stack|wide", .algorithm = algorithm}}});
    fully_shard(*this, mesh_of(r),
                {.strategy = strategy,
                 .compute_dtype = DType::bf16,
                 .master = forms.master,
                 .master_place = forms.place,
                 .whole_state_blocks = forms.state == DType::i8,
                 .layout = layout},
                {.seed = seed});
    OptimizerOptions o{
        .weight_decay = 0.1, .state_dtype = forms.state, .state_place = forms.place, .window_bytes = 4096};
    if (algorithm == NorMuon::kName) o.further.push_back(NorMuon::factory());
    if (algorithm == Soap::kName) o.further.push_back(Soap::factory());
    optimizer.emplace(*this, routing, o);
  }
  void train_to(int end) {
    while (step < end) train(*optimizer, kLr);
  }
  /// Weights and state by name, on rank 0.
  std::map<std::string, std::vector<std::byte>> everything() {
    std::map<std::string, std::vector<std::byte>> all;
    const StateDict dict = state_dict(*this, &*optimizer, DictKind::on_first);
    for (const auto* part : {&dict.model, &dict.optimizer})
      for (const auto& [name, t] : *part) all[name] = t.data;
    return all;
  }
};
using Everything = std::map<std::string, std::vector<std::byte>>;

std::string differences(const Everything& a, const Everything& b) {
  std::string names;
  for (const auto& [name, data] : a)
    if (!b.contains(name) || b.at(name) != data) names += name + "; ";
  for (const auto& [name, data] : b)
    if (!a.contains(name)) names += name + "; ";
  return names;
}

const Algorithm kAlgorithms[] = {Algorithm::adamw, Algorithm::muon, NorMuon::kName, Soap::kName};
const Forms kForms[] = {{Master::bf16, DType::f32},
                        {Master::split, DType::f32},
                        {Master::f32, DType::bf16},
                        {Master::bf16, DType::bf16},
                        {Master::split, DType::bf16}};
/// With state in 8 bits, which SOAP has not.
std::vector<Forms> forms_of(const Algorithm& algorithm) {
  std::vector<Forms> all(std::begin(kForms), std::end(kForms));
  if (algorithm != Soap::kName)
    for (const Master master : {Master::f32, Master::bf16, Master::split}) all.push_back({master, DType::i8});
  return all;
}

/// Saves at step 3 and returns what a run to step 6 has; all ranks have equal gradients, whose average is exact.
Everything straight(const std::string& folder, const Algorithm& algorithm, Forms forms, int ranks,
                    bool background) {
  Everything all;
  test::launch(ranks, [&](RankContext& r) {
    Trained run(r, algorithm, forms, Strategy::optim_grads_params);
    run.train_to(3);
    CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer),
                          {.folder = folder, .async = background});
    saver.save({.step = 3});
    run.train_to(6);  // a save in the background holds the values of step 3
    saver.wait();
    Everything mine = run.everything();
    if (r.world->rank() == 0) all = std::move(mine);
  });
  return all;
}

// A save waits for the one before it, whose end lets steps continue that were queued in the meantime: they do not wait for the
// new one, which waits for them.
TEST(RestFormsCheckpoint, BackgroundSavesOfStateOnTheHostFollowEachOther) {
  for (const Algorithm& algorithm : kAlgorithms) {
    const TemporaryFolder folder;
    const Forms forms{Master::f32, DType::f32, Place::host};
    test::launch(2, [&](RankContext& r) {
      Trained run(r, algorithm, forms, Strategy::optim_grads_params);
      CheckpointSaver saver(r.world, checkpoint_tensors(run, &*run.optimizer),
                            {.folder = folder / "run", .async = true});
      EXPECT_TRUE(saver.reads_in_place());
      Stream& compute = r.device->compute();
      for (int step = 1; step < 5; ++step) {
        compute.submit("test",
                       [](ExecutionContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
        run.train_to(step);
        saver.save({.step = step});
      }
      saver.wait();
    });
    for (int step = 1; step < 5; ++step)
      test::launch(1, [&](RankContext& r) {
        Trained straight(r, algorithm, {}, Strategy::no_shard), resumed(r, algorithm, {}, Strategy::no_shard);
        straight.train_to(step);
        resume(folder / fmt::format("run/{}", checkpoint_name(step)), resumed, &*resumed.optimizer);
        EXPECT_EQ(differences(resumed.everything(), straight.everything()), "")
            << name_of(algorithm) << " " << step;
      });
  }
}

TEST(RestFormsCheckpoint, ResumesElsewhereWithTheSameBits) {
  size_t turn = 0;
  for (const Algorithm& algorithm : kAlgorithms)
    for (Forms forms : forms_of(algorithm)) {
      const TemporaryFolder folder;
      // Two of three begin on the host; the save in the background reads state there while later steps write it.
      forms.place = turn % 3 == 0 ? Place::device : Place::host;
      const Everything want = straight(folder / "run", algorithm, forms, 4, turn % 2 == 1);
      forms.place = turn % 3 == 1 ? Place::device : Place::host;
      const Strategy strategy = kEveryStrategy[turn % 4];
      const LayoutPolicy layout = turn % 3 == 0   ? LayoutPolicy::even_rows
                                  : turn % 3 == 1 ? LayoutPolicy::whole_param
                                                  : LayoutPolicy::ragged;
      Everything got;
      test::launch(turn % 2 == 0 ? 2 : 1, [&](RankContext& r) {
        Trained run(r, algorithm, forms, strategy, layout, 6);  // the checkpoint's noise continues
        resume(folder / "run", run, &*run.optimizer);
        run.step = 3;
        run.train_to(6);
        Everything mine = run.everything();
        if (r.world->rank() == 0) got = std::move(mine);
      });
      EXPECT_EQ(differences(got, want), "")
          << name_of(algorithm) << " " << name_of(forms.master) << " " << name_of(forms.state);
      ++turn;
    }
}

TEST(RestFormsCheckpoint, FilesHaveTheDtypesThatRest) {
  for (const Forms& forms : kForms) {
    const TemporaryFolder folder;
    (void)straight(folder / "run", Soap::kName, forms, 2, false);
    const CheckpointReader reader = CheckpointReader::open(folder / "run/step_00000003");
    for (const CheckpointTensor& t : reader.manifest().tensors) {
      const bool model = t.section == Section::model;
      const bool factor = t.name.find("left") != t.name.npos || t.name.find("right") != t.name.npos ||
                          t.name.ends_with("step") || t.name.ends_with("steps") ||
                          t.name.ends_with("updates");
      const DType want = model    ? (forms.master == Master::bf16 ? DType::bf16 : DType::f32)
                         : factor ? DType::f32
                                  : forms.state;
      EXPECT_EQ(t.dtype, want) << t.name;
    }
  }
}

TEST(RestFormsCheckpoint, AnotherFormIsRefusedInOneLineAndConvertedOnRequest) {
  const TemporaryFolder folder;
  const Forms f32{}, narrow{Master::bf16, DType::bf16};
  for (const auto& [from, to] : {std::pair(f32, narrow), {narrow, f32}}) {
    const std::string at = folder / (from.state == DType::f32 ? "wide" : "narrow");
    (void)straight(at, Algorithm::muon, from, 2, false);
    test::launch(2, [&, from = from, to = to](RankContext& r) {
      Trained run(r, Algorithm::muon, to, Strategy::optim);
      const std::string message = message_of<InvalidArgument>([&] { resume(at, run, &*run.optimizer); });
      EXPECT_THAT(message,
                  AllOf(HasSubstr(fmt::format("are stored in {} and the run keeps them in {}",
                                              name_of(from.state), name_of(to.state))),
                        HasSubstr("convert_forms"), Not(HasSubstr("\n")), Not(HasSubstr("updates"))));
      const Resumed resumed = resume(at, run, &*run.optimizer, {.convert_forms = true});
      ASSERT_FALSE(resumed.report.converted.empty());
      EXPECT_THAT(resumed.report.converted[0], HasSubstr("were converted from"));
      run.step = 3;
      run.train_to(5);
      // The weights alone: without a question.
      EXPECT_NO_THROW(resume(at, run, nullptr, {.optimizer = false}));
    });
  }
}

/// State of wide.weight in 8 bits and in f32, by key, from a run of 3 ranks.
struct WideState {
  const char* key;
  const char* scale_key;
  StateCode code;
};
std::vector<WideState> wide_states(const Algorithm& algorithm) {
  if (algorithm == Algorithm::muon) return {{"momentum_buffer", "momentum_buffer_scale", StateCode::linear}};
  return {{"exp_avg", "exp_avg_scale", StateCode::floating},
          {"exp_avg_sq", "exp_avg_sq_root_scale", StateCode::square_root}};
}
constexpr int64_t kWideBlock = 128;

std::vector<float> of_wide(const Everything& all, const std::string& key) {
  const std::vector<std::byte>& bytes = all.at("optim.state.wide.weight." + key);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(RestFormsCheckpoint, StateIn8BitsConvertsOnRequest) {
  const Forms codes{Master::f32, DType::i8};
  for (const Algorithm& algorithm : {Algorithm::adamw, Algorithm::muon}) {
    const TemporaryFolder folder;
    (void)straight(folder / "i8", algorithm, codes, 3, false);
    (void)straight(folder / "f32", algorithm, {}, 3, false);
    const auto loaded = [&](const std::string& from, Forms forms, int ranks, LayoutPolicy layout) {
      Everything all;
      test::launch(ranks, [&](RankContext& r) {
        Trained run(r, algorithm, forms, Strategy::optim_grads_params, layout);
        const bool converts = (from == "i8") != (forms.state == DType::i8);
        if (converts) {
          EXPECT_THAT(message_of<InvalidArgument>([&] { resume(folder / from, run, &*run.optimizer); }),
                      AllOf(HasSubstr("convert_forms"), Not(HasSubstr("_scale"))));
        }
        resume(folder / from, run, &*run.optimizer, {.convert_forms = converts});
        Everything mine = run.everything();
        if (r.world->rank() == 0) all = std::move(mine);
      });
      return all;
    };
    // Pieces of fp32 runs begin and end inside of blocks.
    const Everything from_codes = loaded("i8", codes, 1, LayoutPolicy::ragged),
                     to_values = loaded("i8", {}, 2, LayoutPolicy::ragged),
                     from_values = loaded("f32", {}, 1, LayoutPolicy::ragged),
                     to_codes = loaded("f32", codes, 2, LayoutPolicy::even_rows);
    for (const WideState& state : wide_states(algorithm)) {
      EXPECT_EQ(of_wide(to_values, state.key), of_wide(from_codes, state.key)) << state.key;
      // To the nearest code.
      const std::vector<float> exact = of_wide(from_values, state.key), near = of_wide(to_codes, state.key);
      for (size_t i = 0; i < exact.size(); ++i) {
        const auto begin = exact.begin() + static_cast<int64_t>(i) / kWideBlock * kWideBlock;
        float largest = 0;
        for (auto v = begin; v != begin + kWideBlock; ++v) largest = std::max(largest, std::abs(*v));
        const bool root = state.code == StateCode::square_root;
        const BlockScale scale = block_scale(state.code, root ? std::sqrt(largest) : largest);
        with_code(state.code, [&](auto code) {
          constexpr StateCode kCode = decltype(code)::value;
          ASSERT_EQ(near[i],
                    dequantized<kCode>(quantized<kCode>(exact[i], scale.inverse, kToNearest), scale.scale));
        });
      }
    }
  }
}

// Files have the codes' own dtypes, and a flipped bit of a scale is named.
TEST(RestFormsCheckpoint, StateIn8BitsIsStoredAsItRests) {
  for (const Algorithm& algorithm : {Algorithm::adamw, Algorithm::muon}) {
    const TemporaryFolder folder;
    (void)straight(folder / "run", algorithm, {Master::bf16, DType::i8}, 3, false);
    const std::filesystem::path saved = folder / "run/step_00000003";
    const CheckpointReader reader = CheckpointReader::open(saved);
    for (const WideState& state : wide_states(algorithm))
      for (const auto& [key, dtype, columns] :
           {std::tuple(state.key, dtype_of(state.code), int64_t{128}), {state.scale_key, DType::f32, 1}}) {
        const CheckpointTensor* const t =
            reader.find(Section::optim, std::string("optim.state.wide.weight.") + key);
        ASSERT_NE(t, nullptr) << key;
        EXPECT_EQ(t->dtype, dtype) << key;
        EXPECT_EQ(t->shape, (Shape{65, columns})) << key;
      }
    EXPECT_TRUE(verify_checkpoint(saved).empty());
    bool found = false;
    for (const CheckpointFile& file : reader.manifest().files) {
      const SafetensorsReader opened(saved / file.path);
      const auto scale =
          std::ranges::find_if(opened.entries(), [](const auto& e) { return e.name.ends_with("_scale"); });
      if (scale == opened.entries().end()) continue;
      {
        std::fstream bytes(saved / file.path, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekg(opened.header_bytes() + scale->begin + 2);
        const char byte = static_cast<char>(bytes.get() ^ 1);
        bytes.seekp(opened.header_bytes() + scale->begin + 2);
        bytes.put(byte);
      }
      const std::vector<Damage> damage = verify_checkpoint(saved);
      EXPECT_TRUE(std::ranges::any_of(damage, [&](const Damage& d) { return d.tensor == scale->name; }));
      found = true;
      break;
    }
    EXPECT_TRUE(found) << "no file has scales";
  }
}

TEST(RestFormsCheckpoint, Fp32AndSplitConvertIntoEachOtherExactly) {
  for (const Master from : {Master::f32, Master::split}) {
    const TemporaryFolder folder;
    const Forms forms{from, DType::f32}, other{from == Master::f32 ? Master::split : Master::f32, DType::f32};
    const Everything want = straight(folder / "run", Algorithm::adamw, forms, 2, false);
    test::launch(4, [&](RankContext& r) {
      Trained run(r, Algorithm::adamw, other, Strategy::optim_grads);
      resume(folder / "run", run, &*run.optimizer);
      run.step = 3;
      run.train_to(6);
      const Everything got = run.everything();
      if (r.world->rank() == 0) {
        EXPECT_EQ(differences(got, want), "") << name_of(from);
      }
    });
  }
}

TEST(RestFormsCheckpoint, ConvertedWeightsAreRoundedToNearest) {
  const TemporaryFolder folder;
  const Everything want = straight(folder / "run", Algorithm::adamw, {}, 1, false);
  test::launch(2, [&](RankContext& r) {
    Trained run(r, Algorithm::adamw, {Master::bf16, DType::bf16}, Strategy::optim_grads_params);
    Trained wide(r, Algorithm::adamw, {}, Strategy::optim_grads_params);
    resume(folder / "run", run, &*run.optimizer, {.convert_forms = true});
    resume(folder / "run", wide, &*wide.optimizer);
    Stream& s = r.device->compute();
    for (size_t i = 0; i < 3; ++i) {
      std::vector<float> values = ops::to_floats(s, wide.own_parameters()[i].shard());
      for (float& v : values) v = static_cast<float>(bf16(v));
      EXPECT_EQ(ops::to_floats(s, run.own_parameters()[i].shard()), values);
    }
  });
}

TEST(RestFormsCheckpoint, StateDictsAndExportsHaveTheValues) {
  for (const Forms& forms : forms_of(Algorithm::adamw)) {
    const TemporaryFolder folder;
    const Algorithm algorithm = forms.state == DType::i8 ? Algorithm::adamw : Soap::kName;
    test::launch(3, [&](RankContext& r) {
      Trained run(r, algorithm, forms, Strategy::optim_grads_params),
          other(r, algorithm, forms, Strategy::optim);
      run.train_to(3);
      StateDict sharded = state_dict(run, &*run.optimizer, DictKind::sharded),
                first = state_dict(run, &*run.optimizer, DictKind::on_first);
      load_state_dict(other, &*other.optimizer, first, DictKind::on_first);
      const Everything want = run.everything();
      EXPECT_EQ(differences(other.everything(), want), "");
      run.train_to(4);
      load_state_dict(run, &*run.optimizer, sharded, DictKind::sharded);
      EXPECT_EQ(differences(run.everything(), want), "");
      export_weights(run, folder / "w.safetensors");
      Trained fresh(r, algorithm, forms, Strategy::no_shard);
      import_weights(fresh, folder / "w.safetensors");
      const Everything got = fresh.everything();
      for (const auto& [name, data] : want)
        if (name.find("optim") == name.npos && name.find(".soap") == name.npos && got.contains(name) &&
            name.ends_with("weight")) {
          EXPECT_EQ(got.at(name), data) << name;
        }
    });
  }
}

}  // namespace
}  // namespace sherd::test
