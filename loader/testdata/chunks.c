// A thread whose stack a runtime has in part in objects, innermost first. It runs until it is killed.
//
//   chunks [marked]  their addresses are stored behind marks, of whose last four bits one is set
#include <stdio.h>

struct chunk {
	unsigned long outer;
	unsigned low, words;
	unsigned long frames[8];
};

struct holder {
	unsigned long unused, inner;
};

static unsigned long marked(const void *p, int mark, int bit)
{
	return mark ? (unsigned long)p << (mark + bit + 1) | 1UL << (mark + bit) | ((1UL << mark) - 1) : (unsigned long)p;
}

struct chunk chunks[3];
struct holder holder;
volatile unsigned long thread_chunks[2]; // the address of a word on the stack, and one beside

int main(int argc, char **argv)
{
	int mark = argc > 1 ? 12 : 0;
	volatile unsigned long on_stack[2] = { 0, (unsigned long)&holder };

	for (int i = 0; i < 3; i++) {
		chunks[i].low = i == 1 ? 8 : 3; // the second is empty
		chunks[i].words = 8;
		chunks[i].outer = i < 2 ? marked(&chunks[i + 1], mark, i) : marked(0, mark, 3);
		for (int j = 0; j < 8; j++)
			chunks[i].frames[j] = 10 * i + j;
	}
	holder.inner = marked(&chunks[0], mark, 2);
	thread_chunks[1] = 4711;
	thread_chunks[0] = (unsigned long)on_stack;
	putchar('.');
	fflush(stdout);
	for (;;)
		;
}
