// callsinbun.js calls itself in many ways: methods, accessors, closures, generators, callbacks of functions of the
// language, with too few arguments, and by functions that wait. In turn number process.argv[2] it writes what its
// stack is to the file process.argv[3], and waits. No function ends in a call: it would have no frame then. If it is to be
// in turn -1, it waits in a loop that was entered once and has been compiled since. It calls too many functions from one
// place for any to be inlined, as a call of one that was not expected would go back to the interpreter.
let turn = 0;
function leaf(x, y) {
  if (turn === +process.argv[2]) {
    turn++;
    require("fs").writeFileSync(process.argv[3], new Error("here").stack + "\nend");
    Bun.sleepSync(60000);
  }
  let s = y === undefined ? 0 : 1;
  for (let i = 0; i < 30; i++) s += i ^ x;
  return s;
}
class Shape {
  constructor(n) { this.n = n; this.n += this.size; }
  get size() { const s = leaf(this.n); return s + 1; }
  area() { const s = this.helper(2); return s + 1; }
  helper(k) { const s = leaf(this.n * k, 1) + this.n; return s; }
  static make(n) { const s = new Shape(n); s.made = n; return s; }
}
function* numbers(n) { for (let i = 0; i < n; i++) { leaf(i); yield i; } }
const arrow = (a) => { const s = a.map(function inner(v) { const s = Shape.make(v).area(); return s + 1; }); return s.length; };
function sorter() {
  const s = [3, 1, 2].sort(function compare(x, y) { const d = arrow([x]); return x - y + d - d; });
  return s[0];
}
async function later(n) {
  await null;
  if (process.argv[2] === "-1") spin(1000);
  let s = sorter();
  for (const x of numbers(3)) s += x;
  return s;
}
const calls = Array.from({ length: 10 }, (_, i) => eval("(function call" + i + "(x) { const s = x + " + i + "; return s; })"));
calls.push(function last(x) { turn = -1; const s = leaf(x); return s; });
function step(done, n) { const s = calls[done * 10 + (1 - done) * (n % 10)](n); return s & 1; }
function spin(ms) {
  let s = 0;
  for (let done = 0, n = 0, end = Date.now() + ms; !done; n = (n + 1) % 1000) {
    done = +(Date.now() >= end);
    s += step(done, n);
  }
  return s;
}
async function main() {
  for (;;) { turn++; await later(turn); }
}
main();
