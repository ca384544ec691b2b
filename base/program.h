// Start and end of a program's main().
#pragma once

#include <string>

namespace sherd {

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
