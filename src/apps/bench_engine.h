#pragma once

#include <CLI/CLI.hpp>

namespace protean {

// Adds `protean bench engine`, which compares one model's steps with this machine's ceilings.
void add_bench_engine(CLI::App& bench, int& exit_code);

}  // namespace protean
