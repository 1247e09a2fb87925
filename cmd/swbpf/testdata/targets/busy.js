// busy.js SECONDS, of CPU time: methods, a generator, functions that are made for one call, recursion, exceptions,
// and callbacks of built-in functions, which make garbage.
'use strict'

class Shape {
  constructor(n) { this.n = n }
  area() { return helper(this.n) + this.more() }
  more() {
    let sum = 0
    for (const x of squares(this.n % 50)) sum += x
    return sum
  }
}

function* squares(n) {
  for (let i = 0; i < n; i++) yield square(i)
}

function square(x) { return x * x % 1009 }

function helper(n) {
  const by = { n }
  const made = Array.from({ length: n % 30 + 2 }, function fill(_, i) { return { v: square(i * by.n) } })
  return made.sort(function order(a, b) { return b.v - a.v })[0].v
}

function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }

function thrown(n) {
  try {
    return fails(n)
  } catch (e) {
    return e.message.length
  }
}

function fails(n) {
  if (n % 3 == 0) throw new Error('n is ' + n)
  return JSON.stringify({ n, more: Array(20).fill(n) }, function replace(_, v) { return v }).length
}

function work(i) {
  let sum = fib(12) + thrown(i)
  for (let n = 0; n < 100; n++) sum += new Shape(n + i).area()
  return sum
}

// Microseconds of CPU time.
function spent() {
  const { user, system } = process.cpuUsage()
  return user + system
}

function main() {
  const end = spent() + 1e6 * process.argv[2]
  let sum = 0
  for (let i = 0; i % 16 || spent() < end; i++) sum += work(i)
  return sum
}

console.log(main())
