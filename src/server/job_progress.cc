#include "server/job_progress.h"

namespace protean {

namespace json = boost::json;

void show_progress(const JobProgress& progress, json::object& job) {
  if (progress.loaded > 0) {
    job["progress"] = json::object{{"loaded", progress.loaded}};
  } else if (progress.of_steps > 0) {
    job["progress"] = json::object{{"steps", progress.steps}, {"of_steps", progress.of_steps}};
  }
}

}  // namespace protean
