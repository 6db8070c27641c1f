#pragma once

#include "server/call/field_reader.h"

namespace protean {

// Refuses fields that we do not support and that would change the answer, such as beam search.
// Accepts their neutral values, which some clients always send.
void refuse_unsupported(FieldReader& fields, bool chat);

}  // namespace protean
