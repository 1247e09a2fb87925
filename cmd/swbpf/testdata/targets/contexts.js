// A program in JavaScript whose functions pay and look work on traces, in the main thread and a worker, and unpublished on none,
// by addons of npm. Usage: node contexts.js SECONDS; the packages are found by NODE_PATH.
const { Worker, isMainThread, workerData } = require('node:worker_threads')
const { otelThreadCtx } = require('@datadog/pprof')

const seconds = isMainThread ? Number(process.argv[2]) : workerData

function spin(ms) {
  const end = Date.now() + ms
  let n = 0
  while (Date.now() < end) n++
  return n
}
function pay() { return spin(4) + 1 }
function look() { return spin(4) + 2 }
function unpublished() { return spin(4) + 3 }

function publishProcess() {
  const { TracerMetadata, storeMetadata } = require('@datadog/libdatadog-extras').load('process-discovery')
  const keys = otelThreadCtx.getProcessContextAttributes(['http.route', 'tenant'])
  return storeMetadata(new TracerMetadata('id', '1', 'host', 'shop', 'prod', '1.2', null, null,
    { schemaVersion: keys['threadlocal.schema_version'], attributeKeys: keys['threadlocal.attribute_key_map'], extraAttributes: [] }))
}

const until = Date.now() + 1000 * seconds
function serve(n) {
  const trace = Buffer.alloc(16, 1 + n % 2), span = Buffer.alloc(8, 1 + n % 2)
  span.writeUInt32LE(n)
  // Its attributes have one before those that the process names.
  const context = new otelThreadCtx.ThreadContext(new Uint8Array(trace), new Uint8Array(span), 1, ['root', n % 2 ? '/pay' : '/look', 'acme'])
  context.run(() => setImmediate(n % 2 ? pay : look)) // called later, it still has its context
  setImmediate(() => { unpublished(); if (Date.now() < until) setImmediate(serve, n + 1) })
}

if (isMainThread) {
  globalThis.kept = publishProcess()
  new Worker(__filename, { workerData: seconds })
}
serve(1)
