// Search: which functions match, and how much of the profile is in them.

/**
 * Search matches a text against function names, as it is or as a regular
 * expression, without regard to case unless it has capitals. With the prefix
 * "module:", "file:" or "kind:" it is matched against those.
 */
class Search {
  constructor(model) {
    this.model = model;
    this.text = "";
    this.matched = null; // by function: 1 if it matches; null without a search
    this.count = 0;
    this.within = null; // by node: 1 if it or a node below it matches
  }

  set(text) {
    this.text = text;
    this.count = 0;
    this.matched = null;
    this.within = null;
    const [, prefix, wanted] = /^(?:(module|file|kind):)?\s*(.*)$/s.exec(text);
    if (wanted === "") return;
    const matches = this.matcher(wanted);
    const subject = this.subject(prefix);
    this.matched = new Uint8Array(this.model.functionCount);
    for (let fn = 0; fn < this.matched.length; fn++) {
      if (matches(subject(fn))) {
        this.matched[fn] = 1;
        this.count++;
      }
    }
    const { fn, parent, nodeCount } = this.model;
    this.within = new Uint8Array(nodeCount);
    for (let n = nodeCount - 1; n > 0; n--) {
      if (this.matched[fn[n]] === 1) this.within[n] = 1;
      if (this.within[n] === 1) this.within[parent[n]] = 1;
    }
  }

  /** Whether a frame of a tree, or one that only it leads to, matches. */
  concerns(frame) {
    return typeof frame.source === "number" ? this.within[frame.source] === 1 : this.matched[frame.fn] === 1;
  }

  /** The outermost matching nodes, heaviest first. */
  hits() {
    const { fn, end, total, nodeCount } = this.model;
    const nodes = [];
    for (let n = 1; n < nodeCount; ) {
      if (total[n] > 0 && this.matched[fn[n]] === 1) {
        nodes.push(n);
        n = end[n];
      } else {
        n = this.within[n] === 1 && total[n] > 0 ? n + 1 : end[n];
      }
    }
    return nodes.sort((a, b) => total[b] - total[a] || a - b);
  }

  subject(prefix) {
    const m = this.model;
    switch (prefix) {
      case "module": return (fn) => m.module(fn);
      case "file": return (fn) => m.file(fn);
      case "kind": return (fn) => m.look(fn);
      default: return (fn) => m.name(fn);
    }
  }

  matcher(wanted) {
    const exact = /\p{Lu}/u.test(wanted);
    const fold = (s) => (exact ? s : s.toLowerCase());
    const literal = fold(wanted);
    let pattern = null;
    try {
      pattern = new RegExp(wanted, exact ? "" : "i");
    } catch {
      // Not a regular expression: a text like "push_back(" is meant as it is.
    }
    return (s) => fold(s).includes(literal) || (pattern !== null && pattern.test(s));
  }

  /** The weight of stacks below a node that have a matching frame. */
  weightBelow(node) {
    const { fn, end, total } = this.model;
    let sum = 0;
    for (let n = node + 1; n < end[node]; ) {
      if (this.matched[fn[n]] === 1) {
        sum += total[n];
        n = end[n];
      } else {
        n++;
      }
    }
    return sum;
  }

  /** The weight of a node's stacks with a matching frame, its callers counted. */
  weightAt(node) {
    for (let n = node; n !== 0; n = this.model.parent[n]) {
      if (this.matched[this.model.fn[n]] === 1) return this.model.total[node];
    }
    return this.weightBelow(node);
  }
}
