#pragma once

#include <CLI/CLI.hpp>

namespace protean {

// `protean bench engine`: how near one model's steps are to what this machine can do, without HTTP.
void add_bench_engine(CLI::App& bench, int& exit_code);

}  // namespace protean
