#pragma once

#include <string>

#include "loadtest/report_text.h"

namespace protean::loadtest {

// The whole report as one page that loads nothing: text, tables and SVG charts, for light and dark
// screens.
std::string html_of(const RunDescription& description, const Summary& summary,
                    const RunResult& run);

}  // namespace protean::loadtest
