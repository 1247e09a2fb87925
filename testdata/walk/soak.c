// Starts and ends threads, loads and unloads the library argv[1], forks and
// takes signals, all at once, until a line of input asks for the result:
// "THREADS LOADS FORKS FAILURES SIGNALS".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long loaded;
static atomic_long threads, loads, forks, failures, signals;
static atomic_int end;

static void *brief(void *arg) {
	volatile char pad[256];
	pad[0] = 1;
	return (char *)arg + pad[0];
}

static void *start_threads(void *arg) {
	while (!end) {
		pthread_t t[4];
		int n = 0;
		for (; n < 4; n++)
			if (pthread_create(&t[n], NULL, brief, arg))
				break;
		if (n < 4)
			failures++;
		while (n-- > 0) {
			void *r;
			if (pthread_join(t[n], &r) || r != (char *)arg + 1)
				failures++;
			threads++;
		}
		usleep(300);
	}
	return NULL;
}

static void *load(void *path) {
	while (!end) {
		void *h = dlopen(path, RTLD_NOW);
		int (*f)(int) = h ? (int (*)(int))dlsym(h, "plugin_function") : NULL;
		if (!f || f(41) != 42 || dlclose(h))
			failures++;
		loads++;
		usleep(500);
	}
	return NULL;
}

static void *fork_often(void *arg) {
	while (!end) {
		int status = 0;
		pid_t pid = fork();
		if (!pid)
			_exit(7);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 7)
			failures++;
		forks++;
		usleep(2000);
	}
	return NULL;
}

static void count(int sig) { signals++; }

int main(int argc, char **argv) {
	char line[16];
	pthread_t t[3];
	struct sigaction sa = {.sa_handler = count, .sa_flags = SA_RESTART};
	sigaction(SIGRTMIN, &sa, NULL);
	pthread_create(&t[0], NULL, start_threads, argv);
	pthread_create(&t[1], NULL, load, argv[1]);
	pthread_create(&t[2], NULL, fork_often, NULL);
	puts("ready");
	fflush(stdout);
	fgets(line, sizeof line, stdin);
	end = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	printf("%ld %ld %ld %ld %ld\n", threads, loads, forks, failures, signals);
	return 0;
}
