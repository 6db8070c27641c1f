#pragma once

#include <span>
#include <string_view>

#include "server/call/field_reader.h"

namespace protean {

struct RefusedField {
  std::string_view field;
  std::string_view why;
  bool may_be_false = false;  // a flag, which clients set to false by habit
};

// Refuses those that are given as anything but null or the empty list.
void refuse_fields(FieldReader& fields, std::span<const RefusedField> refused);

}  // namespace protean
