// Index of Megatron's data sets: X.idx, beside the tokens in X.bin.
#pragma once

#include <cstdint>
#include <vector>

#include <sherd/train/data/token_stream.h>

namespace sherd {

/// "MMIDIDX\0\0", u64 version 1, u8 code of the tokens' type, u64 count of sequences, u64 count of document
/// bounds; then i32 lengths and i64 first bytes of the sequences, and i64 bounds of the documents in
/// sequences. All little-endian.
///
/// Reads all of it once and returns the type of the tokens, which `bin` then holds contiguously.
/// @throws IoError naming what is wrong: another magic, version or type (4 is i32, 8 is u16), counts that do
/// not fit the index's size, sequences that are not contiguous or do not fill `bin`, bounds of
/// documents that do not ascend from 0 to the count of sequences.
TokenType read_megatron_index(const FileBytes& index, const FileBytes& bin);

/// Returns the number of tokens in each document of an index that read_megatron_index() has accepted. @throws IoError.
std::vector<int64_t> megatron_documents(const FileBytes& index);

/// Returns whether the file begins like an index.
bool is_megatron_index(const FileBytes& file);

}  // namespace sherd
