#pragma once

#include <CLI/CLI.hpp>

namespace protean {

// Adds `protean bench kernels`, which compares the kernels with this machine's ceilings.
void add_bench_kernels(CLI::App& bench, int& exit_code);

}  // namespace protean
