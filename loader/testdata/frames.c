// A thread that keeps frames of its own as a runtime does: most on a stack, some elsewhere. It
// runs until it is killed.
//
//   frames COUNT  that many on the stack, and one elsewhere for every tenth, the first of all
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct frame {
	uint64_t code, previous, more[7];
};

struct {
	uint64_t current, low, high, indirect;
} thread_frames; // the test finds it by its name

static struct {
	uint64_t low, frame, area, words; // the stack ends where that many words do
	uint64_t values;
} cell;

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	struct frame *stack = calloc(count, sizeof(*stack));
	uint64_t *values = calloc(count, 64), last = 0;
	volatile int go = 1;

	for (int i = 0; i < count; i++) {
		stack[i] = (struct frame){ i, last };
		last = (uint64_t)&stack[i];
		if (i % 10)
			continue;
		struct frame *apart = calloc(1, 4096);
		*apart = (struct frame){ 1000 + i, last };
		last = (uint64_t)apart;
	}
	cell.low = (uint64_t)stack;
	cell.frame = last;
	cell.values = (uint64_t)values;
	stack[0].more[0] = (uint64_t)(values + 8 * count);
	cell.area = cell.low - 800;
	cell.words = count * sizeof(*stack) / 8 + 100;
	thread_frames.current = last;
	thread_frames.low = (uint64_t)stack;
	thread_frames.high = (uint64_t)(stack + count);
	thread_frames.indirect = (uint64_t)&cell;
	putchar('.');
	fflush(stdout);
	while (go)
		;
}
