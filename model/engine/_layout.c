// The loops of planner.py and sequences.py that go sentence by sentence, as a Python extension.
//
// Built by setup.py where there is a C compiler; the two modules hold the same in NumPy, which computes where it was not
// built, and which tests compare this with. Arrays come as addresses of contiguous int64, words as int32; sizes are the
// caller's promise. Nothing here holds Python's lock, so that two directions are laid out at once.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AT(type, address) ((type *)(uintptr_t)(address))
typedef unsigned long long address;

// Segments of these lengths, in turn, each into the lane that is free first, the lowest of equals: their lanes and starts.
// free_at [lanes], in order of lane, is the step from which each is free.
static int longest_first(int64_t n, const int64_t *length, int64_t lanes, const int64_t *free_at, int64_t *lane, int64_t *start) {
    int64_t *heap = malloc((size_t)lanes * sizeof *heap);  // step · lanes + lane, least first
    if (!heap) return -1;
    for (int64_t b = 0; b < lanes; b++) {  // insertion from below
        int64_t key = free_at[b] * lanes + b, at = b;
        while (at > 0 && heap[(at - 1) / 2] > key) heap[at] = heap[(at - 1) / 2], at = (at - 1) / 2;
        heap[at] = key;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t key = heap[0];
        start[i] = key / lanes;
        lane[i] = key % lanes;
        key += length[i] * lanes;
        int64_t at = 0;
        for (;;) {
            int64_t child = 2 * at + 1;
            if (child >= lanes) break;
            if (child + 1 < lanes && heap[child + 1] < heap[child]) child++;
            if (heap[child] >= key) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = key;
    }
    free(heap);
    return 0;
}

// Which of the different slices of words each slice is, counted in order of first appearance; returns how many, -1 = no memory.
static int64_t distinct(int64_t n, const int32_t *words, const int64_t *first, const int64_t *length, int64_t *index, int64_t *kept) {
    uint64_t size = 16;
    while (size < (uint64_t)n * 2) size *= 2;
    int64_t *table = malloc(size * sizeof *table), found = 0;  // place in the table → which, -1 = empty
    if (!table) return -1;
    memset(table, 0xff, size * sizeof *table);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *slice = words + first[i];
        uint64_t hash = (uint64_t)length[i];
        for (int64_t k = 0; k < length[i]; k++) {
            hash = (hash ^ (uint32_t)slice[k]) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 32;
        }
        uint64_t at = hash & (size - 1);
        while (table[at] >= 0) {
            int64_t other = kept[table[at]];
            if (length[other] == length[i] && !memcmp(words + first[other], slice, (size_t)length[i] * sizeof *slice)) break;
            at = (at + 1) & (size - 1);
        }
        if (table[at] < 0) kept[found] = i, table[at] = found++;
        index[i] = table[at];
    }
    free(table);
    return found;
}

static PyObject *py_longest_first(PyObject *self, PyObject *args) {
    long long n, lanes;
    address length, free_at, lane, start;
    if (!PyArg_ParseTuple(args, "LKLKKK", &n, &length, &lanes, &free_at, &lane, &start)) return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = longest_first(n, AT(int64_t, length), lanes, AT(int64_t, free_at), AT(int64_t, lane), AT(int64_t, start));
    Py_END_ALLOW_THREADS;
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_distinct(PyObject *self, PyObject *args) {
    long long n;
    address words, first, length, index, kept;
    if (!PyArg_ParseTuple(args, "LKKKKK", &n, &words, &first, &length, &index, &kept)) return NULL;
    int64_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = distinct(n, AT(int32_t, words), AT(int64_t, first), AT(int64_t, length), AT(int64_t, index), AT(int64_t, kept));
    Py_END_ALLOW_THREADS;
    return found < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(found);
}

static PyMethodDef methods[] = {
    {"longest_first", py_longest_first, METH_VARARGS, "See planner._longest_first."},
    {"distinct", py_distinct, METH_VARARGS, "See sequences._distinct."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_layout", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__layout(void) { return PyModule_Create(&module); }
