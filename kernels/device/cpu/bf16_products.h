// Which 16-bit products the processor has. Private to the CPU backend.
#pragma once

namespace sherd::cpu {

/// "AMX" or "AVX512-BF16", the instructions of oneDNN's bf16 products on this processor, or null without such. The
/// environment's ONEDNN_MAX_CPU_ISA hides them.
const char* bf16_products();

}  // namespace sherd::cpu
