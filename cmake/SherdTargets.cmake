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
  set(host -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
    -Wno-restrict)
  if(SHERD_WERROR)
    list(APPEND host -Werror)
  endif()
  if(SHERD_SANITIZE)
    # Instrumented standard headers (std::regex) make GCC 12 see uninitialised members that are not.
    list(APPEND host -Wno-maybe-uninitialized)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${host}>)
  # nvcc's host code is generated: no -Wpedantic, -Wshadow, -Wconversion there.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra $<$<BOOL:${SHERD_WERROR}>:--Werror=all-warnings>>)
  sherd_sanitize(${target})
endfunction()
