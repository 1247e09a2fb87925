// A thread that keeps stacks of entries as a runtime does, each in a frame of its own. It runs until
// it is killed.
//
//   entries COUNT  frames, the first of which has that many entries, the next one fewer...
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct frame {
	uint64_t unused;
	char *entries;
	struct frame *previous;
	uint64_t next;
	int32_t last, room;
};

struct {
	uint64_t before[3];
	struct frame *current;
	uint64_t after;
} thread_entries = { { 1, 2, 3 }, NULL, 4 }; // the test finds it by its name

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	volatile int go = 1;

	for (int i = 0; i < 3; i++) {
		struct frame *f = calloc(1, sizeof(*f));
		f->last = count - 1 - (2 - i);
		f->entries = calloc(count + 2, 104);
		for (int j = 0; j < 104 * (count + 2); j++)
			f->entries[j] = i + j;
		f->previous = thread_entries.current;
		thread_entries.current = f;
	}
	putchar('.');
	fflush(stdout);
	while (go)
		;
}
