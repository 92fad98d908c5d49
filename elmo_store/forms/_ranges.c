// Many pieces of open files into one buffer, as a Python extension: what `runs` does piece by piece.
//
// Built by setup.py where there is a C compiler on a POSIX system; without it the same is read in Python, several times slower
// (tests/store/test_runs.py compares them). Python's lock is released while bytes are read. What the page cache holds is copied
// at once; the rest is announced to the kernel first, all of it, and read after that, so that a disk which serves many requests
// together gets them together.
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LATE_RANGES = 1024 };  // at most announced to the kernel at a time
enum { FINE, NO_READ, SHORT };

typedef struct {
    int fd;
    int64_t file, offset, length;
    char *to;
} Range;

typedef struct {
    int what, error;      // error: errno
    int64_t file, stop;   // SHORT: the byte after the last wanted
} Outcome;

static Outcome read_now(Range r) {
    while (r.length > 0) {
        ssize_t n = pread(r.fd, r.to, (size_t)r.length, (off_t)r.offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return (Outcome){NO_READ, errno, r.file, 0};
        if (n == 0) return (Outcome){SHORT, 0, r.file, r.offset + r.length};
        r.to += n, r.offset += n, r.length -= n;
    }
    return (Outcome){FINE, 0, 0, 0};
}

// Reads what is in memory. True if that was all; otherwise what is left stands in *r, and the kernel knows that it will be read.
static int read_cached(Range *r) {
#ifdef RWF_NOWAIT
    struct iovec into = {r->to, (size_t)r->length};
    ssize_t n = preadv2(r->fd, &into, 1, (off_t)r->offset, RWF_NOWAIT);
    if (n == r->length) return 1;
    if (n > 0) r->to += n, r->offset += n, r->length -= n;
    if (n > 0 || (n < 0 && errno == EAGAIN)) posix_fadvise(r->fd, (off_t)r->offset, (off_t)r->length, POSIX_FADV_WILLNEED);
#else
    (void)r;
#endif
    return 0;
}

typedef struct {
    const int64_t *fds, *of, *starts, *n_bytes, *places;
    int64_t n_pieces, n_runs, run_bytes;
    char *out;
} Job;

static Outcome read_all(const Job *job) {
    Outcome last = {FINE, 0, 0, 0};
    Range late[LATE_RANGES];
    int n_late = 0;
    for (int64_t piece = 0; piece < job->n_pieces && last.what == FINE; piece++) {
        const int64_t file = job->of[piece];
        for (int64_t run = 0; run < job->n_runs && last.what == FINE; run++) {
            char *to = job->out + run * job->run_bytes + job->places[piece];
            Range r = {(int)job->fds[file], file, job->starts[piece * job->n_runs + run], job->n_bytes[piece], to};
            if (!r.length || read_cached(&r)) continue;
            late[n_late++] = r;
            if (n_late == LATE_RANGES)
                for (int i = n_late = 0; i < LATE_RANGES && last.what == FINE; i++) last = read_now(late[i]);
        }
    }
    for (int i = 0; i < n_late && last.what == FINE; i++) last = read_now(late[i]);
    return last;
}

// None, or (file, byte) where a file ends before the byte; OSError.
static PyObject *answer(Outcome o) {
    if (o.what == FINE) Py_RETURN_NONE;
    if (o.what == SHORT) return Py_BuildValue("LL", (long long)o.file, (long long)o.stop);
    errno = o.error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *run(const Job *job) {
    Outcome found;
    Py_BEGIN_ALLOW_THREADS
    found = read_all(job);
    Py_END_ALLOW_THREADS
    return answer(found);
}

static int64_t entries(const Py_buffer *view) { return view->len / (int64_t)sizeof(int64_t); }

static int fits(const Job *job, const Py_buffer *view, int64_t out_bytes) {  // view: fds, of, starts, n_bytes, places
    const int64_t n = job->n_pieces, n_files = entries(&view[0]);
    if (entries(&view[3]) != n || entries(&view[4]) != n || entries(&view[2]) != n * job->n_runs) return 0;
    if (job->run_bytes < 0 || (job->run_bytes && job->n_runs > out_bytes / job->run_bytes)) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (job->of[i] < 0 || job->of[i] >= n_files || job->places[i] < 0 || job->n_bytes[i] < 0) return 0;
        if (job->n_bytes[i] > job->run_bytes || job->places[i] > job->run_bytes - job->n_bytes[i]) return 0;
    }
    return 1;
}

// read_runs(fds, of, starts, n_bytes, places, run_bytes, out): see runs.Runs; arrays are int64.
static PyObject *read_runs(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer view[5], out;
    long long run_bytes;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*Lw*", &view[0], &view[1], &view[2], &view[3], &view[4], &run_bytes, &out)) return NULL;
    const int64_t n = entries(&view[1]), n_runs = n ? entries(&view[2]) / n : 0;
    const Job job = {view[0].buf, view[1].buf, view[2].buf, view[3].buf, view[4].buf, n, n_runs, run_bytes, out.buf};
    PyObject *result = NULL;
    if (fits(&job, view, out.len))
        result = run(&job);
    else
        PyErr_SetString(PyExc_ValueError, "the pieces do not fit the buffer, or one another");
    for (int i = 0; i < 5; i++) PyBuffer_Release(&view[i]);
    PyBuffer_Release(&out);
    return result;
}

// read_run(fd, first, step, runs, out): for each number k of the sequence `runs` as many bytes as fill its share of `out`, from
// byte first + k · step on. The same as read_runs for one piece, without making arrays of it.
static PyObject *read_run(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *runs;
    long long fd, first, step;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "LLLOw*", &fd, &first, &step, &runs, &out)) return NULL;
    const Py_ssize_t n = PySequence_Size(runs);
    int64_t few[16], *starts = n > 16 ? malloc(sizeof *starts * (size_t)n) : few;
    const int64_t file = fd, zero = 0, share = n > 0 ? out.len / n : 0;
    int ready = n >= 0 && starts;
    if (n > 0 && !starts) PyErr_NoMemory();
    for (Py_ssize_t i = 0; ready && i < n; i++) {
        PyObject *number = PySequence_GetItem(runs, i);
        starts[i] = first + step * (number ? PyLong_AsLongLong(number) : 0);
        Py_XDECREF(number);
        ready = !PyErr_Occurred();
    }
    const Job job = {&file, &zero, starts, &share, &zero, 1, n, share, out.buf};
    PyObject *result = ready ? run(&job) : NULL;
    if (starts != few) free(starts);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"read_runs", read_runs, METH_VARARGS, "Pieces of files into one buffer; None, or (file, byte) where a file ends too early."},
    {"read_run", read_run, METH_VARARGS, "Several ranges of one file, of the same length, one after the other into one buffer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_ranges", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ranges(void) { return PyModule_Create(&module); }
