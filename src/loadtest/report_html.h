#pragma once

#include <string>

#include "loadtest/report_text.h"

namespace protean::loadtest {

// Returns the report as one page with text, tables and SVG charts that loads nothing else.
std::string html_of(const RunDescription& description, const Summary& summary,
                    const RunResult& run);

}  // namespace protean::loadtest
