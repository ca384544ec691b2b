#include <sherd/nn/models/generate.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <sherd/base/error.h>
#include <sherd/fsdp/runtime.h>
#include <sherd/kernels/copy/copy.h>
#include <sherd/kernels/random/random.h>
#include <sherd/nn/models/context.h>

namespace sherd::nn {
namespace {

using Tokens = std::vector<int32_t>;

/// Scope in which the model is in evaluation mode.
class Evaluating {
 public:
  explicit Evaluating(CausalModel& model) {
    model.visit([&](const std::string&, ModuleBase& m) { before_.emplace_back(&m, m.training()); });
    model.set_training(false);
  }
  ~Evaluating() {
    for (const auto& [module, training] : before_) module->set_training(training);  // parents first
  }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  std::vector<std::pair<ModuleBase*, bool>> before_;
};

/// One sequence that is not at its end.
struct Sequence {
  size_t prompt;  // index
  Tokens text;
  KvCache cache;
  SlidingContext context;
  int64_t made = 0;
  bool ended = false;
  SlidingContext::Rows rows{};  // to run next
};

class Batch {
 public:
  Batch(CausalModel& model, const std::vector<Tokens>& prompts, const GenerateOptions& o)
      : model_(model), options_(o), device_(runtime_of(model).device()), made_(prompts.size()) {
    check(o.draw);
    if (o.max_tokens < 0 || o.capacity < 0)
      throw InvalidArgument("generate(): max_tokens " + std::to_string(o.max_tokens) + " and capacity " +
                            std::to_string(o.capacity) + " must not be negative");
    const int64_t positions = model.description().positions;
    if (o.capacity > positions)
      throw InvalidArgument("generate(): capacity " + std::to_string(o.capacity) + " is above the model's " +
                            std::to_string(positions) + " positions");
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (prompts[i].empty())
        throw InvalidArgument("generate(): prompt " + std::to_string(i) +
                              " has no tokens; begin it with one, such as the start of text");
      if (o.max_tokens < 1) continue;
      const int64_t wanted = o.capacity > 0 ? o.capacity : std::ssize(prompts[i]) + o.max_tokens;
      const int64_t capacity = std::min(wanted, positions);
      active_.push_back({i, prompts[i], cache(capacity), SlidingContext(capacity)});
    }
  }

  std::vector<Tokens> run() {
    while (step()) {
    }
    return std::move(made_);
  }

 private:
  KvCache cache(int64_t capacity) const {
    return model_.make_cache(device_, capacity, runtime_of(model_).options().compute_dtype);
  }

  /// Adds a token to each sequence. Returns whether any rank had one.
  bool step() {
    std::vector<Sequence*> alone, together;
    for (Sequence& s : active_) {
      s.rows = s.context.next(std::ssize(s.text));
      if (!s.rows.restart && model_.description().changes_angles(
                                 s.cache.length(), s.cache.length() + s.rows.end - s.rows.begin)) {
        s.rows.begin -= s.cache.length();
        s.rows.restart = true;
      }
      if (s.rows.restart) s.cache.clear();
      (s.rows.end - s.rows.begin == 1 ? together : alone).push_back(&s);
    }
    const int64_t most = most_forwards(std::ssize(alone) + (together.empty() ? 0 : 1));
    for (Sequence* const s : alone) forward({s});
    if (!together.empty()) forward(together);
    for (int64_t i = std::ssize(alone) + (together.empty() ? 0 : 1); i < most; ++i) idle();
    std::erase_if(active_, [](const Sequence& s) { return s.ended; });
    return most > 0;
  }

  /// Returns the largest number of forwards of a rank in this step.
  int64_t most_forwards(int64_t own) const {
    if (options_.together == nullptr) return own;
    Stream& s = device_.compute();
    const Tensor count = Tensor::empty(device_, {1}, DType::i64, "activations");
    ops::copy_from_host(s, count, &own, sizeof own);
    options_.together->all_reduce(s, count, ReduceOp::max);
    ops::copy_to_host(s, &own, count);
    return own;
  }

  Tensor on_device(const Tokens& tokens, int64_t rows) const {
    const Tensor in = Tensor::empty(device_, {rows, std::ssize(tokens) / rows}, DType::i32, "activations");
    ops::copy_from_host(device_.compute(), in, tokens.data(), in.nbytes());
    return in;
  }

  /// Runs the rows of these sequences, equally many of each, and draws.
  void forward(const std::vector<Sequence*>& sequences) {
    Tokens tokens;
    std::vector<KvCache*> caches;
    for (Sequence* const s : sequences) {
      tokens.insert(tokens.end(), s->text.begin() + s->rows.begin, s->text.begin() + s->rows.end);
      caches.push_back(&s->cache);
    }
    Stream& stream = device_.compute();
    const Tensor logits = model_(on_device(tokens, std::ssize(sequences)), caches);
    const std::vector<float> all = ops::to_floats(stream, logits);
    const size_t vocab = all.size() / sequences.size();
    Tokens drawn;  // of each sequence, and then whether it ends it
    for (const Sequence* s : sequences) {
      const uint64_t seed = s->prompt == 0 ? options_.seed : hash64(options_.seed, std::to_string(s->prompt));
      drawn.push_back(
          draw_token(std::span(all).subspan(drawn.size() * vocab, vocab), options_.draw, seed, s->made));
    }
    for (size_t i = 0; i < sequences.size(); ++i)
      drawn.push_back(sequences[i]->made + 1 == options_.max_tokens ||
                      std::ranges::find(options_.stop, drawn[i]) != options_.stop.end());
    if (options_.same != nullptr) {
      const Tensor picks = on_device(drawn, 1);
      options_.same->broadcast(stream, picks, 0);
      ops::copy_to_host(stream, drawn.data(), picks);
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = *sequences[i];
      s.text.push_back(drawn[i]);
      ++s.made;
      s.ended = drawn[sequences.size() + i] != 0;
      made_[s.prompt].push_back(drawn[i]);
      if (options_.made) options_.made(s.prompt, drawn[i]);
    }
  }

  /// A forward for the other ranks.
  void idle() {
    if (!idle_) idle_.emplace(cache(1));
    idle_->clear();
    model_(on_device({0}, 1), &*idle_);
  }

  CausalModel& model_;
  const GenerateOptions& options_;
  Device& device_;
  std::vector<Sequence> active_;
  std::vector<Tokens> made_;
  std::optional<KvCache> idle_;
};

}  // namespace

std::vector<Tokens> generate(CausalModel& model, const std::vector<Tokens>& prompts,
                             const GenerateOptions& options) {
  const Evaluating evaluating(model);
  return Batch(model, prompts, options).run();
}

}  // namespace sherd::nn
