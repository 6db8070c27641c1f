#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/json_decimal.h"
#include "grammar/language.h"

namespace protean::grammar {

// Returns strings of a format. All are valid by the format's RFC, which may allow more: URIs have a
// host or an opaque part of plain characters here, and e-mail addresses have no quotes.
std::optional<Language> string_format(std::string_view name);

// Returns the range of OpenAPI's int32, int64, float or double.
std::optional<DecimalRange> number_format(std::string_view name);

std::string known_formats();

}  // namespace protean::grammar
