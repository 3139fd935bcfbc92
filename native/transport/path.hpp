// The two addresses that a socket joins, in words for errors.
#pragma once

#include <string>

namespace phalanx {

// Asked for while the socket is connected: one that is broken does not know its peer any more.
struct Path {
    std::string from;  // both empty where a socket has no such addresses
    std::string to;

    static Path of(int fd);
    // "10.0.1.1 to 10.0.1.2"; "".
    [[nodiscard]] std::string text() const;
    // "10.0.1.1 on eth1 to 10.0.1.2", as far as this machine's cards are known now. Slow: it asks
    // the system for all of them.
    [[nodiscard]] std::string text_with_card() const;
};

}  // namespace phalanx
