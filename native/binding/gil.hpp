// The GIL, given and taken by threads that may outlive the interpreter. Knows nothing of what they
// do meanwhile.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace phalanx::binding {

// A daemon thread that asks for the GIL of an interpreter that is ending never gets it. Since
// Python 3.14 it sleeps until the process is over; before, Python unwinds its frames by force,
// which the destructors of C++ on the way do not survive. Here it sleeps in any case. (pybind11's
// classes of the same purpose end the whole process then.)

// Without the GIL while it lives.
class ReleasedGil {
  public:
    ReleasedGil() noexcept : state_(PyEval_SaveThread()) {}
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;
    ~ReleasedGil();

  private:
    PyThreadState* state_;
};

// With the GIL while it lives.
class TakenGil {
  public:
    TakenGil();
    TakenGil(const TakenGil&) = delete;
    TakenGil& operator=(const TakenGil&) = delete;

  private:
    std::optional<pybind11::gil_scoped_acquire> held_;
};

}  // namespace phalanx::binding
