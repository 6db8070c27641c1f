#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "contract/morph.h"
#include "cost/shards.h"
#include "model/checkpoint.h"
#include "model/variant_cache.h"
#include "model/variant_file.h"
#include "model/weights.h"

namespace protean {

// A checkpoint to pack weights from, and its path, which identifies it.
struct VariantSource {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::filesystem::path path;
};

struct VariantStoreOptions {
  std::filesystem::path directory;  // empty: default_variant_directory()
  // Kept on disk, and packed in this order.
  std::vector<Precision> precisions = {Precision::kBf16, Precision::kW8, Precision::kW4,
                                       Precision::kW3};
  // Limit for the packed weights of all models. Weights of models not in use are removed to keep
  // it.
  std::int64_t most_bytes = 64 * kGiB;
  int shards = 1;  // shards of each component (cost/shards.h)
};

// Returns $XDG_CACHE_HOME/protean or ~/.cache/protean; empty if neither variable is set.
std::filesystem::path default_variant_directory();

// Keeps the packed weights of a model on disk: every half of every layer at every precision, and
// the embeddings at the default precisions for such layers. So memory holds only the variants that
// serve (MorphServe section 4.3 keeps all variants in host memory). Each variant has a file of its
// own, so damage or a full disk costs one variant, and any number of processes may read and pack. A
// variant that disk cannot give is packed from the checkpoint: a cache that is missing, damaged or
// not writable costs time and a warning, never an answer. Any thread may call. One thread at
// a time may read the checkpoints, and only through the store: pack_planned() yields to threads
// that read.
class VariantStore {
 public:
  // Packs precisions in `sources`, such as copies made by `protean quantize`, from those sources,
  // norms included, because AWQ's norms carry scales. Precisions that store the same weights share
  // a source and files.
  static Result<std::unique_ptr<VariantStore>> open(
      const VariantSource& model, const std::map<Precision, VariantSource>& sources = {},
      VariantStoreOptions options = {});

  const ModelSpec& spec() const { return spec_; }
  std::int64_t size(const ComponentVariant& which) const {
    return component_size(shard_spec(spec_, which.shards), which.component, which.precision);
  }

  // Fills 64-byte-aligned memory of size(asked), paced. Fails with kUnavailable if `pace` says
  // stop, and otherwise only if neither the file nor the checkpoint can be read. If a variant that
  // should be on disk was missing or damaged, writes the reason to `remark` unless it is null. A
  // variant that is planned to be packed is not expected on disk, and packing alone puts it there.
  Status read(const ComponentVariant& asked, std::span<std::byte> memory, const Pace& pace = {},
              std::string* remark = nullptr);

  // Reads the files of these targets at this precision, and of the embeddings for such layers, so
  // that the first swaps find them in the page cache. Returns true if `pace` says stop; `next` is
  // then the place to continue. Returns false if everything is read.
  bool read_ahead(std::span<const SwapTarget> targets, Precision precision, std::size_t& next,
                  const Pace& pace) const;
  // Returns the bytes of all layers and of the embeddings for such layers.
  std::int64_t bytes_at(Precision precision) const;

  // Makes room and packs variants whose files are missing or have a wrong header. If nothing can be
  // kept on disk, fails; read() then packs on demand.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;  // in components
  Status pack_missing(const Progress& progress = {});

  // Packs as pack_missing() does, in pieces, for a thread that has other tasks too. plan_packing()
  // makes room and returns the variants to pack, those of each precision in `order`; pack_planned()
  // packs one of them, or finds that another process has. It fails with kUnavailable if `pace` says
  // stop or another thread wants to read a checkpoint, and may then be called again. end_packing()
  // gives up the rest of the plan.
  Result<std::vector<ComponentVariant>> plan_packing(std::span<const SwapTarget> order);
  Status pack_planned(const ComponentVariant& which, const Pace& pace);
  void end_packing();

  // After a failure to write, the store keeps nothing more. From now on it tries again, also to
  // make its folders if that failed.
  void keep_again();
  std::int64_t kept_count() const { return std::ssize(kept_variants({})); }  // planned or on disk

  // The folder of the model's own variants, which also holds its profiles; empty if nothing can be
  // kept.
  std::filesystem::path model_directory() const;
  const ModelIdentity& model() const { return model_; }
  // Identifies the weights that variants at this precision are packed from.
  const ModelIdentity& source_at(Precision precision) const {
    return sources_.at(weight_only(precision)).identity;
  }

  // For tests: the variants that read() packed because disk did not have them, and the files that
  // it found damaged. The log and the remarks of read() tell users of both.
  std::int64_t packed_on_demand() const { return packed_on_demand_; }
  std::int64_t damaged_found() const { return damaged_found_; }

 private:
  struct Source {
    std::shared_ptr<const Checkpoint> checkpoint;
    ModelIdentity identity;
    std::shared_ptr<const CacheFolder> folder;  // null: nothing is kept; guarded by keeping_
  };

  VariantStore(const ModelSpec& spec, VariantStoreOptions options);
  Status add_source(Precision precision, const VariantSource& source);
  void open_folders();
  std::shared_ptr<const CacheFolder> folder_of(const Source& source) const;
  bool is_kept(const ComponentVariant& which) const;
  std::vector<ComponentVariant> kept_variants(std::span<const SwapTarget> order) const;
  std::vector<ComponentVariant> missing(std::span<const SwapTarget> order) const;
  std::vector<ComponentVariant> variants_at(Precision precision) const;
  // Returns the variants of these targets, and of the embeddings for such layers.
  std::vector<ComponentVariant> variants_of(std::span<const SwapTarget> targets,
                                            Precision precision) const;
  std::string why_not_kept() const;
  void keep_no_more(const std::string& why);
  void make_room(std::span<const ComponentVariant> missing) const;
  bool is_planned(const ComponentVariant& which) const;
  std::filesystem::path file_of(const ComponentVariant& which) const;  // empty: not kept
  Status pack(const ComponentVariant& which, std::byte* memory, const Pace& pace);
  void keep(const ComponentVariant& which, std::span<const std::byte> body, const Pace& pace);
  std::string remark_on(const ComponentVariant& which, const Status& read) const;
  Status pack_one(const ComponentVariant& which, const Pace& pace);
  Status check_folders() const;
  void restore(const std::filesystem::path& folder);

  const ModelSpec spec_;
  const VariantStoreOptions options_;
  ModelIdentity model_;
  std::map<Precision, Source> sources_;
  std::mutex packing_;                     // checkpoints are read by one thread at a time
  std::atomic<int> readers_ = 0;           // threads that wait for that, other than pack_planned()
  mutable std::mutex keeping_;             // guards the members below, and folders of sources_
  std::string why_not_kept_;               // empty: packed variants are kept
  std::vector<ComponentVariant> planned_;  // not packed yet
  std::map<std::filesystem::path, CacheFolder> restored_;
  std::atomic<std::int64_t> packed_on_demand_ = 0;
  std::atomic<std::int64_t> damaged_found_ = 0;
};

}  // namespace protean
