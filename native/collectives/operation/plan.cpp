// See plan.hpp and tests/native/collectives/test_plan.cpp.
#include "collectives/operation/plan.hpp"

#include <algorithm>

namespace phalanx {

Range slice(std::uint64_t count, std::uint64_t parts, std::uint64_t index, std::uint64_t grain) {
    // In units of grains, and split by division, so that units * index / parts cannot overflow.
    const std::uint64_t units = count / grain + (count % grain != 0 ? 1 : 0);
    const auto bound = [&](std::uint64_t i) {
        return std::min(count, (units / parts * i + units % parts * i / parts) * grain);
    };
    const std::uint64_t begin = bound(index);
    return {begin, bound(index + 1) - begin};
}

std::vector<int> ring_arrivals(int nodes, int me) {
    std::vector<int> order;
    for (int step = 1; step < nodes; ++step) order.push_back((me - step + nodes) % nodes);
    return order;
}

}  // namespace phalanx
