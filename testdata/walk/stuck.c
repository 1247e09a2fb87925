/* Threads that wait for all kinds of things: two for each other's lock, the first one for
 * the end of one of them, two for what that has locked to write and one for what it has locked itself. Prints the port that it listens on. Usage: stuck DIRECTORY */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER,
	own = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t written = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t both;
static int ends[2], listener, client;

static void *lock(void *name)
{
	int one = !strcmp(name, "lock1");

	pthread_setname_np(pthread_self(), name);
	pthread_mutex_lock(one ? &first : &second);
	pthread_barrier_wait(&both);
	pthread_mutex_lock(one ? &second : &first);
	return NULL;
}

static void *wait_for(void *name)
{
	struct pollfd fds[2] = { { .fd = ends[0], .events = POLLIN }, { .fd = client, .events = POLLIN } };
	char c;
	int pid, parent, count;
	pthread_t t;

	pthread_setname_np(pthread_self(), name);
	switch (*(char *)name) {
	case 'r':
		return (void *)read(ends[0], &c, 1);
	case 'a':
		return (void *)(long)accept(listener, NULL, NULL);
	case 's':
		return (void *)recv(client, &c, 1, 0);
	case 'p':
		return (void *)(long)poll(fds, 2, -1);
	case 'n':
		return (void *)(long)sleep(1000);
	case 'f':
		return (void *)(long)open("fifo", O_RDONLY);
	case 'l':
		return (void *)(long)flock(open("lock", O_RDWR), LOCK_EX);
	case 'c':
		parent = getpid();
		if (!(pid = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			for (;;)
				pause();
		}
		return (void *)(long)waitpid(pid, NULL, 0);
	case 'R':
		return (void *)(long)pthread_rwlock_rdlock(&written);
	case 'W':
		return (void *)(long)pthread_rwlock_wrlock(&written);
	case 'o':
		pthread_mutex_lock(&own);
		pthread_create(&t, NULL, wait_for, "timed");
		return (void *)(long)pthread_mutex_lock(&own);
	case 't': /* gives up by itself */
		return (void *)(long)pthread_mutex_timedlock(&own, &(struct timespec){ .tv_sec = 1L << 40 });
	case 'i': /* a count that has come to a thread's number */
		count = getpid();
		return (void *)syscall(SYS_futex, &count, FUTEX_WAIT_PRIVATE, count, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(addr);
	pthread_t t, holder;
	static char *names[] = { "read", "accept", "socket", "poll", "nap", "fifo", "lockfile", "child",
		"Reader", "Writer", "items", "own" };

	if (argc < 2 || chdir(argv[1]) || pipe(ends) || mkfifo("fifo", 0600))
		return 1;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	client = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (void *)&addr, n) || listen(listener, 1) || getsockname(listener, (void *)&addr, &n) ||
	    connect(client, (void *)&addr, n) || accept(listener, NULL, NULL) < 0)
		return 1;
	flock(open("lock", O_CREAT | O_RDWR, 0600), LOCK_EX);
	pthread_rwlock_wrlock(&written);
	pthread_barrier_init(&both, NULL, 2);
	pthread_create(&holder, NULL, lock, "lock1");
	pthread_create(&t, NULL, lock, "lock2");
	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
		pthread_create(&t, NULL, wait_for, names[i]);
	printf("%d\nready\n", ntohs(addr.sin_port));
	fflush(stdout);
	pthread_join(holder, NULL);
	return 0;
}
