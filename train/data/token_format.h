// Token file formats, and opening a file.
#pragma once

#include <filesystem>
#include <string_view>

#include <sherd/train/data/token_stream.h>

namespace sherd {

/// - u16, u32: tokens and nothing else (nanoGPT's .bin).
/// - llmc: 256 i32 first: 20240520 (u16 tokens follow) or 20240801 (u32), version 1, count of tokens, zeros.
/// - megatron: X.bin with X.idx beside it, named by either or by X; its documents are one stream in order.
/// - automatic: megatron and llmc are known by their marks; others must be named.
enum class TokenFormat { automatic, u16, u32, llmc, megatron };

/// Maps the file; reads its header and, of megatron, the index.
/// @throws IoError naming the file and what to do: no tokens, half a token at the end, a header that does not
/// fit the file's size, an index that does not fit its .bin (see read_megatron_index()), an unrecognized
/// format.
[[nodiscard]] TokenFile open_token_file(const std::filesystem::path& path,
                                        TokenFormat format = TokenFormat::automatic);

}  // namespace sherd
