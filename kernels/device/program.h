// Start and end of a program's main().
#pragma once

#include <string>

namespace sherd {

/// "train_gpt 0.1.0 (CUDA OFF, NCCL OFF, MPI OFF; Release, cpu kernels for x86-64-v3)".
std::string version_text(const std::string& program);

/// OpenMP's threads wait for their next task by spinning. On a machine that runs other programs, too, they
/// take processors from the threads that compute. libgomp reads the spin count when it is loaded, before
/// main(). This function therefore starts the program once more, in the same process, with
/// GOMP_SPINCOUNT=1000 (libgomp's own choice where there are more threads than processors;
/// docs/performance.md has the figures). Does nothing when GOMP_SPINCOUNT or OMP_WAIT_POLICY is set, or the
/// program was started through the dynamic loader (ld-linux.so PROGRAM). Call it before anything else; it
/// returns when a restart is not needed or not possible.
/// @param argv as main() got it.
void bound_spinning(char** argv);

/// Opens those of stdin, stdout and stderr that the program was started without, so that no file it writes
/// gets their numbers, and with them what is printed; using them still fails. Call it before any file is
/// opened.
void reserve_standard_streams();

/// "PROGRAM: TEXT" and the line's end on stderr, the text as printable_lines() has it. What does not get through is lost, as no place is left to
/// say so: a full or closed stderr ends no program.
void print_error(const std::string& program, const std::string& text) noexcept;

/// Whether everything that was printed to stdout got through; where not, a line on stderr says so. Call it
/// last, and turn false into a failure.
bool finish_stdout(const char* program);

}  // namespace sherd
