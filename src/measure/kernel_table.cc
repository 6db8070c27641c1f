#include "measure/kernel_table.h"

#include <fmt/format.h>

namespace protean {

std::string heading(const Ceilings& ceilings, int threads) {
  return fmt::format(
      "{} thread{}, {}\n\n"
      "{:5} {:17} {:>18} {:5} {:>5} {:>11} {:>9} {:>9} {:>7} {:>7}\n",
      threads, threads == 1 ? "" : "s", to_text(ceilings), "like", "kernel", "shape", "dtype",
      "rows", "time us", "MB", "GFLOP", "% read", "% mult");
}

std::string to_text(const KernelRow& row, const Ceilings& ceilings) {
  return fmt::format("{:5} {:17} {:>18} {:5} {:>5} {:>11.1f} {:>9.2f} {:>9.3f} {:>7.1f} {:>7.1f}\n",
                     row.like, row.kernel, row.shape, row.dtype, row.rows, row.time.us,
                     row.time.bytes * 1e-6, row.time.operations * 1e-9,
                     100 * row.read_fraction(ceilings), 100 * row.operations_fraction(ceilings));
}

std::string to_json(const KernelTable& table) {
  const Ceilings& ceilings = table.ceilings;
  const std::vector<KernelRow>& rows = table.rows;
  std::string text = fmt::format(
      R"({{"format":"protean-kernels/2","threads":{},"unit":"{}","read_bytes_per_s":{:.6g},"flops_per_s":{:.6g},"int8_ops_per_s":{:.6g},"tile_flops_per_s":{:.6g},"tile_int8_ops_per_s":{:.6g},"kernels":[)",
      table.threads, multiplier_name(), ceilings.read_bytes_per_s, ceilings.operations_per_s,
      ceilings.int8_operations_per_s, ceilings.tile_operations_per_s,
      ceilings.tile_int8_operations_per_s);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KernelRow& row = rows[i];
    text += fmt::format(
        R"({}{{"kernel":"{}","like":"{}","shape":"{}","dtype":"{}","rows":{},"time_us":{:.6g},"bytes":{:.0f},"operations":{:.0f},"read_fraction":{:.4f},"flops_fraction":{:.4f}}})",
        i == 0 ? "" : ",", row.kernel, row.like, row.shape, row.dtype, row.rows, row.time.us,
        row.time.bytes, row.time.operations, row.read_fraction(ceilings),
        row.operations_fraction(ceilings));
  }
  return text + "]}\n";
}

}  // namespace protean
