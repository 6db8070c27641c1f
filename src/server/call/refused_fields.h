#pragma once

#include <span>
#include <string_view>

#include "server/call/field_reader.h"

namespace protean {

struct RefusedField {
  std::string_view field;
  std::string_view why;
  bool may_be_false = false;  // is a flag, which some clients always send
};

// Refuses each of these fields unless it is null or an empty list.
void refuse_fields(FieldReader& fields, std::span<const RefusedField> refused);

}  // namespace protean
