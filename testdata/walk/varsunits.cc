// Stands still with variables of types that only another unit describes.
#include "varsunits_types.h"
#include <cstdio>

static int stand(const shapes::Circle &ref, shapes::Circle *pointer)
{
	shapes::Circle copy = ref;
	shapes::Shape base = ref;
	shapes::Circle two[2] = {ref, *pointer};
	int n = 7;
	puts("ready");
	fflush(stdout);
	getchar();
	return int(copy.area() + base.area() + two[1].area() + n);
}

int main()
{
	shapes::Circle c(1, {2, 3}, 4);
	return stand(c, &c) == 0;
}
