#include "server/call/refused_fields.h"

#include <fmt/format.h>

namespace protean {

void refuse_fields(FieldReader& fields, std::span<const RefusedField> refused) {
  for (const auto& [field, why, may_be_false] : refused) {
    const boost::json::value* value = fields.refused(field);
    if (value == nullptr || (may_be_false && *value == false)) continue;
    if (!value->is_array() || !value->get_array().empty()) {
      fields.fail(field, fmt::format("{} is not supported: {}", field, why));
    }
  }
}

}  // namespace protean
