// Start and end of a program's main().
#pragma once

#include <string>

namespace sherd {

/// Returns "0.1.0": sherd's version.
const char* program_version();

/// Returns what of the build may change bits of results: options, compiler, oneDNN, glibc.
std::string program_build();

/// Instructions of a processor that choose CPU kernels, and so bits of results.
struct ProcessorFeatures {
  /// Returns those of this processor. @throws InvalidArgument for an unknown value of SHERD_CPU_FEATURES.
  static ProcessorFeatures of_this_one();
  /// "AVX-512, bf16 products AVX512-BF16".
  std::string text;
  /// Index of the value of SHERD_CPU_FEATURES that hides nothing of them; processors of several kinds agree with the
  /// smallest.
  int level = 0;
};
/// Returns the value of SHERD_CPU_FEATURES of a level: "avx2".
const char* cpu_features_value(int level);

/// Returns "train_gpt 0.1.0 (CUDA OFF, NCCL OFF, MPI OFF; Release, cpu kernels for x86-64-v3; this processor: AVX-512, bf16
/// products AVX512-BF16)". @throws InvalidArgument for an unknown value of SHERD_CPU_FEATURES.
std::string version_text(const std::string& program);

/// OpenMP's threads wait for their next task by spinning. On a machine that runs other programs, too, they
/// take processors from the threads that compute. libgomp reads the spin count when it is loaded, before
/// main(). This function therefore starts the program once more, in the same process, with
/// GOMP_SPINCOUNT=1000 (libgomp's own choice where there are more threads than processors;
/// docs/performance.md has the figures). Does nothing when GOMP_SPINCOUNT or OMP_WAIT_POLICY is set, or the
/// program was started through the dynamic loader (ld-linux.so PROGRAM). Call it before anything else; it
/// returns when a restart is not needed or not possible.
/// @param argv argument of main().
void bound_spinning(char** argv);

/// Opens those of stdin, stdout and stderr that the program was started without, so that no output file gets
/// their descriptors, and with them the printed text; using them still fails. Call it before any file is
/// opened.
void reserve_standard_streams();

/// Makes a write beyond the limit on file sizes (ulimit -f) fail with EFBIG, as on a full disk, instead of
/// ending the program by SIGXFSZ. Programs that this one starts get the signal as this one got it.
void report_file_size_limit();

/// Makes a write to a pipe without a reader fail with EPIPE instead of ending the program by SIGPIPE. For
/// programs whose output is a log: lines are lost, the work is not. Programs that this one starts get the
/// signal as this one got it.
void report_broken_pipes();

/// Returns whether stdout has a reader: false for a pipe whose other end is closed and for a terminal that is
/// gone.
bool stdout_has_reader();

/// Prints "PROGRAM: TEXT" as a line to stderr, the text as by printable_lines(). Text that cannot be written
/// is lost: a full or closed stderr does not end the program.
void print_error(const std::string& program, const std::string& text) noexcept;

/// Returns whether everything printed to stdout was written; if not, prints an error to stderr. Call it last,
/// and turn false into a failure.
[[nodiscard]] bool finish_stdout(const char* program);

}  // namespace sherd
