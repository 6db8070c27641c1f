#include "worker/kv_resizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace protean {

void KvResizer::prepare(MorphId id, const ResizeKv& resize) {
  auto asked = std::make_shared<Resize>();
  asked->id = id;
  asked->blocks = resize.blocks;
  {
    const std::lock_guard lock(mutex_);
    check(resizes_.emplace(id, asked).second, "a morph's step is prepared once");
  }
  setup_.thread->post_urgent([this, asked] {
    waiting_.push_back(asked);
    begin_next();
  });
}

std::shared_ptr<KvResizer::Resize> KvResizer::forget(MorphId id) {
  const std::lock_guard lock(mutex_);
  const auto found = resizes_.find(id);
  if (found == resizes_.end()) {
    return nullptr;
  }
  std::shared_ptr<Resize> resize = std::move(found->second);
  resizes_.erase(found);
  return resize;
}

bool KvResizer::prepares() {
  const std::lock_guard lock(mutex_);
  return std::any_of(resizes_.begin(), resizes_.end(),
                     [](const auto& one) { return !one.second->ready; });
}

Status KvResizer::grow(const Resize& resize) {
  if (resize.blocks < 1) {
    return make_error(ErrorCode::kInvalidArgument, "at least 1 block must stay");
  }
  if (resize.blocks <= setup_.kv->blocks()) {
    return {};
  }
  return setup_.kv->grow(resize.blocks,
                         [&] { return !resize.aborted && setup_.thread->may_go_on(); });
}

// Tries again to get pages: a fill that was just aborted may hold its pages until its task ends.
// The retry is posted as urgent, like all tasks here, so that it never runs within another resize.
bool KvResizer::put_off(const Error& why) {
  if (why.code != ErrorCode::kExhausted || open_->put_off || open_->aborted) {
    return false;
  }
  open_->put_off = true;
  waiting_.push_front(std::move(open_));
  setup_.thread->post([this] { setup_.thread->post_urgent([this] { begin_next(); }); });
  return true;
}

void KvResizer::begin_next() {
  while (open_ == nullptr && !waiting_.empty()) {
    std::shared_ptr<Resize> next = std::move(waiting_.front());
    waiting_.pop_front();
    if (next->aborted) {
      continue;
    }
    open_ = std::move(next);
    open_->blocks_before = setup_.kv->blocks();
    const Status grown = grow(*open_);
    if (grown) {
      open_->ready = true;  // abort or commit ends it
      if (!open_->aborted) {
        setup_.handlers.ready({.id = open_->id, .failure = std::nullopt});
      }
      return;
    }
    if (put_off(grown.error())) {
      return;
    }
    const std::shared_ptr<Resize> failed = std::move(open_);
    if (forget(failed->id) != nullptr) {
      setup_.handlers.ready({.id = failed->id,
                             .failure = make_error(grown.error().code, "{}: {}",
                                                   to_string(MorphStep(ResizeKv{failed->blocks})),
                                                   grown.error().message)});
    }
  }
}

// Runs on the paced thread.
void KvResizer::end(const Resize& resize) {
  if (open_.get() == &resize) {
    setup_.kv->shrink();
    open_ = nullptr;
  }
  begin_next();
}

void KvResizer::abort(MorphId id) {
  const std::shared_ptr<Resize> resize = forget(id);
  if (resize == nullptr) {
    return;
  }
  resize->aborted = true;
  setup_.thread->post_urgent([this, resize] {
    if (open_ == resize && resize->blocks_before < setup_.kv->blocks()) {
      setup_.kv->limit(resize->blocks_before);
    }
    end(*resize);
  });
}

bool KvResizer::commit(MorphId id) {
  const std::shared_ptr<Resize> resize = forget(id);
  if (resize == nullptr) {
    return false;
  }
  check(resize->ready, "what is committed is ready");
  if (resize->blocks < setup_.kv->blocks()) {
    setup_.kv->limit(resize->blocks);
  }
  setup_.thread->post_urgent([this, resize] {
    end(*resize);
    setup_.handlers.done({.id = resize->id, .pages_free = setup_.pool->free_pages()});
  });
  return true;
}

}  // namespace protean
