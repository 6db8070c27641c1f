#include "server/operators/process_stats.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/log_output.h"

namespace protean {
namespace {

// Returns the fields of /proc/self/stat from field 3 on, which follow the program's name.
std::vector<double> stat_fields() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream rest(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string state;
  rest >> state;
  std::vector<double> fields{0.0};
  for (double value = 0; rest >> value;) {
    fields.push_back(value);
  }
  fields.resize(50);
  return fields;
}

double boot_time_s() {
  std::ifstream file("/proc/stat");
  std::string name;
  for (double value = 0; file >> name;) {
    if (name == "btime" && file >> value) {
      return value;
    }
  }
  return 0;
}

double open_files() {
  double count = 0;
  std::error_code ec;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/fd", ec);
       !ec && entry != std::filesystem::directory_iterator(); entry.increment(ec)) {
    ++count;
  }
  return count;
}

}  // namespace

std::string process_metrics() {
  const std::vector<double> fields = stat_fields();  // field n of proc(5) is fields[n - 3]
  const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::string text;
  const auto show = [&](const char* name, const char* type, const char* help, double value) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n{} {}\n", name, help, name, type, name, value);
  };
  show("process_cpu_seconds_total", "counter", "User and system CPU time in seconds.",
       (fields[11] + fields[12]) / ticks_per_s);
  show("process_resident_memory_bytes", "gauge", "Resident memory.",
       fields[21] * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  show("process_virtual_memory_bytes", "gauge", "Virtual memory.", fields[20]);
  show("process_threads", "gauge", "Threads.", fields[17]);
  show("process_open_fds", "gauge", "Open file descriptors.", open_files());
  show("process_max_fds", "gauge", "Limit of open file descriptors.",
       static_cast<double>(files.rlim_cur));
  show("process_start_time_seconds", "gauge", "Start time of the process in Unix seconds.",
       boot_time_s() + fields[19] / ticks_per_s);
  show("protean:log_lines_dropped_total", "counter",
       "Log lines dropped because the log was not read in time.",
       static_cast<double>(log::dropped_lines()));
  return text;
}

}  // namespace protean
