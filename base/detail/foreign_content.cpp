#include <sherd/base/detail/foreign_content.h>

namespace sherd {
namespace {

struct ForeignKind {
  std::string_view begin, what;
};
constexpr std::string_view kWebPage = "is a web page, not the file itself; download the file (`hf download`)";
constexpr ForeignKind kForeignKinds[] = {
    {kLfsPointer, "is a git-lfs pointer, not the file itself; run `git lfs pull` in its repository"},
    {"PK\3\4",
     "is a zip archive, such as torch.save() writes; load it in PyTorch and store the tensors by "
     "safetensors.torch.save_file()"},
    {"\x80\2\x8a\nl\xfc\x9c",
     "is a pickle of an old torch.save(); load it in PyTorch and store the tensors by "
     "safetensors.torch.save_file()"},
    {"GGUF", "is a GGUF file of llama.cpp; name the model's safetensors"},
    {"\x89HDF", "is an HDF5 file; store its tensors as safetensors"},
    {"PAR1", "is a Parquet file; write its texts as JSON lines"},
    {"\x1f\x8b\x08", "is compressed by gzip; decompress it"},
    {"<!DOCTYPE html", kWebPage},
    {"<!doctype html", kWebPage},
    {"<html", kWebPage}};

}  // namespace

std::string foreign_content(std::string_view begin) {
  for (const ForeignKind& kind : kForeignKinds)
    if (begin.starts_with(kind.begin)) return std::string(kind.what);
  return "";
}

}  // namespace sherd
