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

// What makes requests: those that do nothing are of as many kinds that compiled code makes nothing of it.
const kinds = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']
const idle = kinds.map(kind => () => ({ [kind]: 0, open() {}, send() {}, tell() {} }))
const request = () => Object.assign(new XMLHttpRequest(), { tell })

function stop(make) {
  const request = make()
  request.open('POST', '/told', false)
  request.send(JSON.stringify(request.tell())); return request
}

function deep(n, make) {
  if (n > 0) {
    return deep(n - 1, make) + 1
  }
  stop(make)
  return 0
}

class Shape {
  constructor(make) { this.make = make }
  area() {
    return [1]
      .map(x => this.inner(x))
  }
  inner(x) {
    const more = x + 1
    return deep(more + 2, this.make)
  }
  get size() { return this.area().length }
  static of(make) {
    const s = new Shape(make)
    return s.size
  }
}

function* numbers(make) {
  yield 1
  yield Shape.of(make)
}

function caught(make) {
  try {
    throw new Error()
  } catch {
    for (const x of numbers(make)) kinds.last = x
  }
}


function wide(make) {
  [2, 1].sort((a, b) => {
    caught(make)
    return a - b
  })
}

function main() {
  for (let i = 0; i < times; i++) wide(idle[i % idle.length])
  wide(request)
}

if (typeof document !== 'undefined') {
  new Worker('/waits.js#' + times)
  fetch('/turn').then(() => setTimeout(main, 10)) // when the worker waits, which could not begin any more
} else {
  setTimeout(main, 10)
}
