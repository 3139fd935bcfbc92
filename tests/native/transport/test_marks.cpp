// A peer that gives up shortly before its data ends sends an abort notice in their place: it must
// never be taken for data.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "collectives/between_hosts/node_exchange.hpp"
#include "support/memory_link.hpp"
#include "support/promise.hpp"

using namespace phalanx;

namespace {

constexpr std::size_t kBytes = 1000;
constexpr std::size_t kMissing = 100;  // fewer than an abort notice has

Op op_of(std::size_t nbytes) {
    Op op;
    op.epoch = 1;
    op.seq = 1;
    op.count = nbytes / sizeof(float);
    op.kind = OpKind::kAllSum;
    op.dtype = Dtype::float32;
    return op;
}

// Node 0 of two, whose other node is played by the test.
struct OneNode {
    OneNode() : page(ControlPage::in_process(1, 0)), waiter(page, 0, 1, -1, WaitPolicy{}) {
        auto ends = make_memory_links(0, 1, 4096);
        std::vector<std::unique_ptr<Link>> links(2);
        links[1] = std::move(ends.first);
        there = std::move(ends.second);
        team = std::make_unique<NodeExchange>(std::vector<int>{0, 1}, std::move(links), 0, true,
                                              false, LinkTuning{}, waiter);
        waiter.begin(Deadline(test::kPatience), nullptr);
    }
    void give(const void* data, std::size_t size) {
        REQUIRE(there->try_send({static_cast<const std::byte*>(data), size}) == size);
    }
    void send_notice() { there->send_abort_notice(1, {AbortKind::kMismatch, -1, "they disagree"}); }
    void check_reason() {
        const auto words = team->drain_for_notice(1);
        REQUIRE(words);
        CHECK(words->message == "they disagree");
    }

    ControlPage page;
    Waiter waiter;
    std::unique_ptr<Link> there;
    std::unique_ptr<NodeExchange> team;
};

}  // namespace

TEST_CASE("an abort notice in place of the end of a stream is not data") {
    OneNode node;
    const Op op = op_of(kBytes);
    node.give(&op, sizeof op);
    node.team->exchange(op, {});
    std::vector<std::byte> x(kBytes), out(kBytes);
    node.give(x.data(), kBytes - kMissing);
    node.send_notice();
    const Incoming incoming{out.data(), nullptr, kBytes};
    CHECK_THROWS_AS(
        node.team->stream(-1, {}, 0, 1, {&incoming, 1}, Reduction::kSum, Dtype::float32), PeerLost);
    node.check_reason();
}

TEST_CASE("an abort notice in place of the end of a header is no header") {
    OneNode node;
    const Op op = op_of(kBytes);
    node.give(&op, sizeof op - 6);
    node.send_notice();
    CHECK_THROWS_AS(node.team->exchange(op, {}), PeerLost);
    node.check_reason();
}

TEST_CASE("an abort notice in place of the end of a payload is not data") {
    OneNode node;
    const Op op = op_of(kBytes);
    const std::vector<std::byte> x(kBytes);
    node.give(&op, sizeof op);
    node.give(x.data(), kBytes - kMissing);
    node.send_notice();
    CHECK_THROWS_AS(node.team->exchange(op, x), PeerLost);
    node.check_reason();
}

TEST_CASE("an abort notice in place of the end of an exchange is not data") {
    OneNode node;
    const Op op = op_of(kBytes);
    node.give(&op, sizeof op);
    node.team->exchange(op, {});
    std::vector<std::byte> x(kBytes), out(kBytes);
    node.give(x.data(), kBytes - kMissing);
    node.send_notice();
    std::vector<PairTransfer> transfers(2);
    transfers[1] = {{{x.data(), kBytes}}, {{out.data(), nullptr, kBytes}}};
    CHECK_THROWS_AS(node.team->exchange_all_pairs(transfers), PeerLost);
    node.check_reason();
}
