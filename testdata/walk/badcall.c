/* Calls through a pointer that is null, garbage, or of data, and stays in the handler of
 * the signal for that. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct {
	void (*f)(int);
} ops;
static char data[64];

static void handler(int sig)
{
	(void)sig;
	if (write(1, "ready\n", 6))
		pause();
}

__attribute__((noinline)) void call(int x)
{
	ops.f(x);
	__asm__ volatile("");
}

__attribute__((noinline)) void jump(int x)
{
	ops.f(x);
}

__attribute__((noinline)) void middle(int tail)
{
	if (tail)
		jump(tail);
	else
		call(tail);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	signal(SIGSEGV, handler);
	signal(SIGBUS, handler);
	if (!strcmp(argv[1], "garbage"))
		ops.f = (void (*)(int))0x41414140;
	else if (!strcmp(argv[1], "data"))
		ops.f = (void (*)(int))data;
	middle(argc > 2);
	return 0;
}
