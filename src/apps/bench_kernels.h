#pragma once

#include <CLI/CLI.hpp>

namespace protean {

// `protean bench kernels`: how near the matmul kernels are to what this machine can do.
void add_bench_kernels(CLI::App& bench, int& exit_code);

}  // namespace protean
