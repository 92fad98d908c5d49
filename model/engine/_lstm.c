// The cell of the LSTM as one pass over memory, for CPUs: what cell.py says in PyTorch, as a Python extension.
//
// Built by setup.py where there is a C compiler; cell_c.py calls it and says what the arguments are. The arithmetic
// stands in _lstm_kernels.h and is compiled for several instruction sets, of which the processor's best is taken at run
// time; all of them give the same bytes. Work is split by lanes over OpenMP's threads of the caller's own runtime
// (PyTorch's), which is handed in: a second runtime would have threads of its own.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

struct cell {
    const char *gates, *table;
    const int64_t *table_row;
    float *c;
    const int64_t *begins;
    const float *begin_c;
    char *hidden;
    int64_t lanes, d;
    float clip;
    int bf16;
    const struct variant *variant;
};

struct finish {
    const char *projected;
    char *h;
    const char *skip;
    float *output;
    char *following;
    int64_t lanes, p, h_stride, skip_stride, following_stride;
    float clip;
    int bf16;
};

#define STRIP 256  // cells
static const volatile float exp_limit = 40.0f;  // volatile: what GCC knows it makes branches of, not minima

#define NAME(x) plain_##x
#include "_lstm_kernels.h"
#undef NAME

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) avx2_##x
#include "_lstm_kernels.h"
#undef NAME
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define NAME(x) avx512_##x
#include "_lstm_kernels.h"
#undef NAME
#pragma GCC pop_options
#endif

struct variant {
    const char *name;
    void (*cell)(const struct cell *, int64_t, int64_t);
    void (*finish)(const struct finish *, int64_t, int64_t);
};

static const struct variant *variants(int *n) {  // what this processor can run, best first
    static struct variant found[3];
    int count = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        found[count++] = (struct variant){"avx512", avx512_cell, avx512_finish};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        found[count++] = (struct variant){"avx2", avx2_cell, avx2_finish};
#endif
    found[count++] = (struct variant){"plain", plain_cell, plain_finish};
    *n = count;
    return found;
}

// OpenMP's entry points in the caller's runtime; 0 = one thread.
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void), (*thread_count)(void);

static void some_lanes(void *data) {
    const struct cell *a = data;
    int64_t threads = thread_count(), size = (a->lanes + threads - 1) / threads;
    int64_t first = thread_number() * size, stop = first + size;
    a->variant->cell(a, first, stop < a->lanes ? stop : a->lanes);
}

static const struct variant *variant_at(int index) {
    int n;
    const struct variant *all = variants(&n);
    if (index >= 0 && index < n) return all + index;
    PyErr_Format(PyExc_ValueError, "variant %d; this processor runs %d", index, n);
    return NULL;
}

static PyObject *py_variants(PyObject *self, PyObject *unused) {
    int n;
    const struct variant *all = variants(&n);
    PyObject *names = PyTuple_New(n);
    for (int i = 0; names && i < n; i++) PyTuple_SetItem(names, i, PyUnicode_FromString(all[i].name));
    return names;
}

static PyObject *py_use_threads(PyObject *self, PyObject *args) {
    unsigned long long parallel_at, number_at, count_at;
    if (!PyArg_ParseTuple(args, "KKK", &parallel_at, &number_at, &count_at)) return NULL;
    parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)parallel_at;
    thread_number = (int (*)(void))(uintptr_t)number_at;
    thread_count = (int (*)(void))(uintptr_t)count_at;
    Py_RETURN_NONE;
}

#define AT(type, address) ((type)(uintptr_t)(address))

static PyObject *py_cell(PyObject *self, PyObject *args) {
    int variant, threads, bf16;
    long long lanes, d;
    unsigned long long gates, table, table_row, c, begins, begin_c, hidden;
    float clip;
    if (!PyArg_ParseTuple(args, "iiiLLKKKKKKKf", &variant, &threads, &bf16, &lanes, &d, &gates, &table, &table_row, &c, &begins,
                          &begin_c, &hidden, &clip))
        return NULL;
    const struct variant *chosen = variant_at(variant);
    if (!chosen) return NULL;
    struct cell a = {AT(char *, gates), AT(char *, table), AT(int64_t *, table_row), AT(float *, c), AT(int64_t *, begins),
                     AT(float *, begin_c), AT(char *, hidden), lanes, d, clip, bf16, chosen};
    Py_BEGIN_ALLOW_THREADS;
    if (parallel && threads > 1 && lanes > 1) parallel(some_lanes, &a, (unsigned)(threads < lanes ? threads : lanes), 0);
    else chosen->cell(&a, 0, lanes);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *py_finish(PyObject *self, PyObject *args) {
    int variant, bf16;
    long long lanes, p, h_stride, skip_stride, following_stride;
    unsigned long long projected, h, skip, output, following;
    float clip;
    if (!PyArg_ParseTuple(args, "iiLLLLLKKKKKf", &variant, &bf16, &lanes, &p, &h_stride, &skip_stride, &following_stride,
                          &projected, &h, &skip, &output, &following, &clip))
        return NULL;
    const struct variant *chosen = variant_at(variant);
    if (!chosen) return NULL;
    struct finish a = {AT(char *, projected), AT(char *, h), AT(char *, skip), AT(float *, output), AT(char *, following),
                       lanes, p, h_stride, skip_stride, following_stride, clip, bf16};
    Py_BEGIN_ALLOW_THREADS;
    chosen->finish(&a, 0, lanes);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"variants", py_variants, METH_NOARGS, "Names of the instruction sets that this processor can run, best first."},
    {"use_threads", py_use_threads, METH_VARARGS, "Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads."},
    {"cell", py_cell, METH_VARARGS, "See cell_c.cell."},
    {"finish", py_finish, METH_VARARGS, "See cell_c.finish."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lstm", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lstm(void) { return PyModule_Create(&module); }
