// Loads and unloads libraries as it is told: "open PATH" answers with what the
// library's constructor has left in loaded, "close" closes the last, "blocked"
// has a thread that blocks all signals do all of this from then on, "spin N"
// opens and closes argv[1] N times.
// "signals" answers with how many SIGWINCH and SIGURG handlers have run.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile long loaded;
static atomic_int signals;

static void count(int sig) { signals++; }

static void *serve(void *arg) {
	char **argv = arg, line[4096];
	void *last = NULL;
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "open ", 5)) {
			loaded = 0;
			last = dlopen(line + 5, RTLD_NOW);
			if (!last)
				puts(dlerror());
			else
				printf("%ld\n", loaded);
		} else if (!strcmp(line, "close")) {
			printf("%d\n", dlclose(last));
		} else if (!strcmp(line, "blocked")) {
			sigset_t all, old;
			pthread_t t;
			sigfillset(&all);
			pthread_sigmask(SIG_SETMASK, &all, &old);
			printf("%d\n", pthread_create(&t, NULL, serve, argv));
			fflush(stdout);
			pthread_sigmask(SIG_SETMASK, &old, NULL);
			pthread_join(t, NULL);
			break;
		} else if (!strncmp(line, "spin ", 5)) {
			int n = atoi(line + 5), ok = 0;
			for (int i = 0; i < n; i++) {
				void *h = dlopen(argv[1], RTLD_NOW);
				if (h && !dlclose(h))
					ok++;
			}
			printf("%d\n", ok);
		} else if (!strcmp(line, "signals")) {
			printf("%d\n", signals);
		} else {
			puts("?");
		}
		fflush(stdout);
	}
	return NULL;
}

int main(int argc, char **argv) {
	signal(SIGWINCH, count);
	signal(SIGURG, count);
	puts("ready");
	printf("%p\n", (void *)&loaded);
	fflush(stdout);
	serve(argv);
	return 0;
}
