#include "varsunits_types.h"

namespace shapes {

long Shape::area() const { return 0; }

long Circle::area() const
{
	Point here = at;
	return 3 * radius * radius + here.x;
}

} // namespace shapes
