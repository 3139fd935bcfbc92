// Release and acquisition of the GIL for threads that may outlive the interpreter.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace phalanx::binding {

// A daemon thread that asks for the GIL while the interpreter shuts down never gets it. Since
// Python 3.14 the thread sleeps until the process ends. Before, Python unwinds the thread's frames
// by force, and C++ destructors on the way do not survive that. These classes make the thread sleep
// in both cases. (pybind11's equivalent classes end the whole process then.)

// Releases the GIL for its scope.
class ReleasedGil {
  public:
    ReleasedGil() noexcept : state_(PyEval_SaveThread()) {}
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;
    ~ReleasedGil();

  private:
    PyThreadState* state_;
};

// Holds the GIL for its scope.
class TakenGil {
  public:
    TakenGil();
    TakenGil(const TakenGil&) = delete;
    TakenGil& operator=(const TakenGil&) = delete;

  private:
    std::optional<pybind11::gil_scoped_acquire> held_;
};

}  // namespace phalanx::binding
