// What a peer's bytes may do to a receiver: headers, payloads, marks, abort notices, queues in the
// arena, the control page. Whatever comes, a receiver throws an error of ours or has got what it
// was promised: the header of its own call, and data with the mark of that. Nothing beside its
// memory is touched.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "base/call_site.hpp"
#include "collectives/between_hosts/node_exchange.hpp"
#include "collectives/kernels/checksum.hpp"
#include "collectives/on_host/shared_memory_team.hpp"
#include "engine_supply.hpp"
#include "group/point_to_point.hpp"
#include "support/memory_link.hpp"
#include "transport/shm_link.hpp"

using namespace phalanx;
using phalanx::fuzz::Supply;

namespace {

constexpr std::uint64_t kEpoch = 1;
constexpr std::size_t kMostText = 4096;  // of an error: what a peer says is cut

void must(bool is_so, const char* what) {
    if (is_so) return;
    std::fprintf(stderr, "the engine does not hold: %s\n", what);
    std::abort();
}

template <class Body>
bool holds(const Body& body) {
    try {
        body();
        return true;
    } catch (const Error& error) {
        must(std::string(error.what()).size() < kMostText, "an error's text is short");
        return false;
    }
}

Op op_of(Supply& supply, std::uint64_t most) {
    constexpr Dtype kTypes[] = {Dtype::float32, Dtype::int8, Dtype::float16, Dtype::complex128};
    Op op;
    op.epoch = kEpoch;
    op.seq = 1 + supply.below(3);
    op.count = supply.below(most);
    op.kind = static_cast<OpKind>(1 + supply.below(8));
    op.dtype = kTypes[supply.below(4)];
    op.ndim = 1;
    op.dims[0] = op.count;
    return op;
}

// Not insert(): gcc 12 warns of what it makes of that, wrongly.
void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
    const std::size_t at = to.size();
    to.resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(to.data() + at, bytes.data(), bytes.size());
}

// A message as it should be, before it is edited.
std::vector<std::byte> message_of(const Op* op, const Op& of, Supply& supply, std::size_t nbytes) {
    std::vector<std::byte> message;
    if (op != nullptr) append(message, std::as_bytes(std::span(op, 1)));
    auto payload = supply.bytes(nbytes);
    payload.resize(nbytes);
    append(message, payload);
    const std::uint64_t mark = end_mark(of) ^ checksum_of(payload);
    append(message, std::as_bytes(std::span(&mark, 1)));
    return message;
}

// The peer says all it has to say at once, and then perhaps its abort notice; it is gone then.
void say(Link& there, Supply& supply, std::span<const std::byte> bytes) {
    holds([&] { there.try_send(bytes); });
    if (supply.below(2) != 0) {
        const auto text = supply.bytes(64);
        const std::string said(reinterpret_cast<const char*>(text.data()), text.size());
        there.send_abort_notice(supply.below(3), {checked_kind(supply.number<std::int8_t>()),
                                                  supply.number<std::int32_t>(), said, said});
    }
    there.finish();
}

void check_words(const std::optional<AbortReason>& words) {
    if (!words) return;
    must(words->message.size() <= 504 && words->site.size() <= 200, "an abort notice is short");
    (void)words->culprit_rank(0);
    std::string text = words->message;
    for (const int rank : site_gaps(text)) fill_site_gap(text, rank, words->site);
    close_site_gaps(text);
    must(site_gaps(text).empty(), "a text that is shown has no gaps");
    must(text.size() < 200 * 1000, "a text grows by its gaps only");
}

// How many bytes come at once.
std::size_t step_of(Supply& supply) {
    constexpr std::size_t kSteps[] = {SIZE_MAX, 1, 7, 64};
    return kSteps[supply.below(4)];
}

// Node 0 of two; the other is the fuzzer's.
struct Node {
    Node() : page(ControlPage::in_process(1, 0)), waiter(page, 0, kEpoch, -1, WaitPolicy{}) {
        auto ends = make_memory_links(0, 1, 1 << 16, faults);
        here = std::move(ends.first);
        there = std::move(ends.second);
        waiter.begin(Deadline(std::chrono::milliseconds(200)), nullptr);
    }
    std::shared_ptr<LinkFaults> faults = std::make_shared<LinkFaults>();
    ControlPage page;
    Waiter waiter;
    std::unique_ptr<Link> here, there;
};

void collective(Supply& supply) {
    Node node;
    std::vector<std::unique_ptr<Link>> links(2);
    links[1] = std::move(node.here);
    NodeExchange team({0, 1}, std::move(links), 0, true, false,
                      LinkTuning{supply.below(2) != 0 ? 16U : 256U}, node.waiter);
    const Op op = op_of(supply, 40);
    const auto nbytes = static_cast<std::size_t>(op.nbytes());
    const auto how = supply.below(5);
    const bool has_payload = how < 2 && nbytes > 0;
    Op said = op;
    if (supply.below(4) == 3) said = op_of(supply, 40);
    auto bytes = message_of(&said, op, supply, has_payload ? nbytes : 0);
    if (!has_payload && how != 1) bytes.resize(sizeof(Op));
    if (how > 1) {
        const auto more = message_of(nullptr, op, supply, nbytes);
        if (how == 2 || nbytes > 0) append(bytes, more);
    }
    supply.edit(bytes);
    say(*node.there, supply, bytes);
    node.faults->most_per_call = step_of(supply);

    const std::vector<std::byte> x(nbytes);
    std::vector<std::byte> out(nbytes), own(nbytes);
    const Range parts[] = {{0, has_payload ? nbytes : 0}, {0, has_payload ? nbytes : 0}};
    const bool is_done = holds([&] {
        if (how == 0) team.exchange(op, x);
        if (how == 1) team.exchange_parts(op, x, parts);
        if (how > 1) team.exchange(op, {});
        if (how == 2) team.exchange_payload(x);
        const Incoming incoming{out.data(), how == 3 ? own.data() : nullptr, nbytes};
        if (how == 3) {
            team.stream(-1, {}, 0, 1, {&incoming, 1}, Reduction::kSum, op.dtype);
        }
        if (how == 4) {
            std::vector<PairTransfer> transfers(2);
            transfers[1].incoming = {{out.data(), nullptr, nbytes}};
            team.exchange_all_pairs(transfers);
        }
    });
    if (is_done) {
        must(bytes.size() >= sizeof op && std::memcmp(bytes.data(), &op, sizeof op) == 0,
             "a header that is believed is that of the own call");
        const auto after = std::span<const std::byte>(bytes).subspan(sizeof op);
        if (how == 2 || nbytes > 0) {
            must(after.size() >= nbytes + 8, "what is believed has come");
            std::uint64_t mark = 0;
            std::memcpy(&mark, after.data() + nbytes, sizeof mark);
            must(mark == (end_mark(op) ^ checksum_of(after.first(nbytes))), "and has its mark");
            const std::byte* got = how < 3 ? team.payload(1) : out.data();
            must(how == 3 || nbytes == 0 || std::memcmp(got, after.data(), nbytes) == 0,
                 "and is it");
        }
    }
    check_words(team.drain_for_notice(kEpoch));
}

void message(Supply& supply) {
    Node node;
    Op op = op_of(supply, 200);
    op.magic = Op::kMessageMagic;
    op.kind = OpKind::kSend;
    op.root = 1;
    Op said = op;
    if (supply.below(4) == 3) said = op_of(supply, 200);
    const auto nbytes = static_cast<std::size_t>(op.nbytes());
    auto bytes = message_of(&said, op, supply, nbytes);
    supply.edit(bytes);
    say(*node.there, supply, bytes);
    node.faults->most_per_call = step_of(supply);
    auto back = make_memory_links(0, 1, 1 << 16);
    std::map<int, PeerConnection> wires;
    wires[1] = {std::move(back.first), std::move(node.here)};
    const int members[] = {0, 1}, local[] = {-1, -1};
    PointToPoint pairs(0, 0, members, local, nullptr, node.page, std::move(wires), node.waiter, 0);
    PointToPoint::PeerEndpoint& lane = pairs.lane(1, true);
    lane.waiter.begin(Deadline(std::chrono::milliseconds(200)), nullptr);
    std::vector<std::byte> out(nbytes);
    bool has_begun = false;
    if (holds([&] { pairs.recv(lane, op, out.data(), [&] { has_begun = true; }); })) {
        must(bytes.size() >= sizeof op + nbytes + 8, "a message that is taken has come");
        must(std::memcmp(bytes.data(), &op, sizeof op) == 0, "with the header that was wanted");
        must(nbytes == 0 || std::memcmp(out.data(), bytes.data() + sizeof op, nbytes) == 0,
             "whole");
    } else if (!has_begun) {
        must(std::all_of(out.begin(), out.end(), [](auto b) { return b == std::byte{0}; }),
             "nothing was written before the header was good");
    }
    check_words(pairs.find_notice(lane));
    pairs.close({AbortKind::kClosed, 0, "closed"});
}

// The peer's half of a queue says whatever it likes, and something else a moment later.
void queue(Supply& supply) {
    constexpr std::size_t kSize = sizeof(ArenaHalf) + 40;
    struct Free {
        void operator()(void* memory) const noexcept { std::free(memory); }
    };
    const auto make = [] {
        constexpr std::size_t kRound = (kSize + kCacheLine - 1) / kCacheLine * kCacheLine;
        std::unique_ptr<std::byte, Free> memory(
            static_cast<std::byte*>(std::aligned_alloc(kCacheLine, kRound)));
        std::memset(memory.get(), 0, kRound);
        return memory;
    };
    const auto own = make(), theirs = make();
    reset_arena_half({own.get(), kSize});
    reset_arena_half({theirs.get(), kSize});
    auto link = make_arena_link(1, {own.get(), kSize}, {theirs.get(), kSize}, nullptr, kEpoch);
    auto* half = reinterpret_cast<ArenaHalf*>(theirs.get());
    for (int turns = 0; turns < 12 && !supply.is_over(); ++turns) {
        const auto what = supply.below(8);
        if (what == 0) half->head = supply.number<std::uint64_t>();
        if (what == 1) half->tail = supply.number<std::uint64_t>();
        if (what == 2) half->ended_epoch = supply.number<std::uint64_t>();
        if (what == 3) half->head = half->head + supply.below(64);
        std::vector<std::byte> bytes(supply.below(100));
        holds([&] {
            if (what >= 4 && what < 6) must(link->try_recv(bytes) <= 40, "no more than there is");
            if (what >= 6) must(link->try_send(bytes) <= 40, "no more than has room");
        });
        (void)link->can_recv();
        (void)link->can_send();
        check_words(link->peek_notice(kEpoch));
    }
    check_words(link->drain_for_notice(kEpoch));
}

// The page of a host, as a rank that runs wild leaves it; the supervisor looks at it.
void page(Supply& supply) {
    constexpr int kSlots = 2;
    static const int fd = ::memfd_create("fuzz page", MFD_CLOEXEC);
    static const std::size_t size = ControlPage::nbytes(kSlots, kSlots);
    ControlPage::format(fd, kSlots, kSlots);
    ControlPage seen(fd, kSlots, kSlots, {});
    (void)seen.abort(kEpoch, {AbortKind::kError, 1, "why"});
    seen.show_site(0, 0, 1, 1, "train.py:31");
    const std::size_t first =
        supply.below(2) != 0 ? 128 : 0;  // the header is read at the beginning
    for (auto pokes = supply.below(16); pokes > 0; --pokes) {
        const auto value = supply.number<std::uint64_t>();
        const std::size_t at = (first + supply.number<std::uint16_t>() * 8U) % size;
        must(::pwrite(fd, &value, std::min<std::size_t>(8, size - at), static_cast<off_t>(at)) > 0,
             "poked");
    }
    holds([&] { (void)seen.reason(kEpoch); });
    for (int slot = 0; slot < kSlots; ++slot) {
        const auto site = seen.current_site(slot);
        must(!site || site->text.size() <= CallSite::kMaxText, "a site is short");
        (void)seen.site(slot, supply.byte(), supply.byte());
        (void)name_of(static_cast<OpKind>(seen.activity(slot).of(0).current.load() >> 48));
    }
    holds([&] { ControlPage(fd, kSlots, kSlots, {}); });
}

void words(Supply& supply) {
    const Op one = supply.number<Op>(), two = supply.number<Op>();
    must(describe_mismatch(supply.number<int>(), one, supply.number<int>(), two).size() < 1000,
         "a mismatch is told in a line");
    (void)(one.nbytes() + size_of(two.dtype));
    const auto bytes = supply.bytes(255);
    check_words(AbortReason{AbortKind::kMismatch, 0,
                            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                            "x"});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Supply supply({data, size});
    constexpr void (*kTargets[])(Supply&) = {collective, message, queue, page, words, collective};
    kTargets[supply.below(6)](supply);
    return 0;
}
