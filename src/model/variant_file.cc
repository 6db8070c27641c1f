#include "model/variant_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/file_descriptor.h"

namespace protean {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "PROTEANV";
// Must be raised whenever the header, the order of a component's tensors (weights.cc), a packed
// format (device/cpu/packed_matrix.h) or the rounding of weights changes.
constexpr std::uint32_t kVersion = 8;
// A chunk is still in L2 when it is hashed, and is short enough not to delay a short step.
constexpr std::int64_t kChunkBytes = 256 * kKiB;
constexpr std::string_view kUnfinished = ".unfinished-";

// Offsets of the header's fields.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kLayerAt = 12;
constexpr std::size_t kComponentAt = 16;
constexpr std::size_t kWeightsAt = 20;
constexpr std::size_t kModelAt = 24;
constexpr std::size_t kBodyBytesAt = 40;
constexpr std::size_t kBodyChecksumAt = 48;
constexpr std::size_t kShardAt = 56;
constexpr std::size_t kShardsAt = 60;
constexpr std::size_t kFieldsEnd = 64;
constexpr std::size_t kChecksumAt = VariantHeader::kBytes - 8;

void put(std::span<std::byte> bytes, std::size_t at, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) {
    bytes[at + static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i) & 0xFFU);
  }
}

std::uint64_t get(std::span<const std::byte> bytes, std::size_t at, int width) {
  std::uint64_t value = 0;
  for (int i = 0; i < width; ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[at + static_cast<std::size_t>(i)]) << (8 * i);
  }
  return value;
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Computes the XXH3 of data that comes in pieces.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    check(state_ != nullptr, "memory for a hash");
    XXH3_128bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  XXH128_hash_t digest() const { return XXH3_128bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// Calls `visit(chunk, offset)` for each chunk until it fails or `pace` says stop.
template <class Visit>
Status visit_chunks(std::span<const std::byte> bytes, const Pace& pace, Visit visit) {
  for (std::int64_t at = 0; at < std::ssize(bytes); at += kChunkBytes) {
    const std::int64_t count = std::min(kChunkBytes, std::ssize(bytes) - at);
    const auto chunk = bytes.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
    if (Status done = visit(chunk, at); !done) {
      return done;
    }
    if (pace && !pace(count)) {
      return make_error(ErrorCode::kUnavailable, "it was called off");
    }
  }
  return {};
}

Result<std::uint64_t> body_hash(std::span<const std::byte> body, const Pace& pace) {
  Hasher hasher;
  const Status hashed =
      visit_chunks(body, pace, [&](std::span<const std::byte> chunk, std::int64_t) {
        hasher.add(chunk);
        return Status();
      });
  return hashed ? Result<std::uint64_t>(hasher.digest().low64) : hashed.error();
}

// Returns the number of bytes read, which is less than asked for at the end of the file.
Result<std::int64_t> read_at(const FileDescriptor& file, std::span<std::byte> out,
                             std::int64_t offset) {
  std::int64_t done = 0;
  while (done < std::ssize(out)) {
    const ssize_t got = ::pread(file.get(), out.data() + done, out.size() - done, offset + done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return make_error(ErrorCode::kInternal, "{}", std::strerror(errno));
    }
    if (got == 0) {
      break;
    }
    done += got;
  }
  return done;
}

Status write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return make_error(ErrorCode::kExhausted, "{}", std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  return {};
}

Error corrupt(const fs::path& path, std::string_view why) {
  return make_error(ErrorCode::kCorrupt, "{} {}", path.string(), why);
}

std::string describe(const ComponentVariant& which) {
  const std::string shard =
      which.shards == 1 ? "" : fmt::format(", shard {} of {}", which.shard, which.shards);
  return fmt::format("{} at {}{}", component_name(which.layer, which.component),
                     to_string(which.precision), shard);
}

// Opens a file whose header must match the wanted variant.
struct OpenVariant {
  FileDescriptor file;
  VariantHeader header;
};

Result<OpenVariant> open_variant(const fs::path& path, const ModelIdentity& model,
                                 const ComponentVariant& which, std::int64_t body_bytes) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInternal;
    return make_error(code, "cannot open {}: {}", path.string(), std::strerror(errno));
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return corrupt(path, "is not a regular file");
  }
  std::array<std::byte, VariantHeader::kBytes> bytes{};
  const Result<std::int64_t> got = read_at(file, bytes, 0);
  if (!got) {
    return make_error(got.error().code, "cannot read {}: {}", path.string(), got.error().message);
  }
  const auto header = VariantHeader::parse(std::span(bytes).first(static_cast<std::size_t>(*got)));
  if (!header) {
    return corrupt(path, header.error().message);
  }
  if (!(header->model == model)) {
    return corrupt(path, "is of another model");
  }
  if (!(header->which == which)) {
    return corrupt(path, fmt::format("holds {}, not {}", describe(header->which), describe(which)));
  }
  const std::int64_t want = VariantHeader::kBytes + body_bytes;
  if (header->body_bytes != body_bytes || status.st_size != want) {
    return corrupt(path, fmt::format("has {} bytes, not {}", status.st_size, want));
  }
  return OpenVariant{std::move(file), *header};
}

// A temporary file in the folder of the file that it will replace. Locked while its writer lives.
class UnfinishedFile {
 public:
  static Result<UnfinishedFile> create(const fs::path& path) {
    for (;;) {
      std::string name = path.parent_path() / (std::string(kUnfinished) + "XXXXXX");
      FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
      if (!file.valid()) {
        return make_error(ErrorCode::kExhausted, "{}", std::strerror(errno));
      }
      // remove_unfinished() may have locked the file first, taken it for a dead writer's and
      // removed it.
      struct stat status {};
      (void)::flock(file.get(), LOCK_EX);
      if (::fstat(file.get(), &status) == 0 && status.st_nlink == 0) {
        continue;
      }
      (void)::fchmod(file.get(), 0644);
      return UnfinishedFile(std::move(file), std::move(name));
    }
  }
  UnfinishedFile(UnfinishedFile&& other) noexcept
      : file_(std::move(other.file_)), name_(std::exchange(other.name_, {})) {}
  UnfinishedFile& operator=(UnfinishedFile&&) = delete;
  ~UnfinishedFile() {
    if (!name_.empty()) {
      (void)::unlink(name_.c_str());
    }
  }

  int get() const { return file_.get(); }

  Status finish(const fs::path& path) {
    if (::fsync(file_.get()) != 0 || ::rename(name_.c_str(), path.c_str()) != 0) {
      return make_error(ErrorCode::kExhausted, "{}", std::strerror(errno));
    }
    name_.clear();
    // Syncs the folder, which stores the name. An error is ignored: some file systems cannot.
    const FileDescriptor folder(
        ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.valid()) {
      (void)::fsync(folder.get());
    }
    return {};
  }

 private:
  UnfinishedFile(FileDescriptor file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}

  FileDescriptor file_;
  std::string name_;
};

// Returns the files that determine a model's weights.
Result<std::vector<fs::path>> weight_files(const fs::path& model) {
  std::error_code error;
  if (!fs::is_directory(model, error)) {
    return std::vector{model};
  }
  std::vector<fs::path> files;
  for (fs::directory_iterator at(model, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
        name == "config.json" || name == "quantize_config.json") {
      files.push_back(at->path());
    }
  }
  if (error) {
    return make_error(ErrorCode::kNotFound, "cannot list {}: {}", model.string(), error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status add_file(Hasher& hasher, const fs::path& path) {
  constexpr std::int64_t kLookedAt = kMiB;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) {
    return make_error(ErrorCode::kNotFound, "cannot open {}: {}", path.string(),
                      std::strerror(errno));
  }
  std::vector<std::byte> begin(
      static_cast<std::size_t>(std::min<std::int64_t>(status.st_size, kLookedAt)));
  const Result<std::int64_t> got = read_at(file, begin, 0);
  if (!got) {
    return make_error(got.error().code, "cannot read {}: {}", path.string(), got.error().message);
  }
  hasher.add(fmt::format("{} {}", path.filename().string(), status.st_size));
  // Small files are identified by their content, large ones by their time too.
  if (status.st_size > kLookedAt) {
    hasher.add(fmt::format(" {}.{:09}", status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
  }
  hasher.add(begin);
  return {};
}

}  // namespace

std::string ModelIdentity::hex() const {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

Result<ModelIdentity> identify_model(const fs::path& model, const ModelSpec& spec) {
  const auto files = weight_files(model);
  if (!files) {
    return files.error();
  }
  Hasher hasher;
  hasher.add(fmt::format("protean variants {} of {} layers {} hidden {} ffn {}", kVersion,
                         spec.architecture, spec.layers, spec.hidden, spec.ffn));
  for (const fs::path& path : *files) {
    if (const Status added = add_file(hasher, path); !added) {
      return added.error();
    }
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hasher.digest());
  ModelIdentity identity;
  std::memcpy(identity.bytes.data(), canonical.digest, identity.bytes.size());
  return identity;
}

std::array<std::byte, VariantHeader::kBytes> VariantHeader::encode() const {
  std::array<std::byte, kBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, kVersionAt, kVersion, 4);
  put(bytes, kLayerAt, static_cast<std::uint64_t>(which.layer), 4);
  put(bytes, kComponentAt, static_cast<std::uint64_t>(which.component), 4);
  put(bytes, kWeightsAt, static_cast<std::uint64_t>(which.precision.weights), 4);
  std::copy(model.bytes.begin(), model.bytes.end(), bytes.begin() + kModelAt);
  put(bytes, kBodyBytesAt, static_cast<std::uint64_t>(body_bytes), 8);
  put(bytes, kBodyChecksumAt, body_checksum, 8);
  put(bytes, kShardAt, static_cast<std::uint64_t>(which.shard), 4);
  put(bytes, kShardsAt, static_cast<std::uint64_t>(which.shards), 4);
  put(bytes, kChecksumAt, hash_of(std::span(bytes).first(kChecksumAt)), 8);
  return bytes;
}

Result<VariantHeader> VariantHeader::parse(std::span<const std::byte> bytes) {
  const auto refused = [](std::string_view why) {
    return make_error(ErrorCode::kCorrupt, "{}", why);
  };
  if (std::ssize(bytes) < kBytes) {
    return refused("ends within its header");
  }
  bytes = bytes.first(kBytes);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return refused("holds no packed weights");
  }
  if (get(bytes, kVersionAt, 4) != kVersion) {
    return refused("is of another version");
  }
  if (get(bytes, kChecksumAt, 8) != hash_of(bytes.first(kChecksumAt))) {
    return refused("has a damaged header");
  }
  const std::uint64_t layer = get(bytes, kLayerAt, 4);
  const std::uint64_t component = get(bytes, kComponentAt, 4);
  const std::uint64_t weights = get(bytes, kWeightsAt, 4);
  const std::uint64_t body_bytes = get(bytes, kBodyBytesAt, 8);
  const std::uint64_t shard = get(bytes, kShardAt, 4);
  const std::uint64_t shards = get(bytes, kShardsAt, 4);
  const auto padding = bytes.subspan(kFieldsEnd, kChecksumAt - kFieldsEnd);
  if (layer > INT32_MAX || component > static_cast<std::uint64_t>(Component::kEmbeddings) ||
      weights >= kWeightStorages.size() ||
      body_bytes > static_cast<std::uint64_t>(INT64_MAX - kBytes) || shards > INT32_MAX ||
      shard >= shards || std::any_of(padding.begin(), padding.end(), [](std::byte byte) {
        return byte != std::byte{0};
      })) {
    return refused("has a header that says nothing sensible");
  }
  VariantHeader header{.which = {static_cast<int>(layer), static_cast<Component>(component),
                                 weight_only(static_cast<WeightStorage>(weights)),
                                 static_cast<int>(shard), static_cast<int>(shards)},
                       .body_bytes = static_cast<std::int64_t>(body_bytes),
                       .body_checksum = get(bytes, kBodyChecksumAt, 8)};
  std::copy_n(bytes.begin() + kModelAt, header.model.bytes.size(), header.model.bytes.begin());
  return header;
}

Status write_whole(const fs::path& path, std::initializer_list<std::span<const std::byte>> pieces,
                   const Pace& pace) {
  const auto failed = [&](const Error& error) {
    return make_error(error.code, "cannot write {}: {}", path.string(), error.message);
  };
  Result<UnfinishedFile> file = UnfinishedFile::create(path);
  if (!file) {
    return failed(file.error());
  }
  std::int64_t begun = 0;  // bytes that the disk has begun to write
  for (const std::span<const std::byte> piece : pieces) {
    const Status written =
        visit_chunks(piece, pace, [&](std::span<const std::byte> chunk, std::int64_t) {
          Status chunk_written = write_all(file->get(), chunk);
          // Else the thread would wait for the whole file at the end.
          (void)::sync_file_range(file->get(), begun, std::ssize(chunk), SYNC_FILE_RANGE_WRITE);
          begun += std::ssize(chunk);
          return chunk_written;
        });
    if (!written) {
      return failed(written.error());
    }
  }
  if (const Status finished = file->finish(path); !finished) {
    return failed(finished.error());
  }
  return {};
}

Status write_variant(const fs::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::span<const std::byte> body,
                     const Pace& pace) {
  const Result<std::uint64_t> checksum = body_hash(body, pace);
  if (!checksum) {
    return checksum.error();
  }
  const VariantHeader header{
      .model = model, .which = which, .body_bytes = std::ssize(body), .body_checksum = *checksum};
  const auto bytes = header.encode();
  return write_whole(path, {bytes, body}, pace);
}

Status read_variant(const fs::path& path, const ModelIdentity& model, const ComponentVariant& which,
                    std::span<std::byte> body, const Pace& pace) {
  const auto variant = open_variant(path, model, which, std::ssize(body));
  if (!variant) {
    return variant.error();
  }
  (void)::posix_fadvise(variant->file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  Hasher hasher;
  for (std::int64_t at = 0; at < std::ssize(body); at += kChunkBytes) {
    const std::int64_t bytes = std::min(kChunkBytes, std::ssize(body) - at);
    const auto chunk = body.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
    const Result<std::int64_t> got = read_at(variant->file, chunk, VariantHeader::kBytes + at);
    if (!got) {
      return make_error(got.error().code, "cannot read {}: {}", path.string(), got.error().message);
    }
    if (*got != bytes) {
      return corrupt(path, "ended while it was read");
    }
    hasher.add(chunk);
    if (pace && !pace(bytes)) {
      return make_error(ErrorCode::kUnavailable, "reading {} was called off", path.string());
    }
  }
  if (hasher.digest().low64 != variant->header.body_checksum) {
    return corrupt(path, "is damaged: its checksum does not match its weights");
  }
  return {};
}

bool read_through(const fs::path& path, const Pace& pace) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> chunk(static_cast<std::size_t>(kChunkBytes));
  for (std::int64_t at = 0; file.valid(); at += kChunkBytes) {
    const Result<std::int64_t> got = read_at(file, chunk, at);
    if (!got || *got == 0) {
      break;
    }
    if (!pace(*got)) {
      return false;
    }
  }
  return true;
}

Status check_variant(const fs::path& path, const ModelIdentity& model,
                     const ComponentVariant& which, std::int64_t body_bytes) {
  const auto variant = open_variant(path, model, which, body_bytes);
  return variant.ok() ? Status() : variant.error();
}

void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(kUnfinished)) {
      continue;
    }
    const FileDescriptor file(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.valid() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      (void)::unlink(at->path().c_str());
    }
  }
}

}  // namespace protean
