// Threads that come and go, signals, forks, exec: what a tracer must follow.
// Commands: "thread" starts and joins one, "fork" makes a child that exits and
// waits for it, "exec" runs argv[0] again, "signals" answers how many SIGRTMIN,
// which queue, have come, "count" how often the busy thread has gone round,
// "leave" ends the initial thread, "exit N" the process.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_long rounds;
static atomic_int ticks;

static void *busy(void *arg) {
	pthread_setname_np(pthread_self(), "busy");
	for (;;) {
		rounds++;
		usleep(100);
	}
}

static void *brief(void *arg) { return arg; }

static void tick(int sig) { ticks++; }

int main(int argc, char **argv) {
	char line[64];
	pthread_t t;
	signal(SIGRTMIN, tick);
	pthread_create(&t, NULL, busy, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "thread")) {
			pthread_create(&t, NULL, brief, NULL);
			pthread_join(t, NULL);
			puts("ok");
		} else if (!strcmp(line, "fork")) {
			int status;
			pid_t pid = fork();
			if (!pid)
				_exit(7);
			waitpid(pid, &status, 0);
			printf("%d %d\n", pid, WEXITSTATUS(status));
		} else if (!strcmp(line, "exec")) {
			execv(argv[0], argv);
		} else if (!strcmp(line, "signals")) {
			printf("%d\n", ticks);
		} else if (!strcmp(line, "count")) {
			printf("%ld\n", rounds);
		} else if (!strcmp(line, "leave")) {
			puts("ok");
			fflush(stdout);
			pthread_exit(NULL);
		} else if (!strncmp(line, "exit ", 5)) {
			exit(atoi(line + 5));
		}
		fflush(stdout);
	}
	return 0;
}
