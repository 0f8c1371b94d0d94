#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long none, *off = &none;

__attribute__((constructor)) static void begin(void) {
	int fd = open(getenv("WEIR_TEST_CLOCK"), O_RDONLY);
	void *at = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0 && at != MAP_FAILED) off = at;
}
int clock_gettime(clockid_t which, struct timespec *now) {
	int failed = syscall(SYS_clock_gettime, which, now);
	if (!failed && which == CLOCK_REALTIME) now->tv_sec += *off;
	return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	now->tv_sec = t.tv_sec;
	now->tv_usec = t.tv_nsec / 1000;
	return 0;
}
time_t time(time_t *now) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (now) *now = t.tv_sec;
	return t.tv_sec;
}
