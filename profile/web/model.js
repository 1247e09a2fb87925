// The decoded profile.

/** Reads numbers and text from decoded bytes. */
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  unsigned() {
    let value = 0;
    let scale = 1;
    for (;;) {
      const b = this.bytes[this.at++];
      if (b === undefined) throw new Error("data end too early");
      value += (b & 127) * scale;
      if (b < 128) return value;
      scale *= 128;
    }
  }

  signed() {
    const n = this.unsigned();
    return n % 2 === 0 ? n / 2 : -(n + 1) / 2;
  }

  text() {
    const length = this.unsigned();
    const bytes = this.bytes.subarray(this.at, this.at + length);
    this.at += length;
    return new TextDecoder().decode(bytes);
  }
}

/** Markers of stacks with a part missing; others tell what a thread waited for. */
const INCOMPLETE = /^\[(truncated: .*|not sampled)\]$/s;

/** The marker behind which a stack has what woke the thread up that waits before it. */
const WAKER = /^\[woken by .*\]$/s;

const INLINED = 1;
const PROCESS = 2;

/**
 * Model holds the stacks as a tree in which callers are parents. Nodes are
 * numbered in preorder, so the descendants of node n are n+1 .. end[n]-1;
 * node 0 is above all processes.
 *
 * The weights follow the filter: `self` and `total` are what widths show. In a
 * profile of values, that is values or counts, and `selfBeside` and
 * `totalBeside` are the other of the two; else they are the same arrays.
 */
class Model {
  constructor(bytes) {
    const r = new Reader(bytes);
    const t = JSON.parse(r.text());
    this.tables = t;
    this.functionCount = t.functionName.length;
    this.exact = { name: t.functionName, module: t.modules }; // as other pages look them up
    for (const list of ["functionName", "modules", "files", "processes", "threadComm", "labelKeys", "labelValues"]) {
      t[list] = (t[list] || []).map(visible); // an empty list may be null
    }

    const n = r.unsigned() + 1;
    this.nodeCount = n;
    this.parent = new Uint32Array(n);
    this.end = new Uint32Array(n);
    this.fn = new Uint32Array(n);
    this.line = new Int32Array(n);
    const path = [0];
    for (let i = 1; i < n; i++) {
      for (let up = r.unsigned(); up > 0; up--) this.end[path.pop()] = i;
      this.parent[i] = path[path.length - 1];
      path.push(i);
    }
    for (const node of path) this.end[node] = n;
    for (let i = 1; i < n; i++) this.fn[i] = r.unsigned();
    this.own = this.findOwn();
    for (let i = 1; i < n; i++) {
      const delta = r.signed();
      const start = t.functionLine[this.fn[i]];
      this.line[i] = delta === 0 && start === 0 ? 0 : start + delta;
    }

    const samples = r.unsigned();
    this.sampleNode = new Uint32Array(samples);
    this.sampleThread = new Uint32Array(samples);
    this.sampleCount = new Float64Array(samples);
    this.sampleValue = t.byValue ? new Float64Array(samples) : this.sampleCount;
    if (t.diff) this.sampleSquares = new Float64Array(samples); // sums over what is in the sample
    for (let i = 0, node = 0; i < samples; i++) {
      node += r.unsigned();
      this.sampleNode[i] = node;
      this.sampleThread[i] = r.unsigned();
      this.sampleCount[i] = r.unsigned();
      if (t.byValue) this.sampleValue[i] = r.unsigned();
      if (t.diff) this.sampleSquares[i] = r.unsigned() ** 2;
    }

    if (t.diff) {
      // By side, 0 before and 1 after: of nodes themselves and with what is below.
      const bySide = () => SIDES.map(() => new Float64Array(n));
      this.sides = { selfCounts: bySide(), counts: bySide(), selfWeights: bySide(), weights: bySide(), selfSquares: bySide(), squares: bySide() };
    }
    this.self = new Float64Array(n);
    this.total = new Float64Array(n);
    this.selfBeside = t.byValue ? new Float64Array(n) : this.self;
    this.totalBeside = t.byValue ? new Float64Array(n) : this.total;
    this.threadWeight = new Float64Array(t.threadPID.length);
    this.setWidths("both", false);
    this.filter(null);
  }

  /** By node, the last one on the way to it that is of the thread itself, not of what woke it up. */
  findOwn() {
    const own = new Uint32Array(this.nodeCount);
    for (let i = 1; i < this.nodeCount; i++) {
      const parent = this.parent[i];
      const ends = own[parent] !== parent || (this.isMarker(this.fn[i]) && WAKER.test(this.name(this.fn[i])));
      own[i] = ends ? own[parent] : i;
    }
    return own;
  }

  /** The side of a sample of a diff. */
  side(sample) {
    return this.tables.threadPID[this.sampleThread[sample]] - 1;
  }

  /**
   * Makes the widths counts where there are values too; and those of a diff
   * what a side has, or the mean of "both". Takes effect with the next filter.
   */
  setWidths(widths, counts) {
    this.counts = counts;
    this.sampleWeight = counts ? this.sampleCount : this.sampleValue;
    if (this.tables.diff) {
      const factors = SIDES.map((side) => (widths === "both" ? 0.5 : side === widths ? 1 : 0));
      this.sampleWeight = this.sampleValue.map((value, i) => value * factors[this.side(i)]);
    }
    this.threadWeight.fill(0);
    for (let i = 0; i < this.sampleWeight.length; i++) this.threadWeight[this.sampleThread[i]] += this.sampleWeight[i];
    this.wholeWeight = this.threadWeight.reduce((sum, w) => sum + w, 0);
  }

  filterSides(shown) {
    const { selfCounts, counts, selfWeights, weights, selfSquares, squares } = this.sides;
    for (const arrays of [selfCounts, selfWeights, selfSquares]) for (const array of arrays) array.fill(0);
    for (let i = 0; i < this.sampleNode.length; i++) {
      if (shown && !shown[this.sampleThread[i]]) continue;
      selfCounts[this.side(i)][this.sampleNode[i]] += this.sampleCount[i];
      selfWeights[this.side(i)][this.sampleNode[i]] += this.sampleValue[i];
      selfSquares[this.side(i)][this.sampleNode[i]] += this.sampleSquares[i];
    }
    for (const side of [0, 1]) {
      this.addUp(selfCounts[side], counts[side]);
      this.addUp(selfWeights[side], weights[side]);
      this.addUp(selfSquares[side], squares[side]);
    }
  }

  /** Counts only the threads for which shown, a list by thread, is true. */
  filter(shown) {
    this.self.fill(0);
    this.selfBeside.fill(0);
    const beside = this.counts ? this.sampleValue : this.sampleCount;
    for (let i = 0; i < this.sampleNode.length; i++) {
      if (shown && !shown[this.sampleThread[i]]) continue;
      this.self[this.sampleNode[i]] += this.sampleWeight[i];
      if (this.tables.byValue) this.selfBeside[this.sampleNode[i]] += beside[i];
    }
    if (this.tables.diff) this.filterSides(shown);
    this.addUp(this.self, this.total);
    if (this.tables.byValue) this.addUp(this.selfBeside, this.totalBeside);
  }

  addUp(self, total) {
    total.set(self);
    for (let i = this.nodeCount - 1; i > 0; i--) total[this.parent[i]] += total[i];
  }

  name(fn) {
    return this.tables.functionName[fn];
  }

  /** The path of the function's module, or "". */
  module(fn) {
    return this.tables.modules[this.tables.functionModule[fn]];
  }

  /** What the page about a function is found by. */
  query(fn) {
    return new URLSearchParams({ name: this.exact.name[fn], module: this.exact.module[this.tables.functionModule[fn]] });
  }

  file(fn) {
    return this.tables.files[this.tables.functionFile[fn]];
  }

  inlined(fn) {
    return (this.tables.functionFlags[fn] & INLINED) !== 0;
  }

  isProcess(fn) {
    return (this.tables.functionFlags[fn] & PROCESS) !== 0;
  }

  /** What the function is coloured by: one of LOOKS. */
  look(fn) {
    if (this.isProcess(fn)) return "process";
    if (this.inlined(fn)) return "inlined";
    if (this.isMarker(fn) && !INCOMPLETE.test(this.name(fn))) return "state";
    return this.tables.kinds[this.tables.functionKind[fn]];
  }

  isMarker(fn) {
    return this.tables.kinds[this.tables.functionKind[fn]] === "marker";
  }

  /** The weight that ran in functions of each look, and that of stacks with a marker. */
  weightByLook() {
    const sums = {};
    for (let i = 1; i < this.nodeCount; i++) {
      if (this.total[i] === 0) continue;
      const look = this.look(this.fn[this.own[i]]);
      sums[look] = (sums[look] || 0) + (look === "marker" ? this.total[i] : this.self[i]);
    }
    return sums;
  }
}

/** Decodes the data that the page carries. */
function decodeModel(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Model(inflate(bytes, bytes.length * 4));
}
