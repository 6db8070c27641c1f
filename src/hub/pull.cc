#include "hub/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "base/units.h"
#include "http/resume.h"
#include "hub/blob_file.h"
#include "hub/cache.h"
#include "hub/file_lock.h"
#include "hub/hub_answer.h"
#include "hub/hub_client.h"
#include "hub/repo_listing.h"
#include "hub/web_client.h"

namespace protean::hub {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

constexpr int kFilesAtOnce = 4;
constexpr int kMostWrongSums = 2;
constexpr std::chrono::milliseconds kLockPause{200};
constexpr std::int64_t kProgressSteps = 1000;

std::int64_t size_on_disk(const fs::path& path) {
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  return failed ? -1 : static_cast<std::int64_t>(size);
}

Result<std::int64_t> free_bytes(const fs::path& folder) {
  std::error_code failed;
  const fs::space_info space = fs::space(folder, failed);
  if (failed) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}", folder.string(), failed.message());
  }
  return static_cast<std::int64_t>(space.available);
}

class Puller {
 public:
  Puller(const HubSettings& settings, const ModelName& name, const PullEvents& events)
      : name_(name),
        events_(events),
        cache_(settings.cache),
        hub_(io_, settings, name, events.on_note) {}

  Result<fs::path> run();

 private:
  asio::awaitable<Result<fs::path>> pull();
  asio::awaitable<Status> fetch_all(std::vector<std::string> paths);
  asio::awaitable<Status> describe_all(const std::vector<std::string>& paths);
  Status summarise();
  asio::awaitable<void> work();
  asio::awaitable<Status> fetch(const RepoFile& file);
  asio::awaitable<Result<FileLock>> lock(const RepoFile& file);
  asio::awaitable<Status> fill(const RepoFile& file, BlobFile& blob);
  asio::awaitable<Status> receive(const RepoFile& file, BlobFile& blob);
  asio::awaitable<Result<WebAnswer>> receive_once(const RepoFile& file, BlobFile& blob);
  void count(std::int64_t bytes);
  void fail(Error error);

  const ModelName& name_;
  const PullEvents& events_;
  Cache cache_;
  asio::io_context io_{1};
  HubClient hub_;
  RepoListing listing_;
  std::vector<RepoFile> files_;  // to fetch
  std::size_t next_ = 0;         // the first of files_ that no worker has taken
  int workers_ = 0;
  std::optional<Error> failure_;  // the first one, which ends all workers
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
  std::int64_t shown_ = 0;
};

Result<fs::path> Puller::run() {
  Result<fs::path> result = make_error(ErrorCode::kInternal, "the pull did not end");
  const auto begin = [&]() -> asio::awaitable<void> { result = co_await pull(); };
  asio::co_spawn(io_, begin(), asio::detached);
  io_.run();
  return result;
}

asio::awaitable<Result<fs::path>> Puller::pull() {
  auto listing = co_await hub_.list();
  if (!listing.ok()) {
    co_return listing.error();
  }
  listing_ = *std::move(listing);
  if (is_commit(name_.branch()) && listing_.commit != name_.branch()) {
    co_return make_error(ErrorCode::kCorrupt, "the hub answers with commit {} instead of {}",
                         listing_.commit, name_.branch());
  }
  std::vector<std::string> paths;
  for (const RepoFile& file : listing_.files) {
    paths.push_back(file.path);
  }
  auto needed = needed_files(name_, paths);
  if (!needed.ok()) {
    co_return needed.error();
  }
  if (Status ready = cache_.prepare(name_.repo); !ready.ok()) {
    co_return ready.error();
  }
  // An index may name shards that are not called as usual: then a second round fetches them.
  const fs::path snapshot = cache_.snapshot(name_.repo, listing_.commit);
  for (std::vector<std::string> missing = *needed; true;) {
    const Status fetched = co_await fetch_all(missing);
    if (!fetched.ok()) {
      co_return fetched.error();
    }
    auto model = look_into_snapshot(name_, snapshot);
    if (!model.ok()) {
      co_return model.error();
    }
    if (model->missing.empty()) {
      const Status noted = cache_.set_ref(name_, listing_.commit);
      co_return noted.ok() ? Result<fs::path>(model->path) : noted.error();
    }
    if (model->missing == missing) {
      break;
    }
    missing = std::move(model->missing);
    for (const std::string& path : missing) {
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) {
        co_return make_error(ErrorCode::kNotFound, "{} has no {}, which a model needs", name_.repo,
                             path);
      }
    }
  }
  co_return make_error(ErrorCode::kInternal, "{} stays incomplete in {}", name_.repo,
                       snapshot.string());
}

asio::awaitable<Status> Puller::describe_all(const std::vector<std::string>& paths) {
  files_.clear();
  next_ = 0;
  for (const std::string& path : paths) {
    auto file = std::find_if(listing_.files.begin(), listing_.files.end(),
                             [&](const RepoFile& listed) { return listed.path == path; });
    if (file->size < 0 || file->digest.empty()) {
      auto described = co_await hub_.describe(listing_.commit, path);
      if (!described.ok()) {
        co_return described.error();
      }
      *file = *std::move(described);
    }
    files_.push_back(*file);
  }
  co_return Status();
}

// Announces what is to be fetched, unless the disk has no room for it.
Status Puller::summarise() {
  PullSummary summary{.commit = listing_.commit, .files = files_.size()};
  total_ = done_ = shown_ = 0;
  for (const RepoFile& file : files_) {
    const fs::path blob = cache_.blob(name_.repo, file.digest);
    summary.bytes += file.size;
    if (size_on_disk(blob) != file.size) {
      const std::int64_t begun = size_on_disk(blob.string() + ".incomplete");
      summary.fetch_bytes += file.size - std::clamp<std::int64_t>(begun, 0, file.size);
    }
  }
  const auto room = free_bytes(cache_.root());
  if (!room.ok()) {
    return room.error();
  }
  summary.free_bytes = *room;
  total_ = summary.bytes;
  if (summary.fetch_bytes > summary.free_bytes) {
    return make_error(ErrorCode::kExhausted,
                      "{} needs {} more in {}, which has {} free: make room, or set HF_HUB_CACHE "
                      "to another folder",
                      to_string(name_), format_bytes(summary.fetch_bytes), cache_.root().string(),
                      format_bytes(summary.free_bytes));
  }
  if (events_.on_summary) {
    events_.on_summary(summary);
  }
  return {};
}

asio::awaitable<Status> Puller::fetch_all(std::vector<std::string> paths) {
  Status described = co_await describe_all(paths);
  if (described.ok()) {
    described = summarise();
  }
  if (!described.ok()) {
    co_return described;
  }
  for (int i = 0; i < kFilesAtOnce; ++i) {
    ++workers_;
    asio::co_spawn(io_, work(), asio::detached);
  }
  const std::chrono::milliseconds poll(20);
  while (workers_ > 0) {
    co_await hub_.sleep(poll);
  }
  co_return failure_ ? Status(*failure_) : Status();
}

asio::awaitable<void> Puller::work() {
  while (!failure_ && next_ < files_.size()) {
    const RepoFile file = files_[next_++];
    const Status fetched = co_await fetch(file);
    if (!fetched.ok()) {
      fail(fetched.error());
    }
  }
  --workers_;
}

void Puller::fail(Error error) {
  if (!failure_) {
    failure_ = std::move(error);
    hub_.close();
  }
}

// Puts a file into the cache, unless it is there.
asio::awaitable<Status> Puller::fetch(const RepoFile& file) {
  const auto held = co_await lock(file);
  if (!held.ok()) {
    co_return held.error();
  }
  const fs::path place = cache_.blob(name_.repo, file.digest);
  if (size_on_disk(place) == file.size) {
    count(file.size);
    co_return cache_.link(name_.repo, listing_.commit, file.path, file.digest);
  }
  const fs::path draft = place.string() + ".incomplete";
  auto blob = BlobFile::open(draft, file);
  if (!blob.ok()) {
    co_return blob.error();
  }
  Status done = co_await fill(file, *blob);
  if (done.ok()) {
    done = blob->publish(place);
  }
  if (done.ok()) {
    done = cache_.link(name_.repo, listing_.commit, file.path, file.digest);
  }
  co_return done;
}

asio::awaitable<Result<FileLock>> Puller::lock(const RepoFile& file) {
  const fs::path path = cache_.lock(name_.repo, file.digest);
  while (true) {
    auto held = FileLock::try_lock(path);
    if (!held.ok()) {
      co_return held.error();
    }
    if (held->has_value()) {
      co_return **std::move(held);
    }
    if (failure_) {
      co_return *failure_;
    }
    co_await hub_.sleep(kLockPause);
  }
}

// Goes on with a blob until it is whole and right. What is wrong is fetched once more.
asio::awaitable<Status> Puller::fill(const RepoFile& file, BlobFile& blob) {
  for (bool more = true; more && !failure_;) {
    const std::int64_t before = blob.size();
    const auto read = blob.read_back();
    if (!read.ok()) {
      co_return read.error();
    }
    count(blob.size() - before);
    more = *read;
    co_await asio::post(io_, kResume);  // lets other files go on
  }
  for (int wrong = 1; true; ++wrong) {
    const Status received = co_await receive(file, blob);
    if (!received.ok() && received.error().code != ErrorCode::kCorrupt) {
      co_return received;
    }
    const std::string digest = received.ok() ? blob.digest() : "";
    if (digest == file.digest) {
      co_return Status();
    }
    const std::string why =
        received.ok() ? fmt::format("its {} is {}, but the hub states {}",
                                    digest.size() == 40 ? "SHA-1" : "SHA-256", digest, file.digest)
                      : received.error().message;
    count(-blob.size());
    if (Status restarted = blob.restart(); !restarted.ok()) {
      co_return restarted;
    }
    if (wrong == kMostWrongSums) {
      co_return make_error(ErrorCode::kCorrupt, "{} of {} came wrong twice: {}", file.path,
                           name_.repo, why);
    }
    if (events_.on_note) {
      events_.on_note(fmt::format("{}: {}; it is fetched again", file.path, why));
    }
  }
}

// Asks for the bytes that are missing until the blob is whole. Each new byte makes the tries begin
// again.
asio::awaitable<Status> Puller::receive(const RepoFile& file, BlobFile& blob) {
  std::int64_t most = blob.size();
  int tries = 0;
  while (!blob.is_whole()) {
    const auto answer = co_await receive_once(file, blob);
    if (failure_) {
      co_return *failure_;
    }
    if (blob.is_whole()) {
      break;
    }
    const bool ended_early =
        answer.ok() && (answer->status() / 100 == 2 || answer->status() == 416);
    Error why = !answer.ok()  ? answer.error()
                : ended_early ? make_error(ErrorCode::kUnavailable, "{} of {} bytes came",
                                           blob.size(), file.size)
                              : hub_.explain(*answer);
    if (why.code != ErrorCode::kUnavailable) {
      co_return why;
    }
    if (answer.ok() && answer->status() == 416) {
      count(-blob.size());
      if (Status restarted = blob.restart(); !restarted.ok()) {
        co_return restarted;
      }
    }
    tries = blob.size() > most ? 1 : tries + 1;
    most = std::max(most, blob.size());
    const std::chrono::seconds asked = answer.ok() ? asked_pause(*answer) : std::chrono::seconds(0);
    const std::string text = file.path + ": " + why.message;
    const bool again = co_await hub_.pause(tries, asked, text);
    if (!again) {
      co_return failure_ ? *failure_ : make_error(why.code, "{}", text);
    }
  }
  co_return Status();
}

asio::awaitable<Result<WebAnswer>> Puller::receive_once(const RepoFile& file, BlobFile& blob) {
  bool begun = false;
  const auto append = [&](const ResponseReader& fields, std::string_view bytes) -> Status {
    if (!std::exchange(begun, true)) {
      const std::int64_t first = fields.status() == 206 ? first_byte_of(fields) : 0;
      if (first == 0 && blob.size() > 0) {  // the server sends the file from its beginning
        count(-blob.size());
        if (Status restarted = blob.restart(); !restarted.ok()) {
          return restarted;
        }
      }
      if (first != blob.size()) {
        return make_error(ErrorCode::kCorrupt, "the server sends other bytes than were asked for");
      }
    }
    const std::int64_t before = blob.size();
    Status appended = blob.append(bytes);
    count(blob.size() - before);
    return appended;
  };
  const WebClient::BodySink sink = append;
  co_return co_await hub_.read(listing_.commit, file.path, blob.size(), sink);
}

void Puller::count(std::int64_t bytes) {
  done_ += bytes;
  const bool visible =
      std::abs(done_ - shown_) >= std::max<std::int64_t>(1, total_ / kProgressSteps);
  if (events_.on_bytes && (visible || done_ == total_)) {
    shown_ = done_;
    events_.on_bytes(done_, total_);
  }
}

}  // namespace

Result<fs::path> pull(const HubSettings& settings, const ModelName& name,
                      const PullEvents& events) {
  if (settings.offline) {
    return make_error(ErrorCode::kUnavailable, "{} cannot be fetched: HF_HUB_OFFLINE is set",
                      to_string(name));
  }
  return Puller(settings, name, events).run();
}

Result<std::optional<LocalModel>> find_in_cache(const HubSettings& settings,
                                                const ModelName& name) {
  const Cache cache(settings.cache);
  const auto commit = cache.commit_of(name);
  std::error_code failed;
  if (!commit || !fs::is_directory(cache.snapshot(name.repo, *commit), failed)) {
    return std::optional<LocalModel>();
  }
  auto model = look_into_snapshot(name, cache.snapshot(name.repo, *commit));
  if (!model.ok()) {
    return model.error();
  }
  return std::optional(*std::move(model));
}

Result<fs::path> obtain(const HubSettings& settings, const ModelName& name,
                        const PullEvents& events) {
  const auto model = find_in_cache(settings, name);
  if (model.ok() && *model && (*model)->missing.empty()) {
    return (*model)->path;
  }
  if (!settings.offline) {
    return pull(settings, name, events);
  }
  if (model.ok() && *model) {
    return make_error(ErrorCode::kNotFound,
                      "{} is not whole in the cache {} ({} is missing), and HF_HUB_OFFLINE is set: "
                      "unset it to fetch the rest",
                      to_string(name), settings.cache.string(), (*model)->missing.front());
  }
  std::vector<std::string> known;
  for (const CachedRepo& repo : Cache(settings.cache).list()) {
    known.push_back(repo.repo);
  }
  const std::string near = nearest(name.repo, known);
  return make_error(ErrorCode::kNotFound,
                    "{} is not in the cache {}, and HF_HUB_OFFLINE is set: {}", to_string(name),
                    settings.cache.string(),
                    near.empty() ? "unset it to fetch the model" : "did you mean " + near + "?");
}

}  // namespace protean::hub
