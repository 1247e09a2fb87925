// waitsinpage.js: a page and its worker that wait, each for the answer to a request that tells in which calls. Before, they
// have been in these as often as the address says.
'use strict'
const times = Number(new URL(location.href).hash.slice(1))

// tell returns, from the caller on, the functions with their lines.
function tell() {
  const before = Error.prepareStackTrace
  Error.stackTraceLimit = Infinity
  Error.prepareStackTrace = (_, sites) => sites
  const sites = new Error().stack.slice(1).filter(s => s.getFileName())
  Error.prepareStackTrace = before
  return sites.map(s => ({ name: s.getFunctionName() || '', file: s.getFileName(), line: s.getLineNumber() }))
}

const idle = { open() {}, send() {} }

function stop(wait) {
  const request = wait ? new XMLHttpRequest() : idle
  request.open('POST', '/told', false)
  request.send(wait ? JSON.stringify(tell()) : ''); return request
}

function deep(n, wait) {
  if (n > 0) {
    return deep(n - 1, wait) + 1
  }
  stop(wait)
  return 0
}

class Shape {
  constructor(wait) { this.wait = wait }
  area() {
    return [1]
      .map(x => this.inner(x))
  }
  inner(x) {
    const more = x + 1
    return deep(more + 2, this.wait)
  }
  get size() { return this.area().length }
  static of(wait) {
    const s = new Shape(wait)
    return s.size
  }
}

function* numbers(wait) {
  yield 1
  yield Shape.of(wait)
}

function caught(wait) {
  try {
    throw new Error()
  } catch {
    for (const x of numbers(wait)) idle.last = x
  }
}


function wide(wait) {
  [2, 1].sort((a, b) => {
    caught(wait)
    return a - b
  })
}

function main() {
  for (let i = 0; i < times; i++) wide(false)
  wide(true)
}

if (typeof document !== 'undefined') {
  new Worker('/waits.js#' + times)
  fetch('/turn').then(() => setTimeout(main, 10)) // when the worker waits, which could not begin any more
} else {
  setTimeout(main, 10)
}
