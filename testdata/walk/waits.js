// waits.js TIMES: threads that wait, each behind a line that tells in which calls. Before, they have been
// in these that many times.
'use strict'
const fs = require('fs')
const vm = require('vm')
const { Worker, isMainThread, workerData } = require('worker_threads')
const cell = new Int32Array(new SharedArrayBuffer(4))

// tell writes the thread and, from the caller on, its functions with their lines.
function tell() {
  const before = Error.prepareStackTrace
  Error.stackTraceLimit = Infinity
  Error.prepareStackTrace = (_, sites) => sites
  const sites = new Error().stack.slice(1).filter(s => !s.isAsync() && s.getFileName())
  Error.prepareStackTrace = before
  const calls = sites.map(s => ({ name: s.getFunctionName() || '', file: s.getFileName(), line: s.getLineNumber() }))
  const tid = Number(fs.readlinkSync('/proc/thread-self').split('/')[2])
  fs.writeSync(1, JSON.stringify({ tid, calls }) + '\n')
}

function stop(ms, told) { told(), Atomics.wait(cell, 0, 0, ms) }

function deep(n, ms, told) {
  if (n > 0) {
    return deep(n - 1, ms, told) + 1
  }
  stop(ms, told)
  return 0
}

class Shape {
  constructor(ms, told) { this.ms = ms; this.told = told }
  area() {
    return [1]
      .map(x => this.inner(x))
  }
  inner(x) {
    const more = x + 1
    return deep(more + 2, this.ms, this.told)
  }
  get size() { return this.area().length }
  static of(ms, told) {
    const s = new Shape(ms, told)
    return s.size
  }
}

function* numbers(ms, told) {
  yield 1
  yield Shape.of(ms, told)
}

function caught(ms, told) {
  try {
    throw new Error()
  } catch {
    for (const x of numbers(ms, told)) cell[0] += 0 * x
  }
}

const made = vm.runInThisContext('(f, ms, told) => {\n\n  f(ms, told)\n}', { filename: '/made/straße.js', lineOffset: 100 })

function wide(ms, told) {
  [2, 1].sort((a, b) => {
    made(caught, ms, told)
    return a - b
  })
}

function calls(ms, told) {
  wide.bind(null, ms)(told)
}

function main(times) {
  const idle = [() => {}, () => { cell[0] += 0 }]
  for (let i = 0; i < times; i++) calls(0, idle[i % 2])
  calls(1e9, tell)
}

if (isMainThread) {
  const times = Number(process.argv[2])
  new Worker(__filename, { workerData: times }).on('error', e => { throw e })
  setTimeout(main, 10, times)
} else {
  main(workerData)
}
