// How the world of a test is put together.
#include "world.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <thread>

namespace phalanx::test {

namespace {

thread_local std::string here;

std::pair<int, int> tcp_pair() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener, generic, length) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, generic, &length) == 0);
    const int one = ::socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(::connect(one, generic, length) == 0);
    const int other = ::accept(listener, nullptr, nullptr);
    REQUIRE(other >= 0);
    ::close(listener);
    return {one, other};
}

std::pair<int, int> sockets(Wire wire) {
    if (wire == Wire::kTcp) return tcp_pair();
    int both[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0);
    return {both[0], both[1]};
}

std::pair<PeerConnection, PeerConnection> make_wires(const WorldOptions& options, int rank,
                                                     int peer) {
    if (options.wire == Wire::kMemory) {
        auto there = make_memory_links(rank, peer, 4096, options.faults);
        auto back = make_memory_links(rank, peer, 4096, options.faults);
        return {PeerConnection{std::move(there.first), std::move(back.first)},
                PeerConnection{std::move(back.second), std::move(there.second)}};
    }
    const auto fds = sockets(options.wire);
    return {make_pair_wire(peer, fds.first), make_pair_wire(rank, fds.second)};
}

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_links(const WorldOptions& options,
                                                                   int rank, int peer) {
    if (options.wire == Wire::kMemory) return make_memory_links(rank, peer, 4096, options.faults);
    if (options.wire == Wire::kStriped) {
        std::vector<std::unique_ptr<Link>> ours, theirs;
        for (int i = 0; i < 3; ++i) {
            const auto fds = sockets(Wire::kSockets);
            ours.push_back(make_socket_link(peer, fds.first));
            theirs.push_back(make_socket_link(rank, fds.second));
        }
        constexpr std::size_t kBlock = 61;  // no header, element or segment is a part of it
        return {make_striped_link(peer, std::move(ours), {}, kBlock),
                make_striped_link(rank, std::move(theirs), {}, kBlock)};
    }
    const auto fds = sockets(options.wire);
    return {make_socket_link(peer, fds.first), make_socket_link(rank, fds.second)};
}

// "a" for host 0, by rank.
std::vector<std::string> names_of(const std::vector<int>& hosts) {
    std::vector<std::string> names;
    for (const int host : hosts) names.emplace_back(1, static_cast<char>('a' + host));
    return names;
}

}  // namespace

void stand_at(const std::string& site) { here = site; }

Tuning tiny_tuning() {
    Tuning tuning;
    tuning.host = {64, 256, false};
    tuning.link = {64};
    tuning.mesh_bytes = 128;
    tuning.direct_bytes = 512;
    tuning.mesh_broadcast_bytes = 64;
    tuning.work_bytes = 512;
    return tuning;
}

World::World(WorldOptions options) : options_(std::move(options)) {
    const auto& hosts = options_.hosts;
    std::map<int, int> counts;
    for (const int host : hosts) slots_.push_back(counts[host]++);
    std::map<int, ControlPage*> roots;
    std::map<int, std::vector<std::unique_ptr<Arena>>> arenas;
    for (const auto& [host, count] : counts) {
        roots_.push_back(std::make_unique<ControlPage>(
            ControlPage::in_process(count, 0, static_cast<int>(hosts.size()))));
        roots[host] = roots_.back().get();
        arenas[host] = Arena::in_process(
            count, options_.region_nbytes > 0 ? options_.region_nbytes : kSmallRegion);
    }
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
        auto& arena = arenas[hosts[rank]][static_cast<std::size_t>(slots_[rank])];
        arenas_.push_back(std::move(arena));
        pages_.push_back(std::make_shared<ControlPage>(roots[hosts[rank]]->view_as(slots_[rank])));
    }
    build();
}

void World::renew(std::uint64_t epoch) {
    options_.epoch = epoch;
    build();
}

void World::build() {
    groups_.clear();
    const auto& hosts = options_.hosts;
    const int size = static_cast<int>(hosts.size());
    std::vector<GroupOptions> all(hosts.size());
    for (int rank = 0; rank < size; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        GroupOptions& one = all[at];
        one.rank = rank;
        one.size = size;
        one.epoch = options_.epoch;
        one.hosts = hosts;
        one.tuning = options_.tuning;
        one.arena = arenas_[at];
        one.page = pages_[at];
        one.site = [] { return here; };
        one.host_names = names_of(options_.hosts);
        for (int peer = 0; peer < size; ++peer) {
            const auto other = static_cast<std::size_t>(peer);
            one.slots.push_back(hosts[other] == hosts[at] ? slots_[other] : -1);
            if (peer >= rank || hosts[other] == hosts[at]) continue;
            auto links = make_links(options_, rank, peer);
            one.links[peer] = std::move(links.first);
            all[other].links[rank] = std::move(links.second);
            auto wires = make_wires(options_, rank, peer);
            one.pair_links[peer] = std::move(wires.first);
            all[other].pair_links[rank] = std::move(wires.second);
        }
    }
    for (auto& one : all) groups_.push_back(std::make_unique<Group>(std::move(one)));
}

std::vector<std::unique_ptr<Group>> World::split(const std::vector<int>& ranks, int channel,
                                                 std::uint64_t tag) {
    std::vector<std::unique_ptr<Group>> groups;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto at = static_cast<std::size_t>(ranks[i]);
        GroupOptions one;
        one.rank = static_cast<int>(i);
        one.size = static_cast<int>(ranks.size());
        one.epoch = options_.epoch;
        one.channel = channel;
        one.tag = tag;
        one.members = ranks;
        one.tuning = options_.tuning;
        one.arena = arenas_[at];
        one.page = pages_[at];
        one.site = [] { return here; };
        one.host_names = names_of(options_.hosts);
        for (const int rank : ranks) {
            one.hosts.push_back(options_.hosts[static_cast<std::size_t>(rank)]);
            one.slots.push_back(slots_[static_cast<std::size_t>(rank)]);
        }
        groups.push_back(std::make_unique<Group>(std::move(one)));
    }
    return groups;
}

std::vector<std::exception_ptr> World::run(const Body& body) {
    std::vector<std::exception_ptr> thrown(groups_.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < groups_.size(); ++rank) {
        threads.emplace_back([&, rank] {
            try {
                body(*groups_[rank]);
            } catch (...) {
                thrown[rank] = std::current_exception();
            }
        });
    }
    threads.clear();
    return thrown;
}

void World::run_well(const Body& body) {
    for (const auto& thrown : run(body)) {
        if (thrown) std::rethrow_exception(thrown);
    }
}

std::optional<AbortReason> reason_of(const std::exception_ptr& thrown) {
    if (!thrown) return std::nullopt;
    try {
        std::rethrow_exception(thrown);
    } catch (const Aborted& error) {
        return error.reason;
    } catch (const std::exception& error) {
        return AbortReason{AbortKind::kError, -2, std::string("not an abort: ") + error.what()};
    }
}

}  // namespace phalanx::test
