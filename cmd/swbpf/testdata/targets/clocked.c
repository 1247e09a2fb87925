// clocked FILE CMD...: runs a command and writes to a file how long it and all
// that it started were on a CPU: the nanoseconds that perf counts, which go on
// when an interrupt or the hypervisor takes the CPU, those that the scheduler
// charges, which do not, and into how many turns they were split.
#include <linux/perf_event.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long long ns(struct timeval t) { return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL; }

int main(int argc, char **argv)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr), .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_TASK_CLOCK, .inherit = 1,
	};
	struct rusage self, children;
	long long clock;
	int status;

	if (argc < 3)
		return 2;
	int fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0) {
		perror("clocked");
		return 2;
	}
	pid_t child = fork();
	if (child == 0) {
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}
	waitpid(child, &status, 0);
	getrusage(RUSAGE_SELF, &self);
	getrusage(RUSAGE_CHILDREN, &children);
	if (read(fd, &clock, sizeof(clock)) != sizeof(clock))
		return 2;
	FILE *f = fopen(argv[1], "w");
	if (!f)
		return 2;
	fprintf(f, "%lld %lld %ld\n", clock,
		ns(self.ru_utime) + ns(self.ru_stime) + ns(children.ru_utime) + ns(children.ru_stime),
		self.ru_nvcsw + self.ru_nivcsw + children.ru_nvcsw + children.ru_nivcsw);
	fclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
