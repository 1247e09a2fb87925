// A program for Windows: it calls itself, sorts and has the system wait, until it is ended.
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

static volatile int sink;

static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

__attribute__((noinline)) static int leaf(int n)
{
	for (int i = 0; i < 200 * n; i++)
		sink += i;
	return sink;
}

__attribute__((noinline)) static int large(int n)
{
	volatile char room[20000];
	room[n] = 1;
	return leaf(n) + room[n];
}

__attribute__((noinline)) static int down(int n)
{
	int below = n ? down(n - 1) : large(100);
	sink += below; // or it is a loop
	return below;
}

int main(void)
{
	static int numbers[1000];
	puts("ready");
	fflush(stdout);
	for (;;) {
		down(20);
		for (int i = 0; i < 1000; i++)
			numbers[i] = rand();
		qsort(numbers, 1000, sizeof *numbers, compare);
		Sleep(0);
	}
}
