#include <ostream>

#include <nlohmann/json.hpp>

#include "ckpt_inspect.h"
#include "elements.h"
#include "tensor_stream.h"

namespace sherd::tools {
namespace {

using nlohmann::ordered_json;

// File names may hold bytes that are not UTF-8.
std::string dump(const ordered_json& j) {
  return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json or_null(std::optional<int> value) { return value ? ordered_json(*value) : ordered_json(); }

ordered_json head_of(const Source& source) {
  const Manifest& m = source.reader.manifest();
  ordered_json j;
  j["path"] = source.reader.path().string();
  j["newest_of"] = source.newest_of > 0 ? ordered_json(source.newest_of) : ordered_json();
  j["checksums"] = m.checksums;
  j["training"] = nullptr;
  if (m.checksums) {
    const TrainingState& t = m.training;
    j["training"] = {{"step", t.step}, {"sequences", t.sequences}, {"seed", t.seed}, {"info", t.info}};
  }
  j["sequence"] = m.checksums ? ordered_json(m.sequence) : ordered_json();
  for (const Section section : {Section::model, Section::optim}) {
    const SectionTotals s = totals_of(m, section);
    j["totals"][name_of(section)] = {{"tensors", s.tensors}, {"elements", s.elements}, {"bytes", s.bytes}};
  }
  return j;
}

ordered_json not_finite_json(const Manifest& m, const CheckpointTensor& t) {
  if (!m.checksums) return nullptr;
  const NotFinite found = not_finite_of(t);
  ordered_json first;
  if (found.count > 0) first = index_of(t.shape, found.first);
  return {{"values", found.count}, {"first", first}};
}

ordered_json tensor_json(const Manifest& m, const CheckpointTensor& t) {
  ordered_json j = {{"name", t.name},
                    {"section", name_of(section_of(m, t))},
                    {"dtype", name_of(t.dtype)},
                    {"shape", t.stored_shape()},
                    {"bytes", bytes_of(t)},
                    {"tied", t.tied},
                    {"not_finite", not_finite_json(m, t)},
                    {"pieces", ordered_json::array()}};
  for (const CheckpointPiece& p : t.pieces)
    j["pieces"].push_back(
        {{"offset", p.box.offset}, {"size", p.box.size}, {"file", p.file}, {"begin", p.begin}});
  return j;
}

template <class Items, class F>
void list(std::ostream& out, const char* name, const Items& items, F json_of) {
  out << ",\n\"" << name << "\": [";
  const char* separator = "\n";
  for (const auto& item : items) {
    out << separator << dump(json_of(item));
    separator = ",\n";
  }
  out << "]";
}

}  // namespace

const char* const kInspectJsonHelp =
    R"(--json prints one object:
  path         what was read; newest_of: checkpoints in the save folder that was named, else null
  checksums    whether there is a manifest; without one, training and sequence are null
  training     step, sequences (training sequences consumed), seed, info {name: text}
  sequence     number of the save: the largest one in a save folder is the newest checkpoint
  totals       {model, optim}, each {tensors, elements, bytes}
  files[]      {path, rank (counted from 0; null where the name does not tell), bytes, header_bytes}
  ranks[]      {rank, files, pieces, bytes}: what a rank wrote; files of unknown rank one by one
  tensors[]    {name, section ("model" or "optim"), dtype, shape, bytes, tied[] (its other names in the model),
               not_finite, pieces[]}; not_finite is
               {values, first}: how many are infinite or NaN by the manifest, the index of the first (or
               null), null without a manifest; a piece has offset and size in the whole tensor, file (its
               place in files[]), begin (the byte there)
)";

void write_inspect_json(std::ostream& out, const Source& source) {
  const Manifest& m = source.reader.manifest();
  std::string head = dump(head_of(source));
  head.pop_back();  // the closing brace
  out << head;
  list(out, "files", m.files, [](const CheckpointFile& f) {
    return ordered_json{{"path", f.path},
                        {"rank", or_null(rank_of(f.path))},
                        {"bytes", f.bytes},
                        {"header_bytes", f.header_bytes}};
  });
  list(out, "ranks", holders_of(m), [](const HolderTotals& h) {
    return ordered_json{
        {"rank", or_null(h.rank)}, {"files", h.files}, {"pieces", h.pieces}, {"bytes", h.bytes}};
  });
  list(out, "tensors", m.tensors, [&](const CheckpointTensor& t) { return tensor_json(m, t); });
  out << "}\n";
}

}  // namespace sherd::tools
