// Messages with known contents, for the tests of pairs.
#pragma once

#include <numeric>
#include <vector>

#include "world.hpp"

namespace phalanx::test {

inline const std::vector<std::vector<int>> kHosts{{0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 1, 2}};
inline constexpr std::size_t kTooMuch = 10'000'000;  // 40 MB: no socket takes it while nobody reads

struct Floats {
    std::vector<float> data;
    std::vector<std::uint64_t> shape;
    explicit Floats(std::size_t count, float first = 0.F) : data(count), shape{count} {
        std::iota(data.begin(), data.end(), first);
    }
    Call call(OpKind kind, int peer) {
        Call call;
        call.kind = kind;
        call.dtype = Dtype::float32;
        call.count = data.size();
        call.shape = shape;
        call.root = peer;
        call.x = call.out = reinterpret_cast<std::byte*>(data.data());
        return call;
    }
};

inline void send(Group& group, int peer, std::size_t count, float first = 0.F) {
    Floats array(count, first);
    group.run(array.call(OpKind::kSend, peer));
}

// What came is what was sent with this first value.
inline bool recv(Group& group, int peer, std::size_t count, float first = 0.F) {
    Floats array(count, -1.F);
    group.run(array.call(OpKind::kRecv, peer));
    return array.data == Floats(count, first).data;
}

inline WorldOptions options(const std::vector<int>& hosts, Wire wire = Wire::kTcp) {
    return {hosts, wire, tiny_tuning(), 1, nullptr, Arena::kDefaultBytes};
}

}  // namespace phalanx::test
