// Options of AddressSanitizer, read when it starts (sanitizer/asan_interface.h). See CMakeLists.txt for why.
extern "C" const char* __asan_default_options() { return "detect_container_overflow=0"; }
