#include "cost/pages.h"

#include <algorithm>

#include "base/units.h"
#include "cost/memory.h"
#include "cost/tp_units.h"

namespace protean {
namespace {

constexpr std::int64_t kLargestPage = 2 * kMiB;
constexpr std::int64_t kSmallestPage = 4 * kKiB;
constexpr std::int64_t kPagesOfAHalf = 8;  // at least, at bf16
// Each matrix and vector of a part begins on a line.
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPiecesOfAPart = 12;

}  // namespace

std::int64_t page_bytes_for(const ModelSpec& spec) {
  const std::int64_t smaller = std::min(part_bytes(spec, ModelPart::kAttention, Precision::kBf16),
                                        part_bytes(spec, ModelPart::kMlp, Precision::kBf16));
  std::int64_t page_bytes = kLargestPage;
  while (page_bytes > kSmallestPage && page_bytes * kPagesOfAHalf > smaller) {
    page_bytes /= 2;
  }
  return page_bytes;
}

std::int64_t part_pages(const ModelSpec& spec, ModelPart part, Precision precision,
                        std::int64_t page_bytes, int units) {
  units = units_of(part, units);
  const std::int64_t unit_bytes = part_bytes(unit_spec(spec, units), part, precision);
  return units * ceil_div(unit_bytes + kPiecesOfAPart * kLine, page_bytes);
}

std::int64_t kv_pages(const ModelSpec& spec, const KvForm& kv, std::int64_t page_bytes) {
  return ceil_div(kv.blocks * kv_block_bytes(spec, kv), page_bytes);
}

std::int64_t weight_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  std::int64_t pages = 0;
  for (const LayerPrecision& layer : form.layer_precision) {
    for (const ModelPart half : kLayerHalves) {
      pages += part_pages(spec, half, layer.of(half), page_bytes, form.largest_tp_degree);
    }
  }
  return pages / form.tp_degree + part_pages(spec, ModelPart::kTables, form.tables, page_bytes);
}

std::int64_t form_pages(const ModelSpec& spec, const Form& form, std::int64_t page_bytes) {
  return weight_pages(spec, form, page_bytes) + kv_pages(spec, form.kv, page_bytes);
}

std::int64_t kv_blocks_in(const ModelSpec& spec, const KvForm& kv, std::int64_t pages,
                          std::int64_t page_bytes) {
  return pages * page_bytes / kv_block_bytes(spec, kv);
}

}  // namespace protean
