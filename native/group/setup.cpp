// Construction of a group: the nodes it consists of, and the arenas and links that join them.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "group/group.hpp"

namespace phalanx {

static_assert(kActivityChannels == Arena::kChannels);

namespace {

void check(bool is_right, const std::string& what) {
    if (!is_right) throw UsageError(what);
}

// `WorldSpec` (phalanx.distributed) makes valid options. These are the checks without which a
// mistake there would end the process.
void check_options(const GroupOptions& options) {
    const auto size = static_cast<std::size_t>(std::max(options.size, 0));
    const auto fits = [&](const auto& by_rank) {
        return by_rank.empty() || by_rank.size() == size;
    };
    const auto is_peer = [&](int rank) {
        return rank >= 0 && rank < options.size && rank != options.rank;
    };
    check(options.rank >= 0 && options.rank < options.size, "rank " + std::to_string(options.rank) +
                                                                " is not in a group of " +
                                                                std::to_string(options.size));
    check(options.epoch >= 1 && options.epoch < std::uint64_t{1} << 48 &&
              options.tag < Activity::kWorldTag && options.channel >= 0 &&
              options.channel < Arena::kChannels,
          "epoch, tag or channel is out of range");
    check(options.hosts.size() == size && fits(options.members) && fits(options.slots) &&
              fits(options.page_slots),
          "hosts, members, slots and page_slots must have one entry for each rank");
    for (const auto& [peer, wire] : options.pair_links) {
        check(is_peer(peer) && wire.in && wire.out, "a pair link needs a peer and two directions");
    }
    for (const auto& [peer, link] : options.links) {
        check(is_peer(peer) && link != nullptr, "a link needs a peer");
    }
}

// Ranks of one host form a node if this rank was given an arena, or does not need one.
NodeLayout formation_of(const GroupOptions& options) {
    const int host = options.hosts[static_cast<std::size_t>(options.rank)];
    const bool is_alone = std::count(options.hosts.begin(), options.hosts.end(), host) == 1;
    const bool has_arena = options.arena != nullptr && !options.slots.empty();
    return is_alone || has_arena ? NodeLayout::by_host(options.hosts)
                                 : NodeLayout::of_single_ranks(options.size);
}

std::uint64_t hash_of(const NodeLayout& formation, const Tuning& tuning) {
    std::uint64_t hash = kHashSeed;
    const auto mix = [&](std::uint64_t word) { hash = hash_with(hash, word); };
    for (const auto& node : formation.nodes) {
        mix(node.size());
        for (const int rank : node) mix(static_cast<std::uint64_t>(rank));
    }
    mix(tuning.host.inline_bytes);
    mix(tuning.host.chunk_bytes);
    mix(tuning.mesh_bytes);
    mix(tuning.direct_bytes);
    mix(tuning.mesh_broadcast_bytes);
    mix(tuning.work_bytes);
    return hash;
}

}  // namespace

Group::Group(GroupOptions options)
    : rank_(options.rank),
      size_(options.size),
      epoch_(options.epoch),
      channel_(options.channel),
      tag_(options.tag),
      pid_(::getpid()),
      tuning_(options.tuning),
      queue_([this](const Call& call, Deadline deadline) { run_queued(call, deadline); }) {
    check_options(options);
    members_ = std::move(options.members);
    for (int rank = static_cast<int>(members_.size()); rank < size_; ++rank) {
        members_.push_back(rank);
    }
    host_names_ = std::move(options.host_names);
    arena_ = options.arena;
    page_ = options.page;
    formation_ = formation_of(options);
    is_flat_ = formation_.has_single_ranks_only();
    layout_ = hash_of(formation_, tuning_);
    if (options.wake_fd >= 0) {
        wake_ = Fd::duplicate(options.wake_fd);
    } else {
        wake_ = make_wake();
    }
    build_team(options);
}

void Group::build_team(GroupOptions& options) {
    const int my_node = formation_.node_of(rank_);
    const auto& neighbours = formation_.nodes[static_cast<std::size_t>(my_node)];
    const bool has_neighbours = neighbours.size() > 1;
    check(!has_neighbours || page_ != nullptr,
          "ranks that share an arena need the control page of their host");
    if (page_ == nullptr) page_ = std::make_shared<ControlPage>(ControlPage::in_process(1, 0));

    int bell = page_->author() < page_->slots() ? page_->author() : 0;
    std::vector<int> slots;
    const auto me = std::find(neighbours.begin(), neighbours.end(), rank_) - neighbours.begin();
    if (has_neighbours) {
        for (const int rank : neighbours) {
            const int slot = options.slots[static_cast<std::size_t>(rank)];
            check(slot >= 0 && slot < arena_->slots() &&
                      std::find(slots.begin(), slots.end(), slot) == slots.end(),
                  "rank " + std::to_string(rank) +
                      " shares this host and needs an arena slot of its own");
            slots.push_back(slot);
        }
        bell = slots[static_cast<std::size_t>(me)];
        check(bell == arena_->own(), "this rank's slot is not the arena's own one");
    }
    const int ranks_here = std::max(options.ranks_here, static_cast<int>(neighbours.size()));
    waiter_ = std::make_unique<Waiter>(*page_, bell, epoch_, wake_.get(),
                                       WaitPolicy::for_ranks(ranks_here));
    std::unique_ptr<SharedMemoryTeam> host;
    if (has_neighbours) {
        host = std::make_unique<SharedMemoryTeam>(*arena_, *page_, channel_, epoch_, tag_,
                                                  neighbours, std::move(slots),
                                                  static_cast<int>(me), tuning_.host, *waiter_);
    }

    std::unique_ptr<NodeExchange> links;
    const bool is_leader = neighbours.front() == rank_;
    if (formation_.nodes.size() > 1) {
        std::vector<int> leaders;
        std::vector<std::unique_ptr<Link>> found;
        for (const auto& node : formation_.nodes) {
            leaders.push_back(node.front());
            const auto link = options.links.find(node.front());
            found.push_back(link == options.links.end() ? nullptr : std::move(link->second));
            if (found.back() == nullptr) continue;
            if (auto paths = found.back()->paths(); !paths.empty()) {
                stripes_.emplace(node.front(), std::move(paths));
            }
            const int peer = world_rank(node.front());
            found.back()->count_in(page_->wire(bell, peer, false), page_->wire(bell, peer, true));
        }
        links = std::make_unique<NodeExchange>(std::move(leaders), std::move(found), my_node,
                                               is_leader, !is_flat_, tuning_.link, *waiter_);
    }
    page_slots_ = std::move(options.page_slots);
    if (page_slots_.empty()) page_slots_ = options.slots;
    page_slots_.resize(static_cast<std::size_t>(size_), -1);
    for (int& slot : page_slots_) slot = slot < page_->slots() ? slot : -1;
    own_sites_ = {page_.get(), bell, channel_, Activity::shown(tag_, epoch_),
                  std::move(options.site)};
    activity_ = &page_->activity(bell);
    hold_ = &page_->hold(bell);
    totals_ = &page_->totals(bell);
    page_->begin_group(bell, channel_, epoch_, tag_);
    options.links.clear();  // close the links that no algorithm uses
    team_ = std::make_unique<Team>(formation_, rank_, std::move(host), std::move(links),
                                   tuning_.work_bytes);
    if (size_ > 1) build_pairs(options, bell);
    awaited_.reserve(1 + (pairs_ == nullptr ? 0 : pairs_->lanes().size()));
    closed_here_ = {AbortKind::kClosed, world_rank(rank_), closed_text(world_rank(rank_))};
}

void Group::build_pairs(GroupOptions& options, int slot) {
    std::vector<int> local(static_cast<std::size_t>(size_), -1);
    const auto& neighbours = formation_.nodes[static_cast<std::size_t>(formation_.node_of(rank_))];
    if (neighbours.size() > 1) {
        for (const int rank : neighbours) {
            local[static_cast<std::size_t>(rank)] = options.slots[static_cast<std::size_t>(rank)];
        }
    }
    pairs_ = std::make_unique<PointToPoint>(rank_, channel_, members_, local, arena_.get(), *page_,
                                            std::move(options.pair_links), *waiter_, slot);
}

}  // namespace phalanx
