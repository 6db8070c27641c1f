#include "model/variant_store.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "device/cpu/memory.h"
#include "model/file_descriptor.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

// True if layers of the two models can replace each other.
bool alike(const ModelSpec& a, const ModelSpec& b) {
  const AttentionSpec& x = a.attention;
  const AttentionSpec& y = b.attention;
  return a.layers == b.layers && a.hidden == b.hidden && a.ffn == b.ffn && a.vocab == b.vocab &&
         a.norm_eps == b.norm_eps && a.tied_embeddings == b.tied_embeddings &&
         a.rope.pairing == b.rope.pairing && a.rope.theta == b.rope.theta && x.heads == y.heads &&
         x.kv_heads == y.kv_heads && x.head_dim == y.head_dim && x.qkv_bias == y.qkv_bias &&
         x.output_bias == y.output_bias && x.qk_norm == y.qk_norm &&
         x.qk_norm_over_heads == y.qk_norm_over_heads && a.mlp == b.mlp && a.norms == b.norms &&
         a.multipliers == b.multipliers && a.parallel_halves == b.parallel_halves &&
         a.learned_positions == b.learned_positions && a.output_bias == b.output_bias;
}

std::string file_name(const ComponentVariant& which) {
  const std::string layer =
      which.component == Component::kEmbeddings ? "" : fmt::format("layer-{:03}.", which.layer);
  const std::string component =
      fmt::format("{}{}.{}", layer, to_string(which.component), to_string(which.precision));
  return which.shards == 1 ? component
                           : fmt::format("{}.{}-of-{}", component, which.shard, which.shards);
}

std::vector<Precision> stored_once(const std::vector<Precision>& precisions) {
  std::vector<Precision> stored;
  for (const Precision precision : precisions) {
    if (std::find(stored.begin(), stored.end(), weight_only(precision)) == stored.end()) {
      stored.push_back(weight_only(precision));
    }
  }
  return stored;
}

Precision stored_embeddings_precision(Precision layers) {
  return weight_only(default_embeddings_precision(layers));
}

// Locks a folder, so that two processes do not pack the same component. The lock ends with the
// process. If files cannot be locked, both processes pack, and both results are right.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : file_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {}

  // Returns false if another process has the lock.
  bool try_lock() const {
    return !file_.valid() || ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

 private:
  FileDescriptor file_;
};

// Waits until `try_lock` succeeds. Returns false if `pace` says stop.
template <class TryLock>
bool wait_for(const TryLock& try_lock, const Pace& pace) {
  constexpr std::chrono::milliseconds kAskAgain(5);
  while (!try_lock()) {
    if (pace && !pace(0)) {
      return false;
    }
    std::this_thread::sleep_for(kAskAgain);
  }
  return true;
}

Error called_off() {
  return make_error(ErrorCode::kUnavailable, "packing was called off");
}

}  // namespace

fs::path default_variant_directory() {
  // XDG demands that a relative path is ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME");
      cache != nullptr && fs::path(cache).is_absolute()) {
    return fs::path(cache) / "protean";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache" / "protean";
}

VariantStore::VariantStore(const ModelSpec& spec, VariantStoreOptions options)
    : spec_(spec), options_(std::move(options)) {}

Result<std::unique_ptr<VariantStore>> VariantStore::open(
    const VariantSource& model, const std::map<Precision, VariantSource>& sources,
    VariantStoreOptions options) {
  if (options.directory.empty()) {
    options.directory = default_variant_directory();
  }
  std::map<Precision, const VariantSource*> own;
  for (const auto& [precision, source] : sources) {
    own[weight_only(precision)] = &source;
  }
  options.precisions = stored_once(options.precisions);
  auto store =
      std::unique_ptr<VariantStore>(new VariantStore(model.checkpoint->spec(), std::move(options)));
  if (store->options_.directory.empty()) {
    store->keep_no_more("no folder for packed weights: neither XDG_CACHE_HOME nor HOME is set");
  }
  Result<ModelIdentity> identity = identify_model(model.path, store->spec_);
  if (!identity) {
    return identity.error();
  }
  store->model_ = *identity;
  for (const Precision precision : kPrecisions) {
    const auto found = own.find(precision);
    const VariantSource& source = found == own.end() ? model : *found->second;
    if (const Status added = store->add_source(precision, source); !added) {
      return added.error();
    }
  }
  store->open_folders();
  return store;
}

Status VariantStore::add_source(Precision precision, const VariantSource& source) {
  if (!alike(source.checkpoint->spec(), spec_)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is another model: its layers cannot stand for this one's at {}",
                      source.path.string(), to_string(precision));
  }
  if (const int group = source.checkpoint->spec().stored.group; group != spec_.stored.group) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} shares scales among {} weights, this model at any precision among {}: "
                      "quantise it with --group {}",
                      source.path.string(), group, spec_.stored.group, spec_.stored.group);
  }
  const Result<ModelIdentity> identity = identify_model(source.path, spec_);
  if (!identity) {
    return identity.error();
  }
  sources_[precision] = {source.checkpoint, *identity, nullptr};
  return {};
}

// Opens the folders that are not open.
void VariantStore::open_folders() {
  if (options_.directory.empty()) {
    return;
  }
  std::string failure;
  {
    const std::lock_guard lock(keeping_);
    for (auto& entry : sources_) {
      Source& source = entry.second;
      const auto same = std::find_if(sources_.begin(), sources_.end(), [&](const auto& other) {
        return other.second.identity == source.identity && other.second.folder != nullptr;
      });
      if (same != sources_.end()) {
        source.folder = same->second.folder;
        continue;
      }
      Result<CacheFolder> folder = CacheFolder::open(options_.directory, source.identity.hex());
      if (!folder) {
        failure = folder.error().message;
        continue;
      }
      remove_unfinished(folder->path());
      source.folder = std::make_shared<const CacheFolder>(std::move(*folder));
    }
  }
  if (!failure.empty()) {
    keep_no_more(fmt::format("no folder for packed weights: {}", failure));
  }
}

void VariantStore::keep_again() {
  if (options_.directory.empty()) {
    return;
  }
  {
    const std::lock_guard lock(keeping_);
    why_not_kept_.clear();
  }
  open_folders();
}

std::shared_ptr<const CacheFolder> VariantStore::folder_of(const Source& source) const {
  const std::lock_guard lock(keeping_);
  return source.folder;
}

fs::path VariantStore::model_directory() const {
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const auto& entry) {
    return entry.second.identity == model_;
  });
  const auto folder = found == sources_.end() ? nullptr : folder_of(found->second);
  return folder == nullptr ? fs::path() : folder->path();
}

std::string VariantStore::why_not_kept() const {
  const std::lock_guard lock(keeping_);
  return why_not_kept_;
}

// Records the first reason; the store does not try again before keep_again().
void VariantStore::keep_no_more(const std::string& why) {
  const std::lock_guard lock(keeping_);
  if (why_not_kept_.empty()) {
    why_not_kept_ = why;
    log::warning("{}: what is not there is packed each time it is needed", why);
  }
}

bool VariantStore::is_kept(const ComponentVariant& which) const {
  return std::any_of(options_.precisions.begin(), options_.precisions.end(), [&](Precision kept) {
    return (which.component == Component::kEmbeddings ? stored_embeddings_precision(kept) : kept) ==
           which.precision;
  });
}

fs::path VariantStore::file_of(const ComponentVariant& which) const {
  const auto folder = folder_of(sources_.at(which.precision));
  return folder == nullptr || !is_kept(which) ? fs::path() : folder->path() / file_name(which);
}

Status VariantStore::pack(const ComponentVariant& which, std::byte* memory, const Pace& pace) {
  std::unique_lock reading(packing_, std::defer_lock);
  ++readers_;
  const bool may_read = wait_for([&] { return reading.try_lock(); }, pace);
  --readers_;
  return may_read ? load_component(*sources_.at(which.precision).checkpoint, which, memory, pace)
                  : Status(called_off());
}

void VariantStore::keep(const ComponentVariant& which, std::span<const std::byte> body,
                        const Pace& pace) {
  const fs::path path = file_of(which);
  if (path.empty() || !why_not_kept().empty() || is_planned(which)) {
    return;
  }
  restore(path.parent_path());
  const Status written =
      write_variant(path, sources_.at(which.precision).identity, which, body, pace);
  if (!written && written.error().code != ErrorCode::kUnavailable) {
    keep_no_more(written.error().message);
  }
}

// Makes a folder that was removed meanwhile again. If that fails, so does writing to it.
void VariantStore::restore(const fs::path& folder) {
  const std::lock_guard lock(keeping_);
  std::error_code unknown;
  if (!fs::exists(folder, unknown)) {
    if (auto again = CacheFolder::open(folder.parent_path(), folder.filename()); again.ok()) {
      restored_.insert_or_assign(folder, *std::move(again));
    }
  }
}

bool VariantStore::is_planned(const ComponentVariant& which) const {
  const std::lock_guard lock(keeping_);
  return std::find(planned_.begin(), planned_.end(), which) != planned_.end();
}

std::string VariantStore::remark_on(const ComponentVariant& which, const Status& read) const {
  if (!is_kept(which) || is_planned(which)) {
    return {};
  }
  const std::string why = why_not_kept();
  const bool damaged = !read.ok() && read.error().code != ErrorCode::kNotFound;
  return fmt::format("packed from the checkpoint: {}",
                     damaged || why.empty() ? read.error().message : why);
}

Status VariantStore::read(const ComponentVariant& asked, std::span<std::byte> memory,
                          const Pace& pace, std::string* remark) {
  ComponentVariant which = asked;
  which.precision = weight_only(asked.precision);
  check(which.layer >= 0 && which.layer < spec_.layers && std::ssize(memory) == size(which),
        "memory is a component of the model");
  const fs::path path = file_of(which);
  Status got;
  if (!path.empty()) {
    got = read_variant(path, sources_.at(which.precision).identity, which, memory, pace);
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
  if (remark != nullptr) {
    *remark = remark_on(which, got);
  }
  keep(which, memory, pace);
  return {};
}

Status VariantStore::pack_one(const ComponentVariant& which, const Pace& pace) {
  const fs::path path = file_of(which);
  const ModelIdentity& identity = sources_.at(which.precision).identity;
  if (check_variant(path, identity, which, size(which))) {
    return {};
  }
  restore(path.parent_path());
  const FolderLock lock(path.parent_path());
  if (!wait_for([&] { return lock.try_lock(); }, pace)) {
    return called_off();
  }
  if (check_variant(path, identity, which, size(which))) {  // another process has packed it
    return {};
  }
  const Result<cpu::Region> memory = cpu::Region::map(size(which));
  if (!memory) {
    return memory.error();
  }
  {
    std::unique_lock reading(packing_, std::defer_lock);
    if (!wait_for([&] { return reading.try_lock(); }, pace)) {
      return called_off();
    }
    Status packed =
        load_component(*sources_.at(which.precision).checkpoint, which, memory->data(), pace);
    if (!packed) {
      return packed;
    }
  }
  Status written = write_variant(path, identity, which,
                                 {memory->data(), static_cast<std::size_t>(memory->bytes())}, pace);
  if (!written && written.error().code != ErrorCode::kUnavailable) {
    keep_no_more(written.error().message);
  }
  return written;
}

std::vector<ComponentVariant> VariantStore::variants_of(std::span<const SwapTarget> targets,
                                                        Precision precision) const {
  std::vector<ComponentVariant> variants;
  for (const SwapTarget& target : targets) {
    for (const Component half : halves_of(target)) {
      for (int shard = 0; shard < options_.shards; ++shard) {
        variants.push_back({target.layer, half, precision, shard, options_.shards});
      }
    }
  }
  for (int shard = 0; shard < options_.shards; ++shard) {
    variants.push_back({0, Component::kEmbeddings, stored_embeddings_precision(precision), shard,
                        options_.shards});
  }
  return variants;
}

std::vector<ComponentVariant> VariantStore::variants_at(Precision precision) const {
  return variants_of(swap_targets(spec_.layers, false), precision);
}

// An empty order is front to back.
std::vector<ComponentVariant> VariantStore::kept_variants(std::span<const SwapTarget> order) const {
  std::vector<ComponentVariant> variants;
  for (const Precision precision : options_.precisions) {
    for (const ComponentVariant& more :
         order.empty() ? variants_at(precision) : variants_of(order, precision)) {
      if (std::find(variants.begin(), variants.end(), more) ==
          variants.end()) {  // several precisions share embeddings
        variants.push_back(more);
      }
    }
  }
  return variants;
}

bool VariantStore::read_ahead(std::span<const SwapTarget> targets, Precision precision,
                              std::size_t& next, const Pace& pace) const {
  const std::vector<ComponentVariant> variants = variants_of(targets, weight_only(precision));
  while (next < variants.size() && read_through(file_of(variants[next]), pace)) {
    ++next;
  }
  return next < variants.size();
}

std::int64_t VariantStore::bytes_at(Precision precision) const {
  std::int64_t bytes = 0;
  for (const ComponentVariant& which : variants_at(weight_only(precision))) {
    bytes += size(which);
  }
  return bytes;
}

// Returns the variants whose files are missing or have a wrong header.
std::vector<ComponentVariant> VariantStore::missing(std::span<const SwapTarget> order) const {
  std::vector<ComponentVariant> missing = kept_variants(order);
  std::erase_if(missing, [this](const ComponentVariant& which) {
    const ModelIdentity& identity = sources_.at(which.precision).identity;
    return check_variant(file_of(which), identity, which, size(which)).ok();
  });
  return missing;
}

void VariantStore::make_room(std::span<const ComponentVariant> missing) const {
  std::int64_t wanted_bytes = 0;
  for (const ComponentVariant& which : missing) {
    wanted_bytes += VariantHeader::kBytes + size(which);
  }
  const CacheTrim trim = trim_cache(options_.directory, options_.most_bytes - wanted_bytes);
  const std::int64_t all_bytes = trim.kept_bytes + wanted_bytes;
  if (trim.models > 0) {
    log::info("variant cache {}: removed the packed weights of {} unused models, {}",
              options_.directory.string(), trim.models, format_bytes(trim.removed_bytes));
  }
  if (all_bytes > options_.most_bytes) {
    log::warning("variant cache {}: what is in use takes {}, more than the {} it may have",
                 options_.directory.string(), format_bytes(all_bytes),
                 format_bytes(options_.most_bytes));
  }
}

Status VariantStore::check_folders() const {
  const std::vector<ComponentVariant> kept = kept_variants({});
  return std::any_of(kept.begin(), kept.end(),
                     [this](const ComponentVariant& which) { return file_of(which).empty(); })
             ? make_error(ErrorCode::kExhausted, "there is no folder to keep packed weights in")
             : Status();
}

Result<std::vector<ComponentVariant>> VariantStore::plan_packing(
    std::span<const SwapTarget> order) {
  if (const Status folders = check_folders(); !folders) {
    return folders.error();
  }
  std::vector<ComponentVariant> planned = missing(order);
  make_room(planned);
  const std::lock_guard lock(keeping_);
  planned_ = planned;
  return planned;
}

Status VariantStore::pack_planned(const ComponentVariant& which, const Pace& pace) {
  Status packed = pack_one(which, [&](std::int64_t bytes) { return readers_ == 0 && pace(bytes); });
  if (packed) {
    const std::lock_guard lock(keeping_);
    std::erase(planned_, which);
  }
  return packed;
}

void VariantStore::end_packing() {
  const std::lock_guard lock(keeping_);
  planned_.clear();
}

Status VariantStore::pack_missing(const Progress& progress) {
  if (Status folders = check_folders(); !folders) {
    return folders;
  }
  make_room(missing({}));
  const std::vector<ComponentVariant> wanted = kept_variants({});
  std::int64_t done = 0;
  for (const ComponentVariant& which : wanted) {
    if (Status packed = pack_one(which, {}); !packed) {
      return packed;
    }
    if (progress) {
      progress(++done, std::ssize(wanted));
    }
  }
  return {};
}

}  // namespace protean
