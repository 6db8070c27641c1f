#pragma once

#include <span>

namespace protean::cpu {

// One device's side of the rows of the residual stream that pass from device to device where the
// next component of the model is on other devices. `stop` is a stop on a step's way, as in
// SharedExchange. All devices make the calls of a step in the order of its stops, and steps in the
// same order, so waiting cannot end in a circle.
class HandOver {
 public:
  virtual ~HandOver() = default;

  // Waits until a device has sent all rows that others need before a stop.
  virtual void await(int from, int stop) = 0;
  // Returns rows of the step, from `first_row` on, that have arrived at this device.
  virtual std::span<const float> arrived(int first_row, int rows) = 0;
  // Tells that this device has taken the rows that it needs at a stop.
  virtual void taken(int stop) = 0;

  // Sends rows of the step, from `first_row` on, once the receiver has taken what it was sent
  // before: at the stop `taken_last` of this step, or if that is -1, in an earlier step.
  virtual void send(int to, int taken_last, int first_row, std::span<const float> rows) = 0;
  // Tells that this device has sent all rows that others need after a stop.
  virtual void sent(int stop) = 0;
};

}  // namespace protean::cpu
