// The two trees that can be shown. Both grow while they are looked at, so that
// a large profile costs no more than what can be seen of it.

/** A frame of a shown tree. Its place is start .. start+total, in weight. */
class Frame {
  constructor(parent, fn, total, source) {
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.fn = fn;
    this.total = total;
    this.source = source; // what the tree makes the children from
    this.start = 0;
    this.children = null;
    this.left = 0; // set by Layout, in pixels
    this.width = 0;
  }
}

function placeChildren(frame, children) {
  let start = frame.start;
  for (const child of children) {
    child.start = start;
    start += child.total;
  }
  frame.children = children;
  return children;
}

/** Callers above what they call. The source of a frame is its node. */
class CalleeTree {
  constructor(model) {
    this.model = model;
    this.root = new Frame(null, -1, model.total[0], 0);
  }

  children(frame) {
    if (frame.children) return frame.children;
    const { fn, end, total } = this.model;
    const children = [];
    for (let n = frame.source + 1; n < end[frame.source]; n = end[n]) {
      if (total[n] > 0) children.push(new Frame(frame, fn[n], total[n], n));
    }
    return placeChildren(frame, children);
  }

  /** Of a diff: numbers before and after. */
  sides(frame) {
    const { counts, weights, squares } = this.model.sides;
    const own = (a) => a[frame.source];
    return { counts: counts.map(own), weights: weights.map(own), squares: squares.map(own) };
  }

  self(frame) {
    return this.model.self[frame.source];
  }

  /** The count beside the value that the width shows, or the reverse. */
  beside(frame) {
    return this.model.totalBeside[frame.source];
  }

  line(frame) {
    return this.model.line[frame.source];
  }
}

/**
 * Functions that ran or waited, and below each its callers. The source of a frame is a
 * list of the nodes that it stands for, of the nodes that ran (leaves), and of
 * their weights. What woke a thread up is not in it.
 */
class CallerTree {
  constructor(model) {
    this.model = model;
    const leaves = [];
    const nodes = [];
    const weights = [];
    const beside = [];
    for (let n = 1; n < model.nodeCount; n++) {
      if (model.self[n] > 0) {
        leaves.push(n);
        nodes.push(model.own[n]);
        weights.push(model.self[n]);
        beside.push(model.selfBeside[n]);
      }
    }
    this.root = new Frame(null, -1, model.total[0], { nodes, weights, beside, leaves });
  }

  children(frame) {
    if (frame.children) return frame.children;
    const { fn, parent } = this.model;
    const { nodes, weights, beside, leaves } = frame.source;
    const groups = new Map();
    for (let i = 0; i < nodes.length; i++) {
      const node = frame.parent ? parent[nodes[i]] : nodes[i];
      if (node === 0) continue;
      let child = groups.get(fn[node]);
      if (!child) {
        child = new Frame(frame, fn[node], 0, { nodes: [], weights: [], beside: [], leaves: [] });
        groups.set(fn[node], child);
      }
      child.total += weights[i];
      child.source.nodes.push(node);
      child.source.weights.push(weights[i]);
      child.source.beside.push(beside[i]);
      child.source.leaves.push(leaves[i]);
    }
    const children = [...groups.values()].sort((a, b) => b.total - a.total || a.fn - b.fn);
    return placeChildren(frame, children);
  }

  /** Of a diff: numbers before and after. */
  sides(frame) {
    const { selfCounts, selfWeights, selfSquares } = this.model.sides;
    const sum = (array) => frame.source.leaves.reduce((s, leaf) => s + array[leaf], 0);
    return { counts: selfCounts.map(sum), weights: selfWeights.map(sum), squares: selfSquares.map(sum) };
  }

  /** What ran in the function itself: all of it in the first row, where the functions that ran are. */
  self(frame) {
    return frame.depth === 1 ? frame.total : 0;
  }

  beside(frame) {
    return frame.source.beside.reduce((sum, n) => sum + n, 0);
  }

  /** The line of the heaviest node. */
  line(frame) {
    const { nodes, weights } = frame.source;
    let best = 0;
    for (let i = 1; i < nodes.length; i++) if (weights[i] > weights[best]) best = i;
    return nodes.length > 0 ? this.model.line[nodes[best]] : 0;
  }
}

/** Returns the functions from below the root to the frame. */
function pathOf(frame) {
  const path = [];
  for (let f = frame; f.parent; f = f.parent) path.unshift(f.fn);
  return path;
}

/** Returns the frame of a node in the tree of callees. */
function frameOfNode(tree, node) {
  if (node === 0) return tree.root;
  const above = frameOfNode(tree, tree.model.parent[node]);
  return tree.children(above).find((c) => c.source === node);
}

/** Follows a path from the root as far as it exists. */
function followPath(tree, path) {
  let frame = tree.root;
  for (const fn of path) {
    const child = tree.children(frame).find((c) => c.fn === fn);
    if (!child) break;
    frame = child;
  }
  return frame;
}
