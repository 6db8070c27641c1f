#include "model/variant_store.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu/memory.h"
#include "model/file_descriptor.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::array kPrecisions = {Precision::kF32, Precision::kBf16, Precision::kW8,
                                    Precision::kW4, Precision::kW3};

// Weights of both can stand for each other, layer by layer.
bool alike(const ModelSpec& a, const ModelSpec& b) {
  const AttentionSpec& x = a.attention;
  const AttentionSpec& y = b.attention;
  return a.layers == b.layers && a.hidden == b.hidden && a.ffn == b.ffn && a.vocab == b.vocab &&
         a.norm_eps == b.norm_eps && a.tied_embeddings == b.tied_embeddings &&
         a.rope.pairing == b.rope.pairing && a.rope.theta == b.rope.theta && x.heads == y.heads &&
         x.kv_heads == y.kv_heads && x.head_dim == y.head_dim && x.qkv_bias == y.qkv_bias &&
         x.output_bias == y.output_bias && x.qk_norm == y.qk_norm;
}

// So that two processes do not pack the same half at the same time. Held by a process, it goes when
// the process does; where files cannot be locked both of them pack, and both end right.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : file_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (file_.valid()) {
      (void)::flock(file_.get(), LOCK_EX);
    }
  }

 private:
  FileDescriptor file_;
};

}  // namespace

fs::path default_variant_directory() {
  // XDG's word: what is not absolute is to be ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME");
      cache != nullptr && fs::path(cache).is_absolute()) {
    return fs::path(cache) / "protean";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache" / "protean";
}

VariantStore::VariantStore(const ModelSpec& spec, std::vector<Precision> precisions)
    : spec_(spec), precisions_(std::move(precisions)) {}

Result<std::unique_ptr<VariantStore>> VariantStore::open(
    const VariantSource& model, const std::map<Precision, VariantSource>& sources,
    VariantStoreOptions options) {
  const fs::path directory =
      options.directory.empty() ? default_variant_directory() : options.directory;
  if (directory.empty()) {
    log::warning("packed weights are not kept: neither XDG_CACHE_HOME nor HOME is set");
  }
  auto store = std::unique_ptr<VariantStore>(
      new VariantStore(model.checkpoint->spec(), std::move(options.precisions)));
  Result<ModelIdentity> identity = identify_model(model.path, store->spec_);
  if (!identity) {
    return identity.error();
  }
  store->model_ = *identity;
  for (const Precision precision : kPrecisions) {
    const auto own = sources.find(precision);
    const VariantSource& source = own == sources.end() ? model : own->second;
    if (const Status added = store->add_source(precision, source, directory); !added) {
      return added.error();
    }
  }
  return store;
}

Status VariantStore::add_source(Precision precision, const VariantSource& source,
                                const fs::path& directory) {
  if (!alike(source.checkpoint->spec(), spec_)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is another model: its layers cannot stand for this one's at {}",
                      source.path.string(), to_string(precision));
  }
  const Result<ModelIdentity> identity = identify_model(source.path, spec_);
  if (!identity) {
    return identity.error();
  }
  Source& added = sources_[precision];
  added = {source.checkpoint, *identity, {}};
  if (directory.empty()) {
    return {};
  }
  const fs::path folder = directory / identity->hex();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error && keeping_.exchange(false)) {
    log::warning("packed weights are not kept: {} cannot be made: {}", folder.string(),
                 error.message());
  }
  // One that is there can be read even where nothing can be written.
  if (fs::is_directory(folder, error)) {
    added.folder = folder;
    remove_unfinished(folder);
  }
  return {};
}

fs::path VariantStore::model_directory() const {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const auto& entry) {
    return entry.second.identity == model_;
  });
  return found == sources_.end() ? fs::path() : found->second.folder;
}

fs::path VariantStore::file_of(const HalfVariant& which) const {
  const fs::path& folder = sources_.at(which.precision).folder;
  const bool kept =
      std::find(precisions_.begin(), precisions_.end(), which.precision) != precisions_.end();
  return folder.empty() || !kept
             ? fs::path()
             : folder / fmt::format("layer-{:03}.{}.{}", which.layer, to_string(which.half),
                                    to_string(which.precision));
}

Status VariantStore::pack(const HalfVariant& which, std::byte* memory, const Pace& pace) {
  const std::lock_guard lock(packing_);
  return load_half(*sources_.at(which.precision).checkpoint, which, memory, pace);
}

void VariantStore::keep(const HalfVariant& which, std::span<const std::byte> body) {
  const fs::path path = file_of(which);
  if (path.empty() || !keeping_) {
    return;
  }
  const Status written = write_variant(path, sources_.at(which.precision).identity, which, body);
  if (!written && keeping_.exchange(false)) {
    log::warning("{}; what is not there is packed each time it is needed", written.error().message);
  }
}

Status VariantStore::read(const HalfVariant& which, std::span<std::byte> memory, const Pace& pace) {
  check(which.layer >= 0 && which.layer < spec_.layers && std::ssize(memory) == size(which),
        "memory is a half of a layer that exists");
  const fs::path path = file_of(which);
  if (!path.empty()) {
    Status got = read_variant(path, sources_.at(which.precision).identity, which, memory, pace);
    if (got || got.error().code == ErrorCode::kUnavailable) {
      return got;
    }
    if (got.error().code != ErrorCode::kNotFound) {
      ++damaged_found_;
      log::warning("{}; packing it again", got.error().message);
    }
  }
  if (Status packed = pack(which, memory.data(), pace); !packed) {
    return packed;
  }
  ++packed_on_demand_;
  keep(which, memory);
  return {};
}

Status VariantStore::pack_one(const HalfVariant& which, const Pace& pace) {
  const fs::path path = file_of(which);
  const ModelIdentity& identity = sources_.at(which.precision).identity;
  if (check_variant(path, identity, which, size(which))) {
    return {};
  }
  const FolderLock lock(path.parent_path());
  if (check_variant(path, identity, which, size(which))) {  // another process was faster
    return {};
  }
  const Result<cpu::Region> memory = cpu::Region::map(size(which));
  if (!memory) {
    return memory.error();
  }
  if (Status packed = pack(which, memory->data(), pace); !packed) {
    return packed;
  }
  Status written = write_variant(path, identity, which,
                                 {memory->data(), static_cast<std::size_t>(memory->bytes())});
  keeping_ = written.ok();
  return written;
}

Status VariantStore::pack_missing(const Progress& progress, const Pace& pace) {
  std::vector<HalfVariant> wanted;
  for (const Precision precision : precisions_) {
    for (int layer = 0; layer < spec_.layers; ++layer) {
      for (const LayerHalf half : kLayerHalves) {
        wanted.push_back({layer, half, precision});
      }
    }
  }
  std::int64_t done = 0;
  for (const HalfVariant& which : wanted) {
    if (file_of(which).empty()) {
      return make_error(ErrorCode::kExhausted, "there is no folder to keep packed weights in");
    }
    if (Status packed = pack_one(which, pace); !packed) {
      return packed;
    }
    if (progress) {
      progress(++done, std::ssize(wanted));
    }
  }
  return {};
}

}  // namespace protean
