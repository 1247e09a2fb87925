/* zlib packs some text at each level and unpacks it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int compress2(unsigned char *, unsigned long *, const unsigned char *, unsigned long, int);
int uncompress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);

int main(void) {
	unsigned char text[300], packed[600], back[300];
	int wrong = 0;
	for (unsigned i = 0; i < sizeof text; i++)
		text[i] = "abracadabra"[i * i / 7 % 11];
	getppid();
	for (int level = 0; level < 10; level += 3) {
		unsigned long n = sizeof packed, m = sizeof back;
		wrong += compress2(packed, &n, text, sizeof text, level) || uncompress(back, &m, packed, n) || memcmp(text, back, sizeof back);
	}
	printf("%d\n", wrong);
	return wrong;
}
