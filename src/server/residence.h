#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "contract/configuration.h"
#include "contract/groups.h"
#include "contract/morph.h"

namespace protean {

// How long a model stays in memory after its last request if it never sleeps.
inline constexpr TimeNs kForeverNs = std::numeric_limits<TimeNs>::max();

// Why an operator's job ended that was taken back.
inline Error withdrawn() {
  return {ErrorCode::kUnavailable, "an operator took it back"};
}

// Whether the engines of a model are in memory. A model that sleeps has given its weights and its
// KV cache back; what is sent to it waits until it is awake.
enum class Residence { kAwake, kFallingAsleep, kAsleep, kWaking };

// Returns true if nothing computes before the model is loaded again: it sleeps or is about to.
constexpr bool sleeps(Residence residence) {
  return residence == Residence::kAsleep || residence == Residence::kFallingAsleep;
}

// Returns the name, such as "falling_asleep".
constexpr std::string_view to_string(Residence residence) {
  switch (residence) {
    case Residence::kAwake:
      return "awake";
    case Residence::kFallingAsleep:
      return "falling_asleep";
    case Residence::kAsleep:
      return "asleep";
    case Residence::kWaking:
      return "waking";
  }
  return "";
}

// A configuration of a model, and devices, in which it is predicted to keep its intent better.
struct PlannedMove {
  Configuration configuration;
  std::vector<int> devices;       // stage after stage, of all devices of the server
  std::vector<int> stage_layers;  // layers of each stage
  double saves_s = 0;             // busy seconds, over the window of the load
  double costs_s = 0;             // busy seconds, there and back
  bool in_place = false;          // the engine that serves is predicted to morph
  std::string why;
};

// What a model is to be served for: an intent, and the requests that estimates are for. A number of
// 0 is not known.
struct IntentWish {
  std::string intent;
  int batch = 0;  // requests at once
  int prompt_tokens = 0;
  int output_tokens = 0;
  // Share of the answers that have at most output_tokens tokens; 0: output_tokens is a mean.
  double output_quantile = 0;
  std::optional<PlannedMove> move = {};  // what was chosen already; nothing: a plan is to choose
  bool requests_wait = false;            // for the model, which serves nowhere until it is placed
};

// What a model has to do at this moment. Tokens are those for which its intent is planned, see
// with_load(); 0 if not known.
struct ModelSample {
  std::size_t model = 0;
  int running = 0;  // requests at once
  int prompt_tokens = 0;
  int output_tokens = 0;
  bool may_move = true;
};

// What was planned for an intent: the configuration that was chosen, and the estimates of all
// configurations as `protean plan --json` prints them. Empty and null if nothing was planned.
struct IntentPlan {
  std::string configuration;
  std::shared_ptr<const std::string> estimates;
};

// How a model comes to another configuration: its engine morphs to it, in place; or the model is
// loaded once more, and then either takes over all requests with their KV, or serves new requests
// as a second copy; or its devices have failed, and it is unloaded, and loaded on others, where its
// requests are computed again.
struct ConfigurationChange {
  std::optional<FormWish> in_place;  // nothing: it is loaded once more
  std::string why;
  bool hands_over = false;   // requests go on in what is loaded
  bool placed_anew = false;  // its devices have failed
  // It does not come that way: it is planned once more, without the move that its wish named.
  bool planned_again = false;
};

// The loads of which estimates are shown: all for which these numbers hold, of which 0 is any.
struct LoadFilter {
  int batch = 0;
  int prompt_tokens = 0;
  int output_tokens = 0;
};

// Returns the estimates that plans of a model have kept. Any thread may call.
using ListConfigurations = std::function<Result<boost::json::object>(const LoadFilter& wanted)>;

// How far the loader is in a deployment or a change of intent: in the fingerprint that it makes, or
// in loading weights. 0 is not begun.
struct JobProgress {
  int steps = 0;  // of a fingerprint that were timed
  int of_steps = 0;
  double loaded = 0;  // share of the layers on all devices
};

// How far the profiling of a model is.
struct ProfileProgress {
  int fingerprint = 0;   // that is being made, from 1 on
  int fingerprints = 0;  // that are made
  int steps = 0;         // of this fingerprint that were timed
  int of_steps = 0;
  int discarded = 0;  // times of this fingerprint during which requests came
};

// Loads the engines of a server's models and unloads them, one after the other, on a thread of its
// own. A model is named by its place among all models that the server ever had. The functions
// return at once; the server is told through Server::fell_asleep() and its neighbours when it is
// done.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;
  // The model has no requests, and its inbox gets nothing more until it is loaded again.
  virtual void unload(std::size_t model) = 0;
  virtual void load(std::size_t model) = 0;
  // Opens and loads a further model, which `fields` describes: "model", and flags of protean serve.
  // One that is not to be loaded is opened alone. Fails if the fields make no sense.
  virtual Status deploy(const std::string& name, const boost::json::object& fields, bool load) = 0;
  // Plans how to serve a model for another intent. If its engine can become that by a morph, now or
  // when it wakes, asks the server for it; else, if both fit in memory and KV is stored alike,
  // loads the model next to the one that serves, to which it hands its requests over; otherwise
  // opens the model to take the place of the one that serves: loaded if both fit in memory, else to
  // be loaded when the former one is removed.
  virtual void replace(std::size_t model, const IntentWish& wish) = 0;
  // Take back what was asked for, which then fails: at once if it has not begun, else when what it
  // times or loads at the moment is done. What has ended by then stays.
  virtual void take_back_deployment(const std::string& /*name*/) {}
  virtual void take_back_replacement(std::size_t /*model*/) {}
  virtual void take_back_profile(std::size_t /*model*/) {}
  // The morph that replace() asked for has ended. If it failed, the model is opened instead.
  virtual void morphed(std::size_t /*model*/, const Status& /*how*/) {}
  // The morph that replace() asked for does not begin, and nothing takes its place.
  virtual void forget_replacement(std::size_t /*model*/) {}
  // Takes each second a sample of every model that serves. Returns the move of one that may move
  // and for which it pays; nothing if there is none. Called on the io thread, which it does not
  // hold up.
  struct ModelToMove {
    std::size_t model = 0;
    IntentWish wish;
  };
  virtual std::optional<ModelToMove> choose_move(std::span<const ModelSample> /*samples*/) {
    return std::nullopt;
  }
  // Times the steps of a model anew, in moments without requests, for estimates of all its
  // configurations.
  virtual void profile(std::size_t model) = 0;
  // No engine has requests any more, see Server::quiet(). Called on the io thread.
  virtual void requests_ended() {}
  // The model's only replica is out of service. Unloads it and tells the server that it sleeps.
  // From then on nothing is placed on the devices that failed, and the model's requests, begun or
  // not, wait for replace(), which is to place it anew.
  virtual void lose(std::size_t /*model*/, const ReplicaFailure& /*failure*/) {}
  // The model takes no more requests. If its devices fail, or have failed, its requests end.
  virtual void leaves(std::size_t /*model*/) {}
  // Unloads a model that never comes back.
  virtual void remove(std::size_t model) = 0;
};

}  // namespace protean
