// Types that one unit describes and another uses: with clang a class is
// described where its first virtual function is.
#pragma once

namespace shapes {

struct Point {
	long x, y;
};

class Shape {
public:
	explicit Shape(long id) : id(id) {}
	virtual long area() const;
	long id;
};

class Circle : public Shape {
public:
	Circle(long id, Point at, long radius) : Shape(id), at(at), radius(radius) {}
	long area() const override;
	Point at;
	long radius;
};

} // namespace shapes
