// Check of what segments need for their rest forms. Private to kernels.
#pragma once

#include <sherd/kernels/device/detail/door.h>
#include <sherd/kernels/rest/rest.h>

namespace sherd::ops::door {

inline void check_dtypes(Check& check, const RestForms& forms) {
  for (const auto& [what, dtype] : {std::pair("states", forms.state), {"gradients", forms.gradient}})
    check.that(dtype == DType::f32 || dtype == DType::bf16,
               fmt::format("{} are {}, must be f32 or bf16", what, name_of(dtype)));
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
