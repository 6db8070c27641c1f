#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "contract/form.h"
#include "contract/step.h"
#include "device/cpu/memory.h"
#include "device/cpu/pages.h"
#include "device/cpu/shared_exchange.h"
#include "device/cpu/team.h"
#include "host/cpu_share.h"
#include "model/checkpoint.h"
#include "model/forward.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "worker/kv_store.h"
#include "worker/sampler.h"
#include "worker/step_rows.h"

namespace protean {

struct FingerprintRigOptions {
  ModelSpec spec;                 // the model with few layers and maybe a smaller vocabulary
  std::vector<Precision> layers;  // precisions that layers will have
  std::int64_t page_bytes = 0;    // page size of the pool that memory comes from; 0: no pool
  KvForm kv;
  std::vector<CpuShare> devices;  // several share every layer
  int max_step_tokens = 1;
  int max_positions = 1;
  std::function<bool()> await_turn = {};  // see Harvest; asked before each component is loaded
  // A step of a single device ends in the middle once it is true.
  std::function<bool()> disturbed = {};

  int shards() const { return static_cast<int>(devices.size()); }
};

// A device of a fingerprint, with its shards of the first few layers of a model and of its
// embedding matrix and LM head, at several precisions, and with one KV cache. Runs steps on a
// thread of its own, as a worker does. Weights have the sizes of the real ones but not their values
// (model/fingerprint_weights.h). Steps of devices that share layers wait for each other, so all of
// them begin a step before one is waited for; such steps draw no token.
class FingerprintDevice {
 public:
  // `board` is that of all devices, and outlives them.
  static Result<std::unique_ptr<FingerprintDevice>> create(const Checkpoint& checkpoint,
                                                           const FingerprintRigOptions& options,
                                                           int device, cpu::ExchangeBoard& board);
  ~FingerprintDevice();
  FingerprintDevice(const FingerprintDevice&) = delete;
  FingerprintDevice& operator=(const FingerprintDevice&) = delete;

  // Begins a step, whose plan lives until finish() returns.
  void begin(const StepPlan& plan, Precision precision, int layers);
  // Begins to read its share of the memory of FingerprintRig::read_left_out().
  void begin_reading(Precision precision);
  // Waits until the device has done what was begun.
  void finish() { done_.pop_all(); }

  double copy_bytes_per_us();

 private:
  // A step, or without a plan a read of other memory.
  struct Job {
    const StepPlan* plan = nullptr;
    const ModelWeights* weights = nullptr;
    int layers = 0;
    std::int64_t other_bytes = 0;
    bool whole = false;  // the step does not end in the middle
  };
  // Weights, KV and a buffer that is read in place of the layers that are left out.
  struct Memory {
    std::unique_ptr<cpu::PagePool> pool;  // null without pages
    std::vector<cpu::PageRange> pages;
    std::vector<cpu::Region> regions;
    std::vector<ModelWeights> weights;  // one for each precision of the options
    std::shared_ptr<KvStore> kv;
    cpu::Region other;
    std::vector<std::int64_t> left_out_bytes;  // bytes of `other` to read, by precision
  };
  class Loader;

  FingerprintDevice(const FingerprintRigOptions& options, int device, cpu::ExchangeBoard& board,
                    Memory memory, Scratch scratch);
  std::size_t place_of(Precision precision) const;
  void read_other(std::int64_t bytes);
  void fill_kv();
  void run_jobs();
  void run(const Job& job);
  void draw(const StepPlan& plan, const Forward& forward);

  const FingerprintRigOptions options_;
  const ModelSpec spec_;
  const cpu::GroupMembers members_;
  cpu::SharedExchange exchange_;
  std::uint64_t steps_ = 0;  // begun on the exchange
  const Memory memory_;
  Scratch scratch_;
  const RotaryTables rope_;
  cpu::Team team_;
  Sampler sampler_;
  StepRows rows_;                     // rows of the current step
  std::vector<std::uint8_t> usable_;  // logits without NaN and infinity, by row
  std::uint64_t other_sum_ = 0;       // sum of what was read, so that compilers keep the reads
  BoundedQueue<Job> jobs_{1};
  BoundedQueue<int> done_{1};
  std::thread thread_;  // last member: it uses the others
};

}  // namespace protean
