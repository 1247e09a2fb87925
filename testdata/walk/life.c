// Threads that come and go, signals, forks, exec: what a tracer must follow.
// Commands: "thread" starts and joins one, "fork" makes a child that exits and
// waits for it, "exec" runs argv[0] again, "texec" does so from another
// thread, "lexec" from one that waits until the first has ended, "exec PATH"
// and "texec PATH" run another program, "chain N" makes a child that makes a
// child and so on, each by way of an exec, and waits, "signals" answers how
// many SIGRTMIN, which queue, have come, "count" how often the busy thread has
// gone round, "leave" ends the initial thread, "exit N" the process.
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

static char **args;

static void *execute(void *path) {
	args[0] = path;
	execv(path, args);
	perror(path);
	exit(1);
}

static void *execute_last(void *path) {
	char name[64], state = 0;
	snprintf(name, sizeof name, "/proc/self/task/%d/stat", getpid());
	while (state != 'Z') {
		FILE *f = fopen(name, "r");
		if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		if (f)
			fclose(f);
		usleep(1000);
	}
	return execute(path);
}

static void *brief(void *arg) { return arg; }

static void tick(int sig) { ticks++; }

int main(int argc, char **argv) {
	char line[4096];
	pthread_t t;
	args = argv;
	if (argc > 1) { // a link of a chain
		int n = atoi(argv[1]), status = 0;
		pid_t pid = n > 0 ? fork() : -1;
		if (!pid) {
			char number[16];
			snprintf(number, sizeof number, "%d", n - 1);
			execl(argv[0], argv[0], number, NULL);
			_exit(99);
		}
		if (pid > 0)
			waitpid(pid, &status, 0);
		return n > 0 ? WEXITSTATUS(status) + 1 : 0;
	}
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
			execute(argv[0]);
		} else if (!strncmp(line, "exec ", 5)) {
			execute(line + 5);
		} else if (!strcmp(line, "lexec")) {
			pthread_create(&t, NULL, execute_last, argv[0]);
			pthread_exit(NULL);
		} else if (!strncmp(line, "texec", 5)) {
			pthread_create(&t, NULL, execute, line[5] ? line + 6 : argv[0]);
			pause();
		} else if (!strncmp(line, "chain ", 6)) {
			int status;
			pid_t pid = fork();
			if (!pid) {
				execl(argv[0], argv[0], line + 6, NULL);
				_exit(99);
			}
			waitpid(pid, &status, 0);
			printf("%d %d\n", pid, WEXITSTATUS(status));
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
