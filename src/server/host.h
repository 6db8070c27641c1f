#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/server.h"
#include "server/service.h"

namespace protean {

// A model of a server: its service, and where its engines emit from their thread. Answers share it,
// so that it outlives its removal as long as one of them needs it.
struct Host final : TokenSink {
  using Post = std::function<void(Service& to, OutputBatch batch)>;

  Host(HostedModel hosted, const std::string& version, const Environment& environment, Post how)
      : keeps(std::move(hosted.keeps)),
        post(std::move(how)),
        service(hosted.limits, hosted.model,
                {.model_name = hosted.model.names.front(), .version = version}, environment,
                hosted.inbox) {}
  void emit(OutputBatch batch) override { post(service, std::move(batch)); }

  const std::shared_ptr<const void> keeps;  // destroyed after the service, which refers to it
  const Post post;
  Service service;
};

}  // namespace protean
