#pragma once

#include <span>
#include <string_view>

#include "server/call/field_reader.h"

namespace protean {

// Refuses fields that ask for another answer than we would give, such as beam search. Their neutral
// values pass, as clients send those by habit.
void refuse_unsupported(FieldReader& fields, bool chat);

struct RefusedField {
  std::string_view field;
  std::string_view why;
  bool may_be_false = false;  // a flag, which clients set to false by habit
};

// Refuses those that are given as anything but null or the empty list.
void refuse_fields(FieldReader& fields, std::span<const RefusedField> refused);

}  // namespace protean
