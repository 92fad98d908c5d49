// Many pieces of open files into one buffer, as a Python extension: what `runs` does piece by piece.
//
// Built by setup.py where there is a C compiler on a POSIX system; without it the same is read in Python, several times slower
// (tests/store/test_runs.py compares them). Python's lock is released while bytes are read. Pieces that follow each other in a
// file are one request, wherever they go. What the page cache holds is copied at once; the rest is announced to the kernel first,
// all of it, and read after that, so that a disk which serves many requests together gets them together.
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LATE_RANGES = 1024 };  // at most announced to the kernel at a time
enum { TOGETHER = 256 };      // pieces that one request reads
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

// Reads what is in memory of n pieces that follow each other in a file. Gives how many it read whole; what is left of the next
// stands in it then, and the kernel knows that the rest will be read.
static int64_t read_cached(Range *r, int64_t n) {
#ifdef RWF_NOWAIT
    struct iovec into[TOGETHER];
    int64_t wanted = 0, whole = 0;
    for (int64_t i = 0; i < n; i++) {
        into[i] = (struct iovec){r[i].to, (size_t)r[i].length};
        wanted += r[i].length;
    }
    const ssize_t got = preadv2(r->fd, into, (int)n, (off_t)r->offset, RWF_NOWAIT);
    if (got == wanted) return n;
    int64_t left = got > 0 ? got : 0;
    if (got > 0 || (got < 0 && errno == EAGAIN))
        posix_fadvise(r->fd, (off_t)(r->offset + left), (off_t)(wanted - left), POSIX_FADV_WILLNEED);
    while (left >= r[whole].length) left -= r[whole++].length;
    r[whole].to += left, r[whole].offset += left, r[whole].length -= left;
    return whole;
#else
    (void)r, (void)n;
    return 0;
#endif
}

typedef struct {
    const int64_t *fds, *of, *starts, *n_bytes, *places, *steps;
    int64_t n_pieces, n_runs;
    char *out;
} Job;

// Run `run` of the pieces from `first` on that follow each other in one file. Gives how many they are.
static int64_t neighbours(const Job *job, int64_t first, int64_t run, Range *r) {
    int64_t n = 0;
    for (int64_t piece = first; piece < job->n_pieces && n < TOGETHER; piece++, n++) {
        const int64_t file = job->of[piece], start = job->starts[piece * job->n_runs + run];
        if (n && (file != r[n - 1].file || start != r[n - 1].offset + r[n - 1].length)) break;
        r[n] = (Range){(int)job->fds[file], file, start, job->n_bytes[piece], job->out + job->places[piece] + run * job->steps[piece]};
    }
    return n;
}

static Outcome read_late(const Range *late, int64_t n) {
    Outcome last = {FINE, 0, 0, 0};
    for (int64_t i = 0; i < n && last.what == FINE; i++) last = read_now(late[i]);
    return last;
}

static Outcome read_all(const Job *job) {
    Outcome last = {FINE, 0, 0, 0};
    Range late[LATE_RANGES + TOGETHER];
    int64_t n_late = 0;
    for (int64_t run = 0; run < job->n_runs; run++) {
        for (int64_t piece = 0; piece < job->n_pieces && last.what == FINE;) {
            Range *next = late + n_late;
            const int64_t n = neighbours(job, piece, run, next), whole = read_cached(next, n);
            memmove(next, next + whole, (size_t)(n - whole) * sizeof *next);
            piece += n, n_late += n - whole;
            if (n_late < LATE_RANGES) continue;
            last = read_late(late, n_late);
            n_late = 0;
        }
    }
    return last.what == FINE ? read_late(late, n_late) : last;
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

static int fits(const Job *job, const Py_buffer *view, int64_t out_bytes) {  // view: fds, of, starts, n_bytes, places, steps
    const int64_t n = job->n_pieces, n_files = entries(&view[0]), later = job->n_runs > 1 ? job->n_runs - 1 : 0;
    if (entries(&view[3]) != n || entries(&view[4]) != n || entries(&view[5]) != n || entries(&view[2]) != n * job->n_runs) return 0;
    for (int64_t i = 0; i < n; i++) {
        if (job->of[i] < 0 || job->of[i] >= n_files || job->places[i] < 0 || job->n_bytes[i] < 0 || job->steps[i] < 0) return 0;
        if (job->n_bytes[i] > out_bytes || (later && job->steps[i] > out_bytes / later)) return 0;
        if (job->places[i] > out_bytes - job->n_bytes[i] - later * job->steps[i]) return 0;
    }
    return 1;
}

// read_runs(fds, of, starts, n_bytes, places, steps, out): see runs.Runs; arrays are int64.
static PyObject *read_runs(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer view[6], out;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*w*", &view[0], &view[1], &view[2], &view[3], &view[4], &view[5], &out)) return NULL;
    const int64_t n = entries(&view[1]), n_runs = n ? entries(&view[2]) / n : 0;
    const Job job = {view[0].buf, view[1].buf, view[2].buf, view[3].buf, view[4].buf, view[5].buf, n, n_runs, out.buf};
    PyObject *result = NULL;
    if (fits(&job, view, out.len))
        result = run(&job);
    else
        PyErr_SetString(PyExc_ValueError, "the pieces do not fit the buffer, or one another");
    for (int i = 0; i < 6; i++) PyBuffer_Release(&view[i]);
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
    const Job job = {&file, &zero, starts, &share, &zero, &share, 1, n, out.buf};
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
