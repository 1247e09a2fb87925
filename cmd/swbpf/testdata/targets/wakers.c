/*
 * Threads that wake each other up: the main thread, "maker", wakes "taker" by a condition variable, "reader" by a pipe
 * and "receiver" by a TCP connection, so many times; "sleeper" is woken by timers alone. With "other"
 * another process reads the pipe, whose PID is printed, and there is nothing else; with "int80" there is a thread
 * "signalled" alone, to which a system call of 32 bits sends signals.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int full, pipe_ends[2], sender, receiver;

static void set(int to)
{
	pthread_mutex_lock(&lock);
	full = to;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void await(int what)
{
	pthread_mutex_lock(&lock);
	while (full != what)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

APART void make(void) { await(0); set(1); __asm__ volatile(""); }
APART void take(void) { await(1); set(0); __asm__ volatile(""); }
APART void write_byte(void) { if (write(pipe_ends[1], "", 1) != 1) exit(1); __asm__ volatile(""); }
APART void read_byte(void) { char b; if (read(pipe_ends[0], &b, 1) != 1) exit(1); __asm__ volatile(""); }
APART void send_byte(void) { if (send(sender, "", 1, 0) != 1) exit(1); __asm__ volatile(""); }
APART void receive_byte(void) { char b; if (recv(receiver, &b, 1, 0) != 1) exit(1); __asm__ volatile(""); }
APART void nap(void) { usleep(3000); __asm__ volatile(""); }

#if defined(__x86_64__)
static volatile int signalled_tid;
static void ignore(int signal) {}
APART void await_signal(void) { pause(); __asm__ volatile(""); }
static void *signalled(void *arg)
{
	signalled_tid = syscall(SYS_gettid);
	for (;;)
		await_signal();
	return arg;
}
APART void send_signal(void)
{
	int nr = 270; /* tgkill */
	__asm__ volatile("int $0x80" : "+a"(nr) : "b"(getpid()), "c"(signalled_tid), "d"(SIGUSR1) : "memory", "r8", "r9", "r10", "r11");
}
#endif

static void *taker(void *arg) { for (;;) take(); return arg; }
static void *reader(void *arg) { for (;;) read_byte(); return arg; }
static void *receives(void *arg) { for (;;) receive_byte(); return arg; }
static void *sleeper(void *arg) { for (;;) nap(); return arg; }

static void begin(void *(*what)(void *), const char *name)
{
	pthread_t t;

	if (pthread_create(&t, 0, what, 0))
		exit(1);
	pthread_setname_np(t, name);
}

static void connect_both(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n))
		exit(1);
	sender = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(sender, (void *)&a, n))
		exit(1);
	receiver = accept(l, 0, 0);
}

int main(int argc, char **argv)
{
	int turns = atoi(argv[1]);

	pthread_setname_np(pthread_self(), "maker");
	if (pipe(pipe_ends))
		return 1;
#if defined(__x86_64__)
	if (argc > 2 && !strcmp(argv[2], "int80")) {
		signal(SIGUSR1, ignore);
		begin(signalled, "signalled");
		while (turns--) {
			usleep(2000);
			send_signal();
		}
		return 0;
	}
#endif
	if (argc > 2) {
		pid_t child = fork();
		if (!child) {
			pthread_setname_np(pthread_self(), "other");
			close(pipe_ends[1]); /* it ends when the parent does */
			while (turns--)
				read_byte();
			return 0;
		}
		dprintf(1, "%d\n", child);
		while (turns--) {
			write_byte();
			usleep(2000);
		}
		waitpid(child, 0, 0);
		return 0;
	}
	connect_both();
	begin(taker, "taker");
	begin(reader, "reader");
	begin(receives, "receiver");
	begin(sleeper, "sleeper");
	usleep(20000); /* all wait then */
	while (turns--) {
		make();
		write_byte();
		send_byte();
		usleep(2000);
	}
	return 0;
}
