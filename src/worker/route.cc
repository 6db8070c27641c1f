#include "worker/route.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace protean {
namespace {

bool has(const Copy& copy, int device) {
  return std::find(copy.begin(), copy.end(), device) != copy.end();
}

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// Returns the copy that has most of these devices; of equals the first, or where no copy has one of
// them, the home's share of the copies.
const Copy& nearest(const std::vector<Copy>& copies, const Copy& devices, int home, int homes) {
  const auto shared = [&](const Copy& copy) {
    return std::count_if(copy.begin(), copy.end(),
                         [&](int device) { return has(devices, device); });
  };
  const auto most =
      std::max_element(copies.begin(), copies.end(),
                       [&](const Copy& a, const Copy& b) { return shared(a) < shared(b); });
  return shared(*most) > 0 ? *most : copies[at(home) * copies.size() / at(homes)];
}

std::vector<Copy> nearest_copies(const Formation& formation, int layer, Component component,
                                 const std::vector<Copy>& to) {
  const Form& form = formation.form;
  const std::vector<Copy> copies = copies_of(form.group, layer, component, form.shards);
  check(!copies.empty(), "a form has a copy of everything");
  std::vector<Copy> by_home;
  for (int home = 0; home < formation.home_count(); ++home) {
    by_home.push_back(nearest(copies, to[at(home)], home, formation.home_count()));
  }
  return by_home;
}

// The copies by home of every stop.
std::vector<std::vector<Copy>> ways_of(const Formation& formation) {
  const int layers = static_cast<int>(formation.form.layer_precision.size());
  std::vector<std::vector<Copy>> ways(1);
  for (int layer = 0; layer < layers; ++layer) {
    for (const Component half : kLayerHalves) {
      ways.push_back(copies_by_home(formation, layer, half));
    }
  }
  ways.front() = nearest_copies(formation, 0, Component::kEmbeddings, ways[1]);
  ways.push_back(nearest_copies(formation, 0, Component::kEmbeddings, ways.back()));
  return ways;
}

// Returns the members of the device's copy of a component; none if it computes alone, or not.
std::vector<cpu::Member> members_of(const Formation& formation, const std::vector<Copy>& copies,
                                    int device, int layer, Component component) {
  const auto mine = std::find_if(copies.begin(), copies.end(),
                                 [&](const Copy& copy) { return has(copy, device); });
  std::vector<cpu::Member> members;
  if (mine == copies.end() || mine->size() == 1) {
    return members;
  }
  for (const int member : *mine) {
    const ShardRun& run = formation.form.group[at(member)].of(layer, component);
    members.push_back(
        {.device = formation.devices[at(member)], .first_shard = run.first, .shards = run.count});
  }
  return members;
}

// Notes, stop after stop, which rows pass between devices.
class Transfers {
 public:
  Transfers(const Formation& formation, const std::vector<std::vector<Copy>>& ways)
      : formation_(formation), ways_(ways), taken_last_(formation.form.group.size(), -1) {}

  // Adds those between two stops to the route of a device.
  void add(int stop, int device, StepRoute& route) {
    std::vector<int> takers;
    for (int home = 0; home < formation_.home_count(); ++home) {
      const Copy& from = ways_[at(stop)][at(home)];
      const Copy& to = ways_[at(stop) + 1][at(home)];
      for (std::size_t rank = 0; rank < to.size(); ++rank) {
        if (has(from, to[rank])) {
          continue;
        }
        const RowTransfer transfer{home, 0, taken_last_[at(to[rank])]};
        add_one(transfer, {from[rank % from.size()], to[rank]}, stop, device, route);
        takers.push_back(to[rank]);
      }
    }
    for (const int taker : takers) {
      taken_last_[at(taker)] = stop + 1;
    }
  }

 private:
  struct Ends {
    int giver = 0;
    int taker = 0;
  };
  void add_one(RowTransfer transfer, const Ends& ends, int stop, int device,
               StepRoute& route) const {
    if (ends.giver == device) {
      transfer.peer = formation_.devices[at(ends.taker)];
      route.stops[at(stop)].hands.push_back(transfer);
    } else if (ends.taker == device) {
      transfer.peer = formation_.devices[at(ends.giver)];
      route.stops[at(stop) + 1].takes.push_back(transfer);
    }
  }

  const Formation& formation_;
  const std::vector<std::vector<Copy>>& ways_;
  std::vector<int> taken_last_;  // by device: the stop before which it took rows last
};

}  // namespace

int Formation::home_with(int device) const {
  const auto found =
      std::find_if(homes.begin(), homes.end(), [&](const Copy& home) { return has(home, device); });
  check(found != homes.end(), "each device belongs to a home");
  return static_cast<int>(found - homes.begin());
}

std::vector<Copy> copies_by_home(const Formation& formation, int layer, Component half) {
  return nearest_copies(formation, layer, half, formation.homes);
}

StepRoute route_of(const Formation& formation, int device) {
  const std::vector<std::vector<Copy>> ways = ways_of(formation);
  StepRoute route;
  for (const std::vector<Copy>& copies : ways) {
    Stop stop;
    for (int home = 0; home < formation.home_count(); ++home) {
      if (has(copies[at(home)], device)) {
        check(stop.homes == 0 || stop.first_home + stop.homes == home,
              "a device computes consecutive homes");
        stop.first_home = stop.homes == 0 ? home : stop.first_home;
        ++stop.homes;
      }
    }
    route.stops.push_back(std::move(stop));
  }
  const HomeBlocks blocks = formation.blocks();
  for (int home = 0; home < blocks.count() && blocks.count() > 1; ++home) {
    route.most_blocks = std::max(route.most_blocks, blocks.of(home));
  }
  Transfers transfers(formation, ways);
  for (int stop = 0; stop + 1 < static_cast<int>(ways.size()); ++stop) {
    transfers.add(stop, device, route);
  }
  cpu::GroupMembers& members = route.members;
  members.embedding = members_of(formation, ways.front(), device, 0, Component::kEmbeddings);
  members.logits = members_of(formation, ways.back(), device, 0, Component::kEmbeddings);
  for (cpu::Member& member : members.logits) {
    member.collects = member.first_shard == 0;
  }
  for (std::size_t stop = 1; stop + 1 < ways.size(); stop += 2) {
    const int layer = static_cast<int>(stop / 2);
    members.attention.push_back(
        members_of(formation, ways[stop], device, layer, Component::kAttention));
    members.mlp.push_back(members_of(formation, ways[stop + 1], device, layer, Component::kMlp));
  }
  for (const Copy& copy : ways.back()) {
    route.draws.push_back(copy.front() == device);
  }
  return route;
}

}  // namespace protean
