// Large variables: what is read of them has to be bounded.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct conn {
	int fd;
	char name[32];
	struct conn *next;
	double weight;
};

int main(void) {
	static struct conn conns[100000];
	static int zeros[1 << 20], numbers[1 << 20];
	static char text[1 << 20], spaces[4 << 20];
	static int grid[1000][1000];
	static char pages[3][1 << 16];
	char c = 0;
	for (int i = 0; i < 1 << 20; i++)
		numbers[i] = i;
	memset(spaces, ' ', sizeof(spaces));
	strcpy(text, "hello");
	conns[3].fd = 7;
	puts("ready");
	fflush(stdout);
	return (int)read(0, &c, 1) + conns[1].fd + zeros[1] + numbers[0] + text[9] + grid[1][1] + pages[1][1] + spaces[0];
}
