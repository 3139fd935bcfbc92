// The order of summation, as properties over all small cases and a few huge ones.
#include <doctest/doctest.h>

#include <algorithm>

#include "collectives/operation/summation_order.hpp"
#include "collectives/team.hpp"

using namespace phalanx;

TEST_CASE("slices cover everything, in order, once, at the grain") {
    for (const std::uint64_t grain : {1UL, 4UL, 16UL}) {
        for (std::uint64_t parts = 1; parts <= 9; ++parts) {
            for (std::uint64_t count = 0; count < 150; ++count) {
                std::uint64_t at = 0;
                for (std::uint64_t i = 0; i < parts; ++i) {
                    const Range range = slice(count, parts, i, grain);
                    CHECK(range.begin == at);
                    CHECK((range.begin % grain == 0 || range.begin == count));
                    CHECK(range.size <= (count / grain + 1 + parts) / parts * grain + grain);
                    at = range.end();
                }
                CHECK(at == count);
            }
        }
    }
}

TEST_CASE("slices of huge arrays do not overflow") {
    const std::uint64_t count = (std::uint64_t{1} << 62) + 12345;
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < 64; ++i) {
        const Range range = slice(count, 64, i, 16);
        CHECK(range.begin == at);
        CHECK(range.size <= count / 64 + 32);
        at = range.end();
    }
    CHECK(at == count);
}

TEST_CASE("terms are in the order of ranks") {
    const std::byte memory[4]{};
    for (int me = 0; me < 4; ++me) {
        const std::byte* terms[4];
        in_rank_order(terms, me, memory + me, [&](int rank) {
            CHECK(rank != me);
            return memory + rank;
        });
        for (int rank = 0; rank < 4; ++rank) CHECK(terms[rank] == memory + rank);
    }
}

TEST_CASE(
    "around a ring, a chunk is summed in the order of the nodes after the one that begins it") {
    for (int nodes = 2; nodes <= 9; ++nodes) {
        for (int chunk = 0; chunk < nodes; ++chunk) {
            for (int step = 1; step < nodes; ++step) {
                const auto at = static_cast<std::size_t>(step - 1);
                // all_sum: node c begins chunk c, and node c + step adds the next term.
                const int node = (chunk + step) % nodes;
                CHECK(ring_arrivals(nodes, node)[at] == chunk);
                // sum_scatter: node c + 1 begins the chunk of node c, which adds the last term.
                const int later = (chunk + 1 + step) % nodes;
                CHECK(ring_arrivals(nodes, (later + nodes - 1) % nodes)[at] == chunk);
            }
        }
    }
}

TEST_CASE("around a ring everything arrives but the own chunk") {
    for (int nodes = 1; nodes <= 9; ++nodes) {
        for (int me = 0; me < nodes; ++me) {
            auto order = ring_arrivals(nodes, me);
            CHECK(static_cast<int>(order.size()) == nodes - 1);
            CHECK(std::find(order.begin(), order.end(), me) == order.end());
            if (nodes > 1) CHECK(order.front() == (me + nodes - 1) % nodes);
            // What arrives here in a step is what left the left neighbour in that
            // step.
            const auto left = ring_arrivals(nodes, (me + nodes - 1) % nodes);
            for (std::size_t i = 1; i < order.size(); ++i) CHECK(order[i] == left[i - 1]);
            std::sort(order.begin(), order.end());
            CHECK(std::unique(order.begin(), order.end()) == order.end());
        }
    }
}

TEST_CASE("ranks stand together by host, in the order of their leaders") {
    const std::vector<int> hosts{5, 2, 5, 9, 2};
    const auto formation = NodeLayout::by_host(hosts);
    CHECK(formation.nodes == std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}});
    CHECK(formation.node_of(4) == 1);
    CHECK_FALSE(formation.has_single_ranks_only());
    CHECK(NodeLayout::of_single_ranks(3).has_single_ranks_only());
}
