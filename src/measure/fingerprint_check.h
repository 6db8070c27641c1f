#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cost/fingerprint.h"
#include "cost/fit.h"

namespace protean {

// A fingerprint, and how far it is from steps of the whole model.
struct FingerprintCheck {
  struct Model {
    ModelEstimate estimate;
    std::optional<Latency> measured;  // latency of the whole model (iServe's L1)
    PredictionError error;            // error of the cost model, over all steps at this precision
  };
  Fingerprint found;
  std::vector<Model> models;
};

// Compares a fingerprint with timed steps of the whole model, which may be none.
FingerprintCheck check_fingerprint(const Fingerprint& found, std::span<const TimedStep> steps);

std::string to_text(const FingerprintCheck& check);
boost::json::object to_json(const FingerprintCheck& check);

}  // namespace protean
