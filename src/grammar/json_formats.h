#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/json_decimal.h"
#include "grammar/language.h"

namespace protean::grammar {

// The strings of a format: each is valid by the format's RFC, though the RFC may have more (URIs
// have a host or an opaque part of plain characters, e-mail addresses no quotes).
std::optional<Language> string_format(std::string_view name);

// OpenAPI's int32, int64, float and double.
std::optional<DecimalRange> number_format(std::string_view name);

std::string known_formats();

}  // namespace protean::grammar
