#include "apps/fleet_options.h"

#include "apps/options.h"
#include "base/units.h"

namespace protean {

void add_fleet_options(CLI::App& app, FleetOptions& options) {
  app.add_option("--router", options.router,
                 "How a request's replica is chosen. first-token: the least predicted time to "
                 "the first token, prefix cache hits counted; freeness: the most free KV blocks "
                 "for each request, as in Llumnix; least-loaded: the fewest requests; "
                 "round-robin: in turn")
      ->type_name("ROUTER")
      ->check(one_of({"first-token", "freeness", "least-loaded", "round-robin"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--migrate", options.migrate,
                 "When requests that decode move to another replica, with their KV. off: if an "
                 "operator asks for it; load: also if their replica has less than 3 free KV blocks "
                 "for each request and another one has more, as in Llumnix")
      ->check(one_of({"off", "load"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option(
         "--scale", options.scale,
         "What becomes of a request that no replica can hold. off: it is refused; paper: "
         "replicas become one group for it, as in AMOEBA, and split again after it; "
         "layers: 2, 4 or 8 of them divide layers for it at once, as with KunServe, to compare; "
         "neighbours: as paper, with the neighbours of the replica that --router chose, "
         "whatever others could hold, to compare; joint: as paper, and replicas also become "
         "one and split again if fewer requests are predicted to be late")
      ->check(one_of({"off", "paper", "layers", "neighbours", "joint"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option(
         "--drop", options.drop,
         "What replicas do while queued requests lack KV. off: they wait; paper: replicas "
         "drop layers that others hold, as in KunServe, and fetch them back after it; "
         "released: the same by the vote of KunServe's released code, to compare; joint: "
         "they drop layers if that is predicted to cost less than waiting, a lower precision "
         "or other groups")
      ->check(one_of({"off", "paper", "released", "joint"}))
      ->capture_default_str()
      ->group("Devices");
  app.add_option(
         "--regroup-at-once", options.holds_at_once,
         "Most halves of layers that a group's devices fetch, or drop with their KV, between two "
         "steps: more end sooner, and make these steps longer. Those that move KV are also no more "
         "than exchange it in about 0.25 s; 10000: all at once, without that bound, to compare")
      ->type_name("N")
      ->check(whole_number(1, kAllAtOnce))
      ->capture_default_str()
      ->group("Devices");
  app.add_option(
         "--device-timeout", options.device_timeout_s,
         "Seconds after which devices that have a step to compute and end none have "
         "failed: their replica goes out of service, and its requests go on in others. A "
         "model with an intent is loaded on other devices, where its requests go on. 0: never. A "
         "step must take less")
      ->type_name("SECONDS")
      ->check(whole_number(0, 86'400))
      ->capture_default_str()
      ->group("Devices");
  app.add_option("--scaler-after", options.scaler_after_s,
                 "Seconds for which queued requests must lack KV, whatever policies free, before "
                 "more replicas are wanted (metric protean:replicas_wanted)")
      ->type_name("SECONDS")
      ->check(whole_number(0, 86'400))
      ->capture_default_str()
      ->group("Devices");
}

Status check_groups(const FleetOptions& options, const GroupOptions& group) {
  const std::string& scale = options.scale;
  const std::string& drop = options.drop;
  if (scale == "layers" && drop != "off") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--scale layers with --drop {}: only one of them may form groups by layers: "
                      "remove the other",
                      drop);
  }
  if (scale == "layers" && group.replicas < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--scale layers needs several replicas: add --data-parallel-size 2, or more");
  }
  if (scale != "off" && scale != "layers" && (group.replicas < 2 || group.most_tensor < 2)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--scale {} needs several replicas whose layers divide: add "
                      "--data-parallel-size 2 and --max-tensor-parallel-size 2, or more",
                      scale);
  }
  if (group.keeps_attention && (group.replicas < 2 || group.most_tensor < 2)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--keep-attention needs several replicas whose layers divide: add "
                      "--data-parallel-size 2 and --max-tensor-parallel-size 2, or more");
  }
  if (group.overlaps_kv && group.replicas < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--overlap-kv needs several replicas: add --data-parallel-size 2, or more");
  }
  if (drop != "off" && group.replicas < 2) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--drop {} needs several replicas: add --data-parallel-size 2, or more",
                      drop);
  }
  return {};
}

bool forms_groups(const FleetOptions& options) {
  return options.scale != "off" || options.drop != "off";
}

void prepare_for_groups(const FleetOptions& options, ModelOptions& model) {
  model.scales = options.scale != "off";
  model.equal_replicas = model.scales && options.scale != "layers";  // by shards
}

void set_policies(const FleetOptions& options, ReplicaOptions& replica) {
  replica.router = parse_router(options.router).value();
  replica.migrate = parse_migrate(options.migrate).value();
  replica.scale = parse_scale(options.scale).value();
  replica.drop = parse_drop(options.drop).value();
  replica.holds_at_once = options.holds_at_once;
  replica.scaler_after_ns = options.scaler_after_s * kNsPerS;
  replica.device_timeout_ns = options.device_timeout_s * kNsPerS;
}

}  // namespace protean
