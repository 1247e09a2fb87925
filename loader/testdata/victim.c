// A program whose executable mappings are compared with what the side-band
// told of them. Built by the tests: cc -O1 -o victim victim.c -ldl -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define RWX (PROT_READ | PROT_WRITE | PROT_EXEC)

static void die(const char *what)
{
	perror(what);
	exit(1);
}

// dump prints the process's number and mappings.
static void dump(void)
{
	char buf[65536];
	int fd = open("/proc/thread-self/maps", O_RDONLY);
	ssize_t n;

	printf("pid %d\n", getpid());
	fflush(stdout);
	while ((n = read(fd, buf, sizeof buf)) > 0)
		if (write(1, buf, n) != n)
			die("write");
	close(fd);
	printf("end\n");
}

// storm loads, unloads, maps and protects until little is where it was.
static void storm(char **libs, int n)
{
	void *handle[64] = {0};
	char *area = mmap(NULL, 512 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int self = open("/proc/self/exe", O_RDONLY);

	srand(1);
	for (int round = 0; round < 400; round++) {
		int i = rand() % n;
		if (handle[i]) {
			dlclose(handle[i]);
			handle[i] = NULL;
		} else {
			handle[i] = dlopen(libs[i], RTLD_NOW);
			if (!handle[i])
				fprintf(stderr, "%s\n", dlerror());
		}
		char *at = area + (rand() % 500) * PAGE;
		size_t len = (1 + rand() % 10) * PAGE;
		switch (rand() % 4) {
		case 0: // code written at run time
			if (mprotect(at, len, PROT_READ | PROT_WRITE) || mprotect(at, len, PROT_READ | PROT_EXEC))
				die("mprotect");
			break;
		case 1:
			if (mmap(at, len, RWX, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
				die("mmap anonymous");
			break;
		case 2:
			if (mmap(at, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, self, PAGE) == MAP_FAILED)
				die("mmap file");
			break;
		case 3: // never executable again
			if (mmap(at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
				die("mmap none");
			break;
		}
	}
}

// remap_text copies all of this program's text but its first page to
// anonymous memory in place, as programs do to have it on huge pages.
__attribute__((section(".text.zz_tail"), noinline, aligned(4096), used)) static void filler(void)
{
	__asm__ volatile(".skip 262144, 0x90");
}

static void remap_text(void)
{
	char *start = (char *)filler;
	size_t len = 262144;
	char *copy = malloc(len);

	memcpy(copy, start, len);
	if (mmap(start, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		die("mmap text");
	memcpy(start, copy, len);
	if (mprotect(start, len, PROT_READ | PROT_EXEC))
		die("mprotect text");
}

static void *exec_from_thread(void *path)
{
	char *argv[] = {path, "dump", NULL};

	execv(path, argv);
	die("execv");
	return NULL;
}

static void *outlive(void *unused)
{
	usleep(30000);
	mmap(NULL, 3 * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	dump();
	exit(0);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "dump";
	pthread_t t;

	setvbuf(stdout, NULL, _IONBF, 0);
	if (!strcmp(what, "dump")) {
		dump();
	} else if (!strcmp(what, "wait")) { // until standard input ends
		dump();
		getchar();
	} else if (!strcmp(what, "storm")) {
		storm(argv + 2, argc - 2);
		dump();
		getchar();
	} else if (!strcmp(what, "burst")) { // argv[2] mappings, none merged
		for (int i = 0; i < atoi(argv[2]); i++) {
			char *p = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (mprotect(p, PAGE, PROT_READ | PROT_EXEC) || munmap(p, 2 * PAGE))
				die("burst");
		}
		dump();
	} else if (!strcmp(what, "hugetext")) {
		remap_text();
		dump();
		getchar();
	} else if (!strcmp(what, "move")) { // code to another place
		int self = open("/proc/self/exe", O_RDONLY);
		char *p = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, self, PAGE);
		char *to = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 8 * PAGE) == MAP_FAILED)
			die("mremap");
		dump();
		getchar();
	} else if (!strcmp(what, "unlink")) { // its own file
		if (unlink(argv[2]))
			die("unlink");
		dump();
		getchar();
	} else if (!strcmp(what, "memfd")) { // runs a copy of itself from memory
		int in = open("/proc/self/exe", O_RDONLY);
		int fd = memfd_create("victim", MFD_CLOEXEC);
		char buf[65536];
		ssize_t n;
		while ((n = read(in, buf, sizeof buf)) > 0)
			if (write(fd, buf, n) != n)
				die("write");
		if (write(fd, "different", 9) != 9) // from the file on disk
			die("write");
		char *args[] = {"victim", "wait", NULL};
		syscall(SYS_execveat, fd, "", args, environ, 0x1000 /* AT_EMPTY_PATH */);
		die("execveat");
	} else if (!strcmp(what, "threadexec")) {
		pthread_create(&t, NULL, exec_from_thread, argv[0]);
		pthread_join(t, NULL);
	} else if (!strcmp(what, "outlive")) { // the initial thread ends first
		pthread_create(&t, NULL, outlive, NULL);
		pthread_exit(NULL);
	} else if (!strcmp(what, "forks")) { // argv[2] children, one by one
		for (int i = 0; i < atoi(argv[2]); i++) {
			pid_t pid = fork();
			if (pid == 0)
				_exit(0);
			waitpid(pid, NULL, 0);
		}
		dump();
	}
	return 0;
}
