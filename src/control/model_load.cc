#include "control/model_load.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace protean {

void ModelLoad::sample(TimeNs now_ns, int running) {
  samples_.push_back({now_ns, running});
  while (samples_.size() > 1 && samples_[1].at_ns <= now_ns - window_ns_) {
    samples_.pop_front();
  }
}

bool ModelLoad::is_full() const {
  return !samples_.empty() && samples_.back().at_ns - samples_.front().at_ns >= window_ns_;
}

double ModelLoad::busy() const {
  const auto busy = std::count_if(samples_.begin(), samples_.end(),
                                  [](const Sample& sample) { return sample.running > 0; });
  return samples_.empty() ? 0 : static_cast<double>(busy) / static_cast<double>(samples_.size());
}

double ModelLoad::busy_error() const {
  struct Part {
    int samples = 0;
    int busy = 0;
  };
  std::array<Part, 8> parts;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    Part& part = parts[i * parts.size() / samples_.size()];
    ++part.samples;
    part.busy += samples_[i].running > 0 ? 1 : 0;
  }
  const double mean = busy();
  double squares = 0;
  double count = 0;
  for (const Part& part : parts) {
    if (part.samples > 0) {
      const double share = static_cast<double>(part.busy) / part.samples;
      squares += (share - mean) * (share - mean);
      ++count;
    }
  }
  return count > 1 ? 2 * std::sqrt(squares / (count - 1) / count) : 1;
}

int ModelLoad::batch() const {
  std::int64_t requests = 0;
  std::int64_t busy = 0;
  for (const Sample& sample : samples_) {
    requests += sample.running;
    busy += sample.running > 0 ? 1 : 0;
  }
  return busy == 0 ? 1
                   : static_cast<int>(
                         std::lround(static_cast<double>(requests) / static_cast<double>(busy)));
}

}  // namespace protean
