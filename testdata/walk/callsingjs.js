// callsingjs.js calls itself in many ways. In turn number ARGV[0] it writes what its stack is to the file ARGV[1], and waits; in turn 0
// it never does.
const { GLib } = imports.gi;
let turn = 0;
function leaf(x, y) {
  if (turn === +ARGV[0]) {
    GLib.file_set_contents(ARGV[1], new Error("here").stack + "\nend"), GLib.usleep(60000000);
  }
  let s = y === undefined ? 0 : 1;
  for (let i = 0; i < 30; i++)
    s += i ^ x;
  return s;
}
class Shape {
  constructor(n) {
    this.n = n;
    this.n +=
      this.size;
  }
  get size() {
    return leaf(this.n);
  }
  area() {

    return this.helper(2);
  }
  helper(k) { return leaf(this.n * k, 1) + this.n; }
  static make(n) { return new Shape(n); }
}
function* numbers(n) {
  for (let i = 0; i < n; i++) {
    leaf(i);
    yield i;
  }
}
const arrow = (a) => a.map(function inner(v) {
  const s = Shape.make(v);
  return s.area();
});
function sorter() {
  return [3, 1, 2].sort(function compare(x, y) {
    arrow([x]);
    return x - y;
  });
}
function main() {
  for (turn = 1; ; turn++) {
    sorter();
    if (turn === 100)
      GLib.file_set_contents(ARGV[1] + ".begun", "");
    for (const x of numbers(3))
      if (x > 3)
        break;
  }
}
main();
