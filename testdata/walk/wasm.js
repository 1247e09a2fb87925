// wasm.js TIMES [MS]: a thread that waits, for so long or for good, in a call from WebAssembly, behind a line that tells in
// which calls. Before, the function of WebAssembly furthest out, which is called once, has called the others that many times.
'use strict'
const fs = require('fs')
const cell = new Int32Array(new SharedArrayBuffer(4))

// The binary format of WebAssembly.
const number = n => n < 128 ? [n] : [n & 127 | 128, ...number(n >>> 7)]
const list = items => [...number(items.length), ...items.flat()]
const text = s => list([...Buffer.from(s)])
const section = (id, body) => [id, ...number(body.length), ...body]
const code = (...body) => [...number(body.length + 2), 0, ...body, 0x0b]

const [callback, outer, middle, nameless, inner] = [0, 1, 2, 3, 4]
const bytes = Buffer.from([
  0, ...Buffer.from('asm'), 1, 0, 0, 0,
  ...section(1, list([[0x60, 1, 0x7f, 1, 0x7f]])), // i32 to i32, the type of all
  ...section(2, list([[...text('to'), ...text('table'), 1, 0x70, 0, 0], [...text('to'), ...text('callback'), 0, 0]])),
  ...section(3, list([0, 0, 0, 0])),
  ...section(7, list([[...text('run'), 0, outer], [...text('exported'), 0, middle]])),
  ...section(10, list([
    code(0x03, 0x40, 0x41, 0, 0x10, middle, 0x1a, 0x20, 0, 0x41, 1, 0x6b, 0x22, 0, 0x0d, 0, 0x0b, 0x41, 1, 0x10, middle), // do middle(0) while --n; middle(1)
    code(0x20, 0, 0x10, nameless, 0x41, 1, 0x6a), // nameless(n) + 1
    code(0x20, 0, 0x10, inner, 0x41, 1, 0x6a),
    code(0x20, 0, 0x04, 0x40, 0x41, 7, 0x10, callback, 0x1a, 0x0b, 0x20, 0) // if (n) callback(7)
  ])),
  ...section(0, [...text('name'), ...section(0, text('module')), ...section(1, list([
    [outer, ...text('spaced::outer(int)')], [inner, ...text('straße')]]))])
])

const exported = new WebAssembly.Instance(new WebAssembly.Module(bytes), {
  to: {
    table: new WebAssembly.Table({ element: 'anyfunc', initial: 0 }),
    callback(n) {
      Error.stackTraceLimit = Infinity
      Error.prepareStackTrace = (_, sites) => sites
      const sites = new Error().stack.filter(s => s.getFileName())
      const calls = sites.map(s => s.getFileName().startsWith('wasm:') ? s.getFunctionName() || '' : '-')
      fs.writeSync(1, JSON.stringify({ tid: process.pid, calls }) + '\n')
      Atomics.wait(cell, 0, 0, Number(process.argv[3] || Infinity))
      return n
    }
  }
}).exports

exported.run(Number(process.argv[2]))
