#pragma once

namespace protean {

// How many replicas a model has in service, and how many its load asks for. A scaler, which starts
// and stops servers, can follow it (KunServe section 4.1).
struct ReplicasWanted {
  int serving = 1;
  int wanted = 1;  // at least all replicas of the fleet, those out of service too

  friend bool operator==(const ReplicasWanted&, const ReplicasWanted&) = default;
};

}  // namespace protean
