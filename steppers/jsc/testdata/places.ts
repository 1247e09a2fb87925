// a comment

/* block

comment */
interface Foo { a: number;
  b: string }

type X = { y: number }

function leaf(n: number): string {
  // hello

  const e = `a template


    of lines ${n}`


  return e
}

const arrow = (x: number) => {
  return [1].map(v =>

    leaf(v)
  )[0]
}

class A {
  private z: number = 3

  method(foo: Foo): string {

    return arrow(foo.a) + leaf(
      this.z) + "straße"
  }
}

console.log(new A().method({a: 1, b: "z"}))
setInterval(() => {}, 1000)
function wait() { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0) }


wait()
