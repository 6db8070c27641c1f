#pragma once

#include "server/call/field_reader.h"

namespace protean {

// Refuses fields that ask for another answer than we would give, such as beam search. Their neutral
// values pass, as clients send those by habit.
void refuse_unsupported(FieldReader& fields, bool chat);

}  // namespace protean
