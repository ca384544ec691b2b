# What every target that is compiled here needs, generated code included.
function(sherd_sanitize target)
  if(SHERD_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE})
  endif()
endfunction()

# Flags for the targets that are sherd's own.
function(sherd_own_target target)
  # GCC 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651), hence no -Wrestrict.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    -Wno-missing-field-initializers -Wno-restrict
    $<$<BOOL:${SHERD_WERROR}>:-Werror>)
  if(SHERD_SANITIZE)
    # Instrumented standard headers (std::regex) make GCC 12 see uninitialised members that are not.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  endif()
  sherd_sanitize(${target})
endfunction()
