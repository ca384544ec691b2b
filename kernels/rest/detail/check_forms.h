// Check of what segments need for their rest forms. Private to kernels.
#pragma once

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd::ops::door {

inline void check_state_dtype(Check& check, DType state) {
  check.that(state == DType::f32 || state == DType::bf16,
             fmt::format("states are {}, must be f32 or bf16", name_of(state)));
}

/// Low halves exist where the form is split, and a count of updates where values are rounded.
inline void check_forms(Check& check, size_t segment, const RestForms& forms, const uint16_t* low,
                        const Noise& noise) {
  check.that(forms.master != Master::split || low != nullptr,
             fmt::format("segment {}: the low halves of its weights are null", segment));
  check.that(!forms.draws() || noise.count != nullptr,
             fmt::format("segment {}: its count of updates is null", segment));
}

}  // namespace sherd::ops::door
