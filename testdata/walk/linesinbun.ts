// linesinbun.ts calls itself in a chain whose links are written in many ways, with types, comments and empty lines that
// are not in what is made of it. In turn number process.argv[2] it writes what its stack is to the file process.argv[3],
// or nothing, if it has a fourth argument, and waits. No function ends in a call: it would have no frame then.
import { writeFileSync } from "fs";

/* A block
   of lines */
interface Link { next: (n: number) => number; }
type Pair<T> = { left: T; right: T };
declare const unused: Pair<Link>;
Error.stackTraceLimit = Infinity;
let turn = 0;
const wanted = +(process.argv[2] as string);

enum Kind { Small = 1, Large }

function stop(n: number): number {
  if (turn === wanted) {
    writeFileSync(process.argv[3]!, (process.argv[4] ? "" : new Error("here").stack!) + "\nend"); Bun.sleepSync(60000);
  }
  return n
    + 1;
}

namespace Inner {

  export function call(n: number): number {
    // a comment

    const r =
      stop(n);
    return r + 1;
  }
}

abstract class Base {
  made: number;

  constructor(

    n: number) {
    this.made = this.more(
      n
    ) + 1;
  }

  abstract more(n: number): number;
}

class Derived extends Base {
  constructor(private readonly n: number, public kind: Kind = Kind.Large) {
    super(
      n + 1
    );
    this.made += 1;
  }

  override more(n: number): number {
    const v = Inner.call(n);

    return v + 1;
  }

  get value(): number {

    const made =
      new Derived(
        this.n,
      );
    return made.made;
  }

  set value(n: number) { this.made = n; }
}

const derived: Derived = Object.create(Derived.prototype, { n: { value: 3 } });

function accessor<T extends number>(n: T): number {
  const v = (derived as Derived)
    // which is an accessor
    .value;
  return v + n;
}

class Fields {
  first = 1;

  second: number = accessor(1) +
    this.first;
}

const arrow = (n: number): number => {
  let sum = 0;
  for (const _ of [1]) {
    sum += new Fields().second;
  }
  return sum + n;
};

function fallback(n: number, v: number = arrow(
  n)): number {
  return v + 1;
}

function callbacks(n: number): number {
  const list = [n, 2]
    .filter(v => v === n)

    .map(
      function inner(v): number {
        const r = fallback(v);
        return r + 1;
      });
  return list[0]! + `a template
    of lines`.length;
}

function* generated(n: number): Generator<number> {
  yield 0;
  try {

    const v = callbacks(n);
    yield v + 1;
  } finally {
    turn += 0;
  }
}

function iterated(n: number): number {
  let sum = 0;
  for (
    const v
    of generated(n)) {
    sum += v;
  }
  return sum;
}

const converted = {
  toString(): string {
    const v = iterated(1);
    return String(v + 1);
  },

  tagged(parts: TemplateStringsArray, ...n: number[]): number {
    const v = `${this}`;

    return v.length + n.length;
  },
};

function tags(n: number): number {
  const r = converted.tagged`one ${
    n} two ${n
    }`;
  return r + 1;
}

const optional: { next?: (n: number) => number } = { next: tags };

function switched(n: number): number {
  switch (n as Kind) {
    case Kind.Small:
      return 0;
    default: {
      const v = optional
        ?.next?.(...[
          n,
        ])!;
      return v + 1;
    }
  }
}

let given = 0;

class Initial {
  readonly before = 1;

  value: number =
    switched(given);

  constructor(

    n: number) {
    this.value += Math.max(
      n, this.before);
  }
}

function initial(n: number): number {
  given = n;
  return (
    new Initial(
      n).value
  ) - 1;
}

async function later(n: number): Promise<number> {
  await null;

  const v = initial(n) satisfies number;
  return v + 1;
}

async function main() {
  let sum = 0;
  for (;;) {
    turn++;
    sum += await later(2 + sum * 0);
  }
}

main();
