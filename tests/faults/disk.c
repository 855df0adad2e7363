/* A disk that remembers what was flushed, that fills up, or that may not be written: preloaded before libc.

   FAULTY_DISK is the folder it watches. FAULTY_LOG is where every change below that folder is written down, in order,
   as one record each: (op, inode, place, length of the first name, length of the second name or data), then both.
   FAULTY_LEFT is a file of eight bytes that the test holds as well: how many bytes may still be written, -1 for a
   disk with room, -2 for one that is read-only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char watched[FILES];
static const char *root;
static size_t root_length;
static int log_file = -1;
static int64_t no_limit = -1;
static volatile int64_t *left = &no_limit;
#define read_only (*left == -2)


__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("FAULTY_LOG"), *bytes = getenv("FAULTY_LEFT");
  root = getenv("FAULTY_DISK");
  if (!root) return;
  root_length = strlen(root);
  if (bytes) {
    int file = (int)syscall(SYS_openat, AT_FDCWD, bytes, O_RDWR | O_CLOEXEC, 0);
    void *shared = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) left = shared;
    syscall(SYS_close, file);
  }
  if (log) log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int below(const char *path) {
  return root && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* The whole name of `path`, as the kernel would find it from `folder`. */
static int whole(int folder, const char *path, char *out) {
  char start[PATH_MAX] = "";
  if (path[0] != '/') {
    char link[64];
    if (folder == AT_FDCWD) {
      if (!getcwd(start, sizeof start)) return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      ssize_t n = readlink(link, start, sizeof start - 1);
      if (n < 0) return 0;
      start[n] = 0;
    }
    return snprintf(out, PATH_MAX, "%s/%s", start, path) < PATH_MAX && below(out);
  }
  return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX && below(out);
}

#pragma pack(push, 1)
struct header { uint8_t op; uint64_t inode, place; uint32_t first, second; };
#pragma pack(pop)

static void note(char op, uint64_t inode, uint64_t place, const char *first, const void *second, size_t n) {
  if (log_file < 0) return;
  size_t m = first ? strlen(first) : 0;
  struct header h = {(uint8_t)op, inode, place, (uint32_t)m, (uint32_t)n};
  struct iovec parts[3] = {{&h, sizeof h}, {(void *)first, m}, {(void *)second, n}};
  syscall(SYS_writev, log_file, parts, 3);
}

static uint64_t inode_of(int file) {
  struct stat s;
  return fstat(file, &s) ? 0 : (uint64_t)s.st_ino;
}

static int opened(int folder, const char *path, int flags, mode_t mode, int (*call)(int, const char *, int, mode_t)) {
  char name[PATH_MAX];
  int kept = errno, mine = root && whole(folder, path, name) && !(flags & O_PATH);
  if (mine && read_only && (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))) { errno = EROFS; return -1; }
  if (!mine) { errno = kept; return call(folder, path, flags, mode); }
  pthread_mutex_lock(&lock);
  int was = !access(name, F_OK);
  if (!was && (flags & O_CREAT) && !*left) {
    pthread_mutex_unlock(&lock);
    errno = ENOSPC;
    return -1;
  }
  errno = kept;
  int file = call(folder, path, flags, mode);
  kept = errno;
  if (file >= 0 && file < FILES) {
    watched[file] = 1;
    if (flags & (O_WRONLY | O_RDWR | O_CREAT)) {
      note(was ? 'o' : 'c', inode_of(file), 0, name, NULL, 0);
      if (was && (flags & O_TRUNC)) note('t', inode_of(file), 0, name, NULL, 0);
    }
  }
  pthread_mutex_unlock(&lock);
  errno = kept;
  return file;
}

static int call_openat(int folder, const char *path, int flags, mode_t mode) {
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}
#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode, call_openat); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode, call_openat); }
int openat(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags, mode, call_openat); }
int openat64(int folder, const char *path, int flags, ...) { MODE return opened(folder, path, flags | O_LARGEFILE, mode, call_openat); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode, call_openat); }

int close(int file) {
  if (file >= 0 && file < FILES) watched[file] = 0;
  return (int)syscall(SYS_close, file);
}

static int mine(int file) { return file >= 0 && file < FILES && watched[file]; }

/* How many of n bytes fit; -1 where none does. */
static ssize_t fits(size_t n) {
  if (read_only) { errno = EROFS; return -1; }
  if (*left < 0) return (ssize_t)n;
  if (!*left) { errno = ENOSPC; return -1; }
  if ((int64_t)n > *left) n = (size_t)*left;
  *left -= (int64_t)n;
  return (ssize_t)n;
}

static ssize_t put(int file, const void *data, size_t n, off_t place) {
  if (!mine(file)) return place < 0 ? syscall(SYS_write, file, data, n) : syscall(SYS_pwrite64, file, data, n, place);
  pthread_mutex_lock(&lock);
  ssize_t done = n ? fits(n) : 0;
  if (done >= 0) {
    done = place < 0 ? syscall(SYS_write, file, data, done) : syscall(SYS_pwrite64, file, data, done, place);
    if (done > 0) {
      off_t at = place < 0 ? lseek(file, 0, SEEK_CUR) - done : place;
      note('w', inode_of(file), (uint64_t)at, NULL, data, (size_t)done);
    }
  }
  int kept = errno;
  pthread_mutex_unlock(&lock);
  errno = kept;
  return done;
}
ssize_t write(int file, const void *data, size_t n) { return put(file, data, n, -1); }
ssize_t pwrite(int file, const void *data, size_t n, off_t place) { return put(file, data, n, place); }
ssize_t pwrite64(int file, const void *data, size_t n, off_t place) { return put(file, data, n, place); }
ssize_t writev(int file, const struct iovec *parts, int count) {
  if (!mine(file)) return syscall(SYS_writev, file, parts, count);
  ssize_t total = 0;
  for (int k = 0; k < count; k++) {
    ssize_t done = put(file, parts[k].iov_base, parts[k].iov_len, -1);
    if (done < 0) return total ? total : -1;
    total += done;
    if ((size_t)done < parts[k].iov_len) break;
  }
  return total;
}
/* Whoever asks for these falls back to writing. */
ssize_t sendfile(int out, int in, off_t *place, size_t n) {
  if (mine(out)) { errno = EINVAL; return -1; }
  return syscall(SYS_sendfile, out, in, place, n);
}
ssize_t sendfile64(int out, int in, off_t *place, size_t n) { return sendfile(out, in, place, n); }
ssize_t copy_file_range(int in, off_t *a, int out, off_t *b, size_t n, unsigned flags) {
  if (mine(out)) { errno = EXDEV; return -1; }
  return syscall(SYS_copy_file_range, in, a, out, b, n, flags);
}
int posix_fallocate(int file, off_t place, off_t n) {
  return mine(file) ? EOPNOTSUPP : (int)(syscall(SYS_fallocate, file, 0, place, n) ? errno : 0);
}
int posix_fallocate64(int file, off_t place, off_t n) { return posix_fallocate(file, place, n); }
int fallocate(int file, int how, off_t place, off_t n) {
  if (mine(file)) { errno = EOPNOTSUPP; return -1; }
  return (int)syscall(SYS_fallocate, file, how, place, n);
}

int ftruncate(int file, off_t size) {
  if (!mine(file)) return (int)syscall(SYS_ftruncate, file, size);
  pthread_mutex_lock(&lock);
  int code = (int)syscall(SYS_ftruncate, file, size), kept = errno;
  if (!code) note('t', inode_of(file), (uint64_t)size, NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
  errno = kept;
  return code;
}
int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

/* Nothing is flushed in truth: what counts is what stands in the record, and the tests' disks are short-lived. */
static int flushed(int file, long call) {
  if (!mine(file)) return (int)syscall(call, file);
  struct stat s;
  char link[64], name[PATH_MAX];
  pthread_mutex_lock(&lock);
  if (!fstat(file, &s)) {
    if (S_ISDIR(s.st_mode)) {
      snprintf(link, sizeof link, "/proc/self/fd/%d", file);
      ssize_t n = readlink(link, name, sizeof name - 1);
      name[n > 0 ? n : 0] = 0;
      note('d', 0, 0, name, NULL, 0);
    } else {
      note('s', (uint64_t)s.st_ino, 0, NULL, NULL, 0);
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}
int fsync(int file) { return flushed(file, SYS_fsync); }
int fdatasync(int file) { return flushed(file, SYS_fdatasync); }

/* A change of names: `op` is what is written down, `call` what the kernel is asked for. */
#define CHANGE(op, call)                                      \
  if (!is) return (int)(call);                                \
  if (read_only) { errno = EROFS; return -1; }                \
  pthread_mutex_lock(&lock);                                  \
  int code = (int)(call), kept = errno;                       \
  if (!code) note(op, 0, 0, a, b, strlen(b));                 \
  pthread_mutex_unlock(&lock);                                \
  errno = kept;                                               \
  return code;
#define ONE(op, folder, path, call)                           \
  char a[PATH_MAX], b[1] = "";                                \
  int is = root && whole(folder, path, a);                    \
  CHANGE(op, call)
#define TWO(op, folder, path, other_folder, other, call)      \
  char a[PATH_MAX], b[PATH_MAX];                              \
  int is = root && (whole(folder, path, a) | whole(other_folder, other, b)); \
  CHANGE(op, call)

int rename(const char *x, const char *y) { TWO('r', AT_FDCWD, x, AT_FDCWD, y, syscall(SYS_rename, x, y)) }
int renameat(int f, const char *x, int g, const char *y) { TWO('r', f, x, g, y, syscall(SYS_renameat2, f, x, g, y, 0)) }
int link(const char *x, const char *y) { TWO('l', AT_FDCWD, x, AT_FDCWD, y, syscall(SYS_linkat, AT_FDCWD, x, AT_FDCWD, y, 0)) }
int linkat(int f, const char *x, int g, const char *y, int flags) { TWO('l', f, x, g, y, syscall(SYS_linkat, f, x, g, y, flags)) }
int unlink(const char *x) { ONE('u', AT_FDCWD, x, syscall(SYS_unlink, x)) }
int unlinkat(int f, const char *x, int flags) { ONE('u', f, x, syscall(SYS_unlinkat, f, x, flags)) }
int rmdir(const char *x) { ONE('u', AT_FDCWD, x, syscall(SYS_rmdir, x)) }
int mkdir(const char *x, mode_t m) { ONE('m', AT_FDCWD, x, syscall(SYS_mkdirat, AT_FDCWD, x, m)) }
int mkdirat(int f, const char *x, mode_t m) { ONE('m', f, x, syscall(SYS_mkdirat, f, x, m)) }
