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
#include "model/checkpoint.h"
#include "model/variant_cache.h"
#include "model/variant_file.h"
#include "model/weights.h"

namespace protean {

// Where weights are packed from, and the files that tell it from others.
struct VariantSource {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::filesystem::path path;
};

struct VariantStoreOptions {
  std::filesystem::path directory;  // empty: default_variant_directory()
  std::vector<Precision> precisions = {Precision::kBf16, Precision::kW8, Precision::kW4,
                                       Precision::kW3};  // that are kept on disk
  // Of all models' packed layers; to keep to it, those of models that nobody uses are removed.
  std::int64_t most_bytes = 64 * kGiB;
  int shards = 1;  // that each half is kept in (cost/shards.h)
};

// $XDG_CACHE_HOME/protean or ~/.cache/protean; empty where neither is set.
std::filesystem::path default_variant_directory();

// Every half of every layer at every precision, and the embeddings at those that they have beside
// such layers, packed once and kept on disk, so that memory need hold only what serves (MorphServe
// section 4.3 keeps all of them in host memory). A file for each, so that damage or a full disk
// costs one of them, and any number of processes may read and pack. What disk cannot give is packed
// from the checkpoint: a cache that is missing, damaged or not writable costs time and a warning,
// never an answer. Any thread; the checkpoints are the store's alone while it works, because they
// are read by one thread at a time.
class VariantStore {
 public:
  // A precision with a source of its own, such as a copy that `protean quantize` made, is packed
  // from that: its norms, which carry the scales, move with its matrices. One that stores the same
  // weights as another shares its source and files.
  static Result<std::unique_ptr<VariantStore>> open(
      const VariantSource& model, const std::map<Precision, VariantSource>& sources = {},
      VariantStoreOptions options = {});

  const ModelSpec& spec() const { return spec_; }
  std::int64_t size(const ComponentVariant& which) const {
    return component_size(shard_spec(spec_, which.shards), which.component, which.precision);
  }

  // Fills 64-byte-aligned memory of size(asked), paced. Fails with kUnavailable when told to stop,
  // else only where neither the file nor the checkpoint has the weights. `remark`, if there is one,
  // is told why a component that should be on disk was not, or not whole.
  Status read(const ComponentVariant& asked, std::span<std::byte> memory, const Pace& pace = {},
              std::string* remark = nullptr);

  // Reads the files of these targets at this precision, and of the embeddings beside such layers,
  // so that the first swaps find them in the system's memory. False once there is nothing more to
  // read; else it was told to stop, and `next` is where to go on.
  bool read_ahead(std::span<const SwapTarget> targets, Precision precision, std::size_t& next,
                  const Pace& pace) const;
  std::int64_t bytes_at(Precision precision) const;  // of all layers and the embeddings beside them

  // Packs what is not there, or by its header not right, after making room for it. Fails where
  // nothing can be kept, after which reading goes on as above; kUnavailable when told to stop
  // (asked between panels).
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;  // components
  Status pack_missing(const Progress& progress = {}, const Pace& pace = {});

  // The folder of the model's own variants, where what is known of them is kept too; empty where
  // nothing can be kept.
  std::filesystem::path model_directory() const;
  const ModelIdentity& model() const { return model_; }
  const ModelIdentity& source_at(
      Precision precision) const {  // of the weights: the model's, or not
    return sources_.at(weight_only(precision)).identity;
  }
  std::int64_t packed_on_demand() const { return packed_on_demand_; }  // because disk had them not
  std::int64_t damaged_found() const { return damaged_found_; }

 private:
  struct Source {
    std::shared_ptr<const Checkpoint> checkpoint;
    ModelIdentity identity;
    std::shared_ptr<const CacheFolder> folder;  // null: nothing is kept
  };

  VariantStore(const ModelSpec& spec, VariantStoreOptions options);
  Status add_source(Precision precision, const VariantSource& source);
  std::shared_ptr<const CacheFolder> folder_of(const ModelIdentity& model);
  bool is_kept(const ComponentVariant& which) const;
  std::vector<ComponentVariant> kept_variants() const;
  std::vector<ComponentVariant> variants_at(Precision precision) const;
  // Of these targets, and the embeddings beside layers like them.
  std::vector<ComponentVariant> variants_of(std::span<const SwapTarget> targets,
                                            Precision precision) const;
  std::string why_not_kept() const;
  void keep_no_more(const std::string& why);
  void make_room() const;
  std::filesystem::path file_of(const ComponentVariant& which) const;  // empty: not kept
  Status pack(const ComponentVariant& which, std::byte* memory, const Pace& pace);
  void keep(const ComponentVariant& which, std::span<const std::byte> body);
  std::string remark_on(const ComponentVariant& which, const Status& read) const;
  Status pack_one(const ComponentVariant& which, const Pace& pace);

  const ModelSpec spec_;
  const VariantStoreOptions options_;
  ModelIdentity model_;
  std::map<Precision, Source> sources_;
  std::mutex packing_;          // checkpoints are read by one thread at a time
  mutable std::mutex keeping_;  // of what follows
  std::string why_not_kept_;    // empty: what is packed is kept
  std::atomic<std::int64_t> packed_on_demand_ = 0;
  std::atomic<std::int64_t> damaged_found_ = 0;
};

}  // namespace protean
