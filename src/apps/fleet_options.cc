#include "apps/fleet_options.h"

#include "apps/options.h"

namespace protean {

void add_fleet_options(CLI::App& app, FleetOptions& options) {
  app.add_option("--router", options.router,
                 "How a request's replica is chosen. first-token: the least predicted time to "
                 "the first token, prefix cache hits counted; freeness: the most free KV blocks "
                 "for each request, as in Llumnix; least-loaded: the fewest requests; "
                 "round-robin: in turn")
      ->check(one_of({"first-token", "freeness", "least-loaded", "round-robin"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--scale", options.scale,
                 "What becomes of a request that no replica can hold. off: it is refused; paper: "
                 "replicas become one group for it, as in AMOEBA, and part again after it")
      ->check(one_of({"off", "paper"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--drop", options.drop,
                 "What replicas do while queued requests lack KV. off: they wait; paper: replicas "
                 "drop layers that others hold, as in KunServe, and fetch them back after it")
      ->check(one_of({"off", "paper"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--regroup-at-once", options.holds_at_once,
                 "Halves of layers that a group's devices drop or fetch between two steps: more "
                 "end sooner, and make these steps longer")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--device-timeout", options.device_timeout_s,
                 "Seconds after which devices that have a step to compute and end none have "
                 "failed: their replica goes out of service, and its requests go on in others; 0: "
                 "never. A step must take less")
      ->type_name("SECONDS")
      ->check(CLI::Range(0, 86'400))
      ->capture_default_str()
      ->group("Devices");
}

}  // namespace protean
