#include "replica/variant_packing.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "host/machine.h"

namespace protean {
namespace {

class VariantPacking {
 public:
  VariantPacking(VariantsOfPolicy wanted, std::function<void(Packing)> told)
      : wanted_(std::move(wanted)), told_(std::move(told)), total_(wanted_.variants->kept_count()) {
    auto planned = wanted_.variants->plan_packing(wanted_.order);
    if (planned.ok()) {
      planned_ = *std::move(planned);
      done_ = total_ - std::ssize(planned_);
    } else {
      end(planned.error().message);
    }
    reads_ahead_ = done_ == total_ && wanted_.ladder.size() > 1;
    if (done_ < total_ && failure_.empty()) {
      log::info("packing {} parts of the model in the background, for morphs", total_ - done_);
    }
    tell();
  }

  bool go_on(const Pace& pace) {
    while (next_ < planned_.size()) {
      const Status packed = pack(planned_[next_], pace);
      if (!packed && packed.error().code == ErrorCode::kUnavailable) {
        return true;
      }
      if (packed) {
        ++next_;
        ++done_;
      } else {
        end(packed.error().message);
      }
      tell();
    }
    return reads_ahead_ && read_ahead(pace);
  }

 private:
  static bool has_room_for(std::int64_t bytes) { return free_memory_bytes() >= 2 * bytes; }

  Status pack(const ComponentVariant& which, const Pace& pace) {
    const std::int64_t bytes = wanted_.variants->size(which);
    return has_room_for(bytes)
               ? wanted_.variants->pack_planned(which, pace)
               : make_error(ErrorCode::kExhausted,
                            "to pack a part of {}, twice as much memory has to be free",
                            format_bytes(bytes));
  }

  void end(const std::string& failure) {
    failure_ = failure;
    log::warning("not all layers are packed: {}", failure);
    wanted_.variants->end_packing();
    planned_.resize(next_);
  }

  void tell() const {
    Packing packing{.done = done_, .total = total_, .missing = {}, .failure = failure_};
    for (std::size_t i = next_; i < planned_.size(); ++i) {
      const SwapComponent swap{planned_[i].layer, planned_[i].component, planned_[i].precision};
      if (packing.missing.empty() || packing.missing.back() != swap) {  // one for all shards
        packing.missing.push_back(swap);
      }
    }
    told_(std::move(packing));
  }

  bool read_ahead(const Pace& pace) {
    const Precision first = wanted_.ladder[1];
    return has_room_for(wanted_.variants->bytes_at(first)) &&
           wanted_.variants->read_ahead(wanted_.order, first, read_, pace);
  }

  const VariantsOfPolicy wanted_;
  const std::function<void(Packing)> told_;
  std::vector<ComponentVariant> planned_;  // variants that the cache lacked
  std::size_t next_ = 0;
  std::size_t read_ = 0;    // ahead
  std::int64_t done_ = 0;   // variants on disk
  std::int64_t total_ = 0;  // variants that are to be on disk
  bool reads_ahead_ = false;
  std::string failure_;
};

}  // namespace

BackgroundTask prepare_variants(VariantsOfPolicy wanted, std::function<void(Packing)> told) {
  auto packing = std::make_shared<VariantPacking>(std::move(wanted), std::move(told));
  return [packing](const Pace& pace) { return packing->go_on(pace); };
}

}  // namespace protean
