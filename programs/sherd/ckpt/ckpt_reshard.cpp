#include "ckpt_reshard.h"

#include <algorithm>

#include <fmt/format.h>

#include <sherd/checkpoint/detail/shard_writer.h>
#include <sherd/checkpoint/save_plan.h>

#include "ckpt_source.h"
#include "tensor_stream.h"
#include "text.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

/// Writes tensors of a reader below a temporary folder, rank after rank.
class Rewriter {
 public:
  Rewriter(CheckpointReader& from, std::vector<const CheckpointTensor*> tensors, int64_t world,
           const fs::path& to, Progress& progress)
      : from_(from), tensors_(std::move(tensors)), world_(world), to_(to), progress_(progress) {}

  /// Files and tensors of the manifest.
  Manifest write() {
    create_folders();
    for (int64_t rank = 0; rank < world_; ++rank) write_rank(rank);
    return merger_.take();
  }

 private:
  Section section(const CheckpointTensor& t) const { return section_of(from_.manifest(), t); }

  std::vector<Section> sections() const {
    std::vector<Section> used;
    for (const Section s : {Section::model, Section::optim})
      if (std::any_of(tensors_.begin(), tensors_.end(), [&](auto* t) { return section(*t) == s; }))
        used.push_back(s);
    return used;
  }

  void create_folders() {
    create_temporary(files_, to_);
    for (const Section s : sections()) files_.create_folder(to_ / name_of(s));
  }

  // The first `rows % world` ranks get one row more than the others.
  Box rows_on(int64_t rank, const Shape& shape) const {
    const int64_t each = shape[0] / world_, more = shape[0] % world_;
    Box box{Shape(shape.size(), 0), shape};
    box.offset[0] = rank * each + std::min(rank, more);
    box.size[0] = each + (rank < more ? 1 : 0);
    return box;
  }

  void write_rank(int64_t rank) {
    std::vector<LocalTensor> local;
    for (const CheckpointTensor* t : tensors_) {
      LocalTensor l{t->name, section(*t), t->dtype, t->stored_shape(), {rows_on(rank, t->shape)}, {}};
      l.streamed = true;
      l.tied = t->tied;
      local.push_back(std::move(l));
    }
    std::vector<PlannedFile> plan = plan_files(static_cast<int>(rank), local);
    for (PlannedFile& file : plan) {
      ShardWriter writer(files_, to_, file);
      for (const PlannedEntry& e : file.entries) write_entry(writer, *tensors_[e.tensor], e);
      writer.finish_into(file);
    }
    merger_.add(part_of(plan, local));
  }

  void write_entry(ShardWriter& writer, const CheckpointTensor& t, const PlannedEntry& e) {
    const ParamIndex begin(e.box.offset[0] * row_size(t.shape));
    stream_elements(from_, t, {begin, begin + e.count}, [&](const char* data, int64_t count) {
      writer.write(data, count * size_of(t.dtype));
      progress_.add(count * size_of(t.dtype));
    });
  }

  CheckpointReader& from_;
  std::vector<const CheckpointTensor*> tensors_;  // of from_
  int64_t world_;
  fs::path to_;
  Progress& progress_;
  FileSystem& files_ = FileSystem::posix();
  PartMerger merger_;
};

// A folder of tensors would be hidden by checkpoints beside them.
void check_save_folder(const fs::path& path, FileSystem& files) {
  if (files.kind(path) != FileSystem::Kind::folder) return;
  const std::vector<std::string> names = files.list(path);
  const auto holds_tensors = [](const std::string& name) {
    return name == "manifest.binpb" || fs::path(name).extension() == ".safetensors";
  };
  if (const auto found = std::find_if(names.begin(), names.end(), holds_tensors); found != names.end())
    throw InvalidArgument(fmt::format("{} holds {}, so that it cannot become a save folder; name another one",
                                      path.string(), *found));
}

void rewrite(Source& source, std::vector<const CheckpointTensor*> tensors, int64_t world,
             const TrainingState& training, const fs::path& save_folder, const std::string& verb,
             const Console& console) {
  if (tensors.empty())
    throw InvalidArgument(fmt::format("{} holds no tensor to write", source.reader.path().string()));
  FileSystem& files = FileSystem::posix();
  check_save_folder(save_folder, files);
  CheckpointFolder folder(save_folder, files);
  const fs::path committed = save_folder / checkpoint_name(training.step);
  if (files.kind(committed) != FileSystem::Kind::none)
    throw InvalidArgument(fmt::format("{} is there already; write into another folder, or remove it first",
                                      committed.string()));
  int64_t bytes = 0;
  for (const CheckpointTensor* t : tensors) bytes += bytes_of(*t);
  const fs::path temporary = folder.temporary(training.step);
  try {
    Manifest manifest;
    {
      Progress progress(console.err, console.progress, verb, bytes);
      manifest = Rewriter(source.reader, tensors, world, temporary, progress).write();
    }
    manifest.training = training;
    folder.commit(temporary, training.step, manifest);
  } catch (...) {
    folder.discard(temporary);
    throw;
  }
  console.out << fmt::format("{} committed: {}, {}, pieces of {}\n", printable(committed.string()),
                             count_text(static_cast<int64_t>(tensors.size()), "tensor"), bytes_text(bytes),
                             count_text(world, "rank"));
  console.finish();
}

}  // namespace

void reshard(const ReshardOptions& options, const Console& console) {
  Source source = open_source(options.source, console.err);
  const Manifest& m = source.reader.manifest();
  if (!m.checksums)
    throw InvalidArgument(fmt::format(
        "{} has no manifest, and so no training state to keep; use `sherd ckpt import` for its weights",
        source.reader.path().string()));
  std::vector<const CheckpointTensor*> tensors;
  for (const CheckpointTensor& t : m.tensors) tensors.push_back(&t);
  rewrite(source, std::move(tensors), options.world, m.training, options.save_folder, "reshard", console);
}

void import_weights(const ImportOptions& options, const Console& console) {
  Source source = open_source(options.source, console.err);
  const Manifest& m = source.reader.manifest();
  if (m.checksums)
    throw InvalidArgument(
        fmt::format("{} is a checkpoint already; `sherd ckpt reshard` copies one for another number of ranks",
                    source.reader.path().string()));
  std::vector<const CheckpointTensor*> tensors;
  for (const CheckpointTensor& t : m.tensors)
    if (section_of(m, t) == Section::model) tensors.push_back(&t);
  if (const size_t left = m.tensors.size() - tensors.size(); left > 0 && !tensors.empty())
    console.err << fmt::format("sherd ckpt import: {} of optimizer state left out\n",
                               count_text(static_cast<int64_t>(left), "tensor"));
  TrainingState training;
  training.step = options.step;
  training.info["writer"] = "sherd ckpt import";
  rewrite(source, std::move(tensors), 1, training, options.save_folder, "import", console);
}

}  // namespace sherd::tools
