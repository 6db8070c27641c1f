#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "contract/model_spec.h"
#include "joined_replicas.h"

// AMOEBA's base solutions, a plain copy, and the memory that a change takes, for reshard_bench. All
// walk the memory of all layers once, as a change of all layers does.

namespace protean::reshard {

inline constexpr int kTimes = 5;  // that a median is of

using Bytes = std::vector<char>;

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns memory for each device that has been written before.
inline std::vector<Bytes> written(int devices, std::int64_t each) {
  return std::vector<Bytes>(static_cast<std::size_t>(devices),
                            Bytes(static_cast<std::size_t>(each), 1));
}

// Lets a thread of each device work.
inline void on_all(int devices, const std::function<void(int)>& work) {
  std::vector<std::thread> others;
  for (int device = 1; device < devices; ++device) {
    others.emplace_back([&work, device] { work(device); });
  }
  work(0);
  for (std::thread& other : others) {
    other.join();
  }
}

// Returns the median of the milliseconds that something takes.
inline double median_ms(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    const Clock::time_point begin = Clock::now();
    work();
    times.push_back(milliseconds_since(begin));
  }
  return median(times);
}

// Returns the milliseconds that copying takes, on each device into memory of its own.
inline double plain_copy_ms(int devices, std::int64_t bytes) {
  const std::vector<Bytes> from = written(devices, bytes / devices);
  std::vector<Bytes> to = from;
  return median_ms([&] {
    on_all(devices, [&](int device) {
      const auto i = static_cast<std::size_t>(device);
      std::memcpy(to[i].data(), from[i].data(), from[i].size());
    });
  });
}

// AMOEBA's base solution for KV (section 3.1), layer by layer: the pieces of blocks that arrive go
// to reserved memory, and the pieces that stay move together. A piece of a block is adjacent here.
// In the paper's first layout it is of single tokens, which takes longer.
class MigrateAndDefragment {
 public:
  MigrateAndDefragment(int devices, int layers, std::int64_t block_bytes)
      : devices_(devices),
        layers_(layers),
        block_bytes_(block_bytes),
        live_(written(devices, layers * kLive * block_bytes)) {}

  // Reserves the memory for what arrives. It is used up by one run.
  void reserve() { reserved_ = written(devices_, layers_ * kLive * (devices_ - 1) * piece()); }
  void run() {
    std::barrier together(devices_);
    on_all(devices_, [&](int device) {
      for (int layer = 0; layer < layers_; ++layer) {
        migrate(layer, device);
        together.arrive_and_wait();
        defragment(layer, device);
      }
    });
  }

 private:
  std::int64_t piece() const { return block_bytes_ / devices_; }
  char* block(int device, int layer, std::int64_t index) {
    return live_[static_cast<std::size_t>(device)].data() + (layer * kLive + index) * block_bytes_;
  }
  void migrate(int layer, int device) {
    char* to = reserved_[static_cast<std::size_t>(device)].data() +
               layer * kLive * (devices_ - 1) * piece();
    for (int peer = 0; peer < devices_; ++peer) {
      for (std::int64_t index = 0; peer != device && index < kLive; ++index, to += piece()) {
        std::memcpy(to, block(peer, layer, index) + device * piece(),
                    static_cast<std::size_t>(piece()));
      }
    }
  }
  void defragment(int layer, int device) {
    char* to = block(device, layer, 0);
    for (std::int64_t index = 0; index < kLive; ++index, to += piece()) {
      std::memmove(to, block(device, layer, index) + device * piece(),
                   static_cast<std::size_t>(piece()));
    }
  }

  const int devices_;
  const int layers_;
  const std::int64_t block_bytes_;
  std::vector<Bytes> live_;
  std::vector<Bytes> reserved_;
};

// AMOEBA's base solution for the MLPs (section 3.2): the part that a device keeps moves to the
// front of a layer's memory, whose end is then given back. For gate and up, the part is adjacent;
// for down, it is a part of the inputs of each output.
class PartialSwap {
 public:
  PartialSwap(int devices, const ModelSpec& spec)
      : devices_(devices), spec_(spec), weights_(written(devices, spec.layers * 3 * matrix())) {}

  void run() {
    on_all(devices_, [&](int device) {
      for (int layer = 0; layer < spec_.layers; ++layer) {
        move(device, weights_[static_cast<std::size_t>(device)].data() + layer * 3 * matrix());
      }
    });
  }

 private:
  std::int64_t row() const { return std::int64_t{2} * spec_.ffn; }
  std::int64_t matrix() const { return spec_.hidden * row(); }
  void move(int device, char* layer) const {
    const std::int64_t part = matrix() / devices_;
    for (std::int64_t i = 0; i < 2; ++i) {
      std::memmove(layer + i * part, layer + i * matrix() + device * part,
                   static_cast<std::size_t>(part));
    }
    const std::int64_t piece = row() / devices_;
    for (std::int64_t output = 0; output < spec_.hidden; ++output) {
      std::memmove(layer + 2 * part + output * piece,
                   layer + 2 * matrix() + output * row() + device * piece,
                   static_cast<std::size_t>(piece));
    }
  }

  const int devices_;
  const ModelSpec spec_;
  std::vector<Bytes> weights_;
};

// Returns the memory of this process that is not a device's pages: statm counts those as shared.
inline std::int64_t private_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0;
  std::int64_t resident = 0;
  std::int64_t shared = 0;
  statm >> size >> resident >> shared;
  return (resident - shared) * 4096;
}

// Returns the most memory that `work` adds to what the process had, sampled while it runs.
inline std::int64_t extra_bytes(const std::function<void()>& work) {
  const std::int64_t before = private_bytes();
  std::atomic<std::int64_t> most = before;
  std::atomic<bool> ended = false;
  std::thread watch([&] {
    while (!ended) {
      most = std::max<std::int64_t>(most, private_bytes());
    }
  });
  work();
  most = std::max<std::int64_t>(most, private_bytes());
  ended = true;
  watch.join();
  return most - before;
}

}  // namespace protean::reshard
