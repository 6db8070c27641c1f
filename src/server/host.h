#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/server.h"
#include "server/service.h"

namespace protean {

// A model of a server: its service, and the sink of its engines' outputs, which they call from
// their thread. Answers, background work, undelivered outputs and the loader share it, so it
// outlives its removal while one of them needs it.
struct Host final : TokenSink, std::enable_shared_from_this<Host> {
  using Post = std::function<void(std::shared_ptr<Host> to, OutputBatch batch)>;

  Host(HostedModel hosted, const std::string& version, const Environment& environment, Post how)
      : keeps(std::move(hosted.keeps)),
        intent(std::move(hosted.intent)),
        plan(std::move(hosted.plan)),
        configurations(std::move(hosted.configurations)),
        no_intent(std::move(hosted.no_intent)),
        post(std::move(how)),
        service(hosted.limits, hosted.model,
                {.model_name = hosted.model.names.front(), .version = version}, environment,
                hosted.inbox) {
    service.share = std::move(hosted.share);
  }
  void emit(OutputBatch batch) override { post(shared_from_this(), std::move(batch)); }

  const std::shared_ptr<const void> keeps;  // destroyed after the service, which refers to it
  std::string intent;                       // that chose the model's configuration; empty: none did
  IntentPlan plan;                          // for this intent
  const ListConfigurations configurations;  // empty: none are kept
  const std::string no_intent;              // why no intent can choose for it; empty: one can
  double load_s = 0;                        // time that loading it took last; 0: it never was
  const Post post;
  Service service;
};

}  // namespace protean
