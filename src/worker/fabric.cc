#include "worker/fabric.h"

#include <utility>

namespace protean {

Result<std::unique_ptr<Fabric>> Fabric::create(const Limits& limits) {
  std::unique_ptr<Fabric> fabric(new Fabric(limits));
  Result<cpu::Mailboxes> mailboxes =
      cpu::Mailboxes::map({.devices = limits.devices,
                           .rows = limits.rows,
                           .hidden = limits.hidden,
                           .steps_in_flight = limits.steps_in_flight});
  if (!mailboxes) {
    return mailboxes.error();
  }
  fabric->mailboxes_ = std::move(*mailboxes);
  return fabric;
}

Fabric::Fabric(const Limits& limits) : limits_(limits), board_(limits.devices, limits.spins) {}

}  // namespace protean
