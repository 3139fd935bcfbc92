// The fast path for plain numpy arrays, which most programs pass. It checks each argument once, by
// pointer comparison. Anything else, and anything invalid, goes to the slow path in Python, which
// has the error texts. For collectives the slow path calls the fast path with the memory it found.
//
// pybind11's own functions look up a converter for each argument; a call with eight bytes spent
// half of its time there and in the Python code around it (tests/bench/engine/call_cost.py).
#include <array>

#include "binding/binding.hpp"
#include "collectives/kernels/reduce.hpp"

namespace phalanx::binding {

namespace {

// Reads the timeout if it is a Python number; false: use the slow path.
bool timeout_of(PyObject* seconds, std::optional<Clock::duration>& timeout) {
    if (seconds == Py_None) return true;
    double number = -1;
    if (PyFloat_CheckExact(seconds)) {
        number = PyFloat_AS_DOUBLE(seconds);
    } else if (PyLong_CheckExact(seconds)) {
        number = PyLong_AsDouble(seconds);
        PyErr_Clear();  // too large: -1
    }
    if (!(number >= 0)) return false;  // also for NaN
    timeout = to_duration(number);
    return true;
}

// Of numpy's own type: subclasses may interpret their bytes differently.
bool is_plain(PyObject* object) { return Py_TYPE(object) == Api::get().PyArray_Type_; }

struct Shape {
    std::array<Py_intptr_t, kMostDims> dims;
    int ndim;
};

// Computes the shape of the result; false if there is none.
bool shape_of_result(const NamedKind& op, const Array& x, int size, Shape& shape) {
    if (x.nd > static_cast<int>(kMostDims)) return false;
    shape.ndim = x.nd;
    std::copy_n(x.dimensions, x.nd, shape.dims.begin());
    if (op.keeps_shape || size == 1) return true;
    if (op.kind == OpKind::kAllGather) {
        if (x.nd == 0) {
            shape.ndim = 1;
            shape.dims[0] = 1;
        }
        shape.dims[0] *= size;
        return true;
    }
    if (x.nd == 0 || x.dimensions[0] % size != 0) return false;
    if (op.kind == OpKind::kSumScatter) shape.dims[0] /= size;
    return true;
}

bool has_shape(const Array& array, const Shape& shape) {
    return array.nd == shape.ndim &&
           std::equal(shape.dims.begin(), shape.dims.begin() + shape.ndim, array.dimensions);
}

// Reads the rank argument, if the operation has one: the root, or the other end of a message.
bool root_of(OpKind kind, PyObject* rank, const Group& group, int& root) {
    if (kind != OpKind::kBroadcast && !is_message(kind)) return true;
    const long number = PyLong_AsLong(rank);  // also -1 if `rank` is not a number
    if (PyErr_Occurred() != nullptr) {
        const bool is_none = PyErr_ExceptionMatches(PyExc_TypeError) != 0 ||
                             PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
        if (!is_none) throw py::error_already_set();
        PyErr_Clear();
    }
    if (number < 0 || number >= group.size()) return false;
    root = static_cast<int>(number);
    return kind == OpKind::kBroadcast || root != group.rank();
}

py::object new_array(const Array& like, Shape& shape) {
    Py_INCREF(like.descr);  // the new array steals a reference
    auto made = py::reinterpret_steal<py::object>(
        Api::get().PyArray_NewFromDescr_(Api::get().PyArray_Type_, like.descr, shape.ndim,
                                         shape.dims.data(), nullptr, nullptr, 0, nullptr));
    if (!made) throw py::error_already_set();
    return made;
}

// The arguments as Python passed them.
struct Arguments {
    PyObject *name, *engine, *x, *out, *root, *timeout, *dtype;
};

py::object barrier(const Arguments& given) {
    py::detail::make_caster<Group> caster;
    Call call;
    if (!caster.load(given.engine, false) || !timeout_of(given.timeout, call.timeout)) return {};
    run_call(py::detail::cast_op<Group&>(caster), call);
    return py::none();
}

// Returns the result, or null for the slow path.
py::object take(const Arguments& given) {
    const NamedKind* op = kind_of(given.name);
    if (op == nullptr || op->kind == OpKind::kSplit) return {};
    if (op->kind == OpKind::kBarrier) return barrier(given);
    if (op->kind == OpKind::kSend && given.out != Py_None) return {};
    if (!is_plain(given.x) || !PyUnicode_Check(given.dtype)) return {};
    Py_ssize_t length = 0;
    const char* as = PyUnicode_AsUTF8AndSize(given.dtype, &length);
    if (as == nullptr) throw py::error_already_set();
    const std::string_view dtype(as, static_cast<std::size_t>(length));
    py::detail::make_caster<Group> caster;
    if (!caster.load(given.engine, false)) return {};
    auto& group = py::detail::cast_op<Group&>(caster);
    ArrayCall read;
    Call& call = read.call;
    call.kind = op->kind;
    // First, because it may run Python code, which could change x.
    if (!root_of(op->kind, given.root, group, call.root)) return {};

    if (!read.read_input(given.x, dtype)) return {};
    const Array& x = read.input();
    Shape shape;
    if (!shape_of_result(*op, x, group.size(), shape)) return {};
    if (!timeout_of(given.timeout, call.timeout)) return {};
    py::object out;
    bool is_to_invalidate = false;
    if (op->kind == OpKind::kSend) {
        out = py::reinterpret_borrow<py::object>(given.x);  // send returns x itself
    } else if (given.out == Py_None) {
        out = new_array(x, shape);
        call.out = reinterpret_cast<std::byte*>(py::detail::array_proxy(out.ptr())->data);
    } else {
        if (!is_plain(given.out) || !read.read_output(given.out, dtype, group) ||
            !has_shape(read.output(), shape) || !(read.is_apart || op->keeps_shape)) {
            return {};
        }
        // The engine invalidates the output if it is x and was touched, and the output of recv.
        is_to_invalidate = read.is_apart && op->kind != OpKind::kRecv;
        out = py::reinterpret_borrow<py::object>(given.out);
    }
    try {
        run_call(group, call);
    } catch (...) {
        // Not for a closed group: nothing began, or the epoch is over and the array may be reused.
        if (is_to_invalidate && !group.is_closed()) {
            invalidate(call.dtype, call.out, out_count(call.kind, call.count, group.size()));
        }
        throw;
    }
    return out;
}

constexpr Py_ssize_t kArguments = 7;

PyObject* fast_path(PyObject* /*module*/, PyObject* const* args, Py_ssize_t n_args) {
    if (n_args != kArguments) {
        PyErr_Format(PyExc_TypeError, "fast_path takes %zd arguments, not %zd", kArguments, n_args);
        return nullptr;
    }
    try {
        py::object result = take({args[0], args[1], args[2], args[3], args[4], args[5], args[6]});
        if (!result) return Py_NewRef(Py_NotImplemented);
        return result.release().ptr();
    } catch (...) {
        set_python_error(std::current_exception());
        return nullptr;
    }
}

PyMethodDef fast_paths[] = {
    {"fast_path",
     // The type of the table entry cannot express METH_FASTCALL; the flag beside it does.
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&fast_path)), METH_FASTCALL,
     "fast_path($module, op, engine, x, out, root, timeout, dtype, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void register_fast_path(py::module_& module) {
    if (PyModule_AddFunctions(module.ptr(), fast_paths) != 0) throw py::error_already_set();
}

}  // namespace phalanx::binding
