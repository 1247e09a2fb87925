/* Numbers to text and back: libc multiplies long numbers by functions written by
   hand, which save registers without a word of it in their CFI. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
	char text[64];
	double sum = 0;
	for (int i = 1; i < 4; i++) {
		snprintf(text, sizeof text, "%.20g", 1.1e60 * i);
		sum += strtod(text, NULL) + strtod("1.2345678901234567890123456789e-40", NULL);
	}
	printf("%g\n", sum);
	return 0;
}
