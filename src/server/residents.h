#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json/array.hpp>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "server/host.h"
#include "server/models.h"
#include "server/residence.h"

namespace protean {

// Which models of a server are in memory: lets those sleep that are not used, takes in models that
// operators deploy, and lets those go that they remove. Belongs to the io thread.
class Residents {
 public:
  // `hosts` has at least one. `keys` are those of the public port.
  Residents(boost::asio::io_context& io, std::vector<std::shared_ptr<Host>> hosts, ApiKeys keys,
            Clock clock);

  // Those that serve.
  Models& models() { return models_; }

  // From now on models may sleep, come and go. The loader outlives the use of this object; null:
  // nothing changes.
  void start(ModelLoader* loader);
  void stop() { timer_.cancel(); }
  TokenSink& sink(std::size_t model) const { return *hosts_.at(model); }

  // Begins to unload a model. Returns false if it is in use or models never sleep.
  bool put_to_sleep(Service& service);
  // Begins to deploy the model that a JSON object describes, and returns its name.
  Checked<std::string> deploy(const std::string& body);
  // Takes no more requests for a model, and removes it when those that it has have ended.
  Checked<std::string> remove(Service& service);
  // The models that do not serve: those that are being deployed or leave, and those that failed.
  boost::json::array absent() const;

  // The loader has done what it was asked for.
  void fell_asleep(std::size_t model) { hosts_.at(model)->service.fell_asleep(); }
  void woke(std::size_t model, const Status& loaded);
  void deployed(std::shared_ptr<Host> host);
  void failed(const std::string& name, const Error& error);

 private:
  void look();  // at what is due, and waits for the next time to look
  void dismiss();
  TimeNs next_look_ns() const;
  std::size_t place_of(const Service& service) const;

  const Clock clock_;
  std::vector<std::shared_ptr<Host>> hosts_;  // null: the model was removed
  Models models_;
  std::vector<std::size_t> leaving_;              // places of models that are removed
  std::map<std::string, std::string> deploying_;  // why it failed, by name; empty: under way
  boost::asio::steady_timer timer_;
  ModelLoader* loader_ = nullptr;
};

}  // namespace protean
