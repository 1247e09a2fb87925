// Inflate: RFC 1951. The page has its own decoder because the browsers' one
// is asynchronous, and not there in all of them when a page comes from a file.

/** Decodes deflated bytes. size is a first guess of the result's length. */
function inflate(input, size) {
  let out = new Uint8Array(Math.max(size, 1024));
  let length = 0;
  let at = 0; // next byte of input
  let hold = 0; // bits read from input but not used
  let held = 0;

  const bits = (n) => {
    while (held < n) {
      if (at >= input.length) throw new Error("data end too early");
      hold |= input[at++] << held;
      held += 8;
    }
    const value = hold & ((1 << n) - 1);
    hold >>>= n;
    held -= n;
    return value;
  };
  const reserve = (n) => {
    if (length + n <= out.length) return;
    const bigger = new Uint8Array(Math.max(2 * out.length, length + n));
    bigger.set(out);
    out = bigger;
  };

  // A code's table gives, for the next `width` bits of input, the symbol and
  // the length of its code: symbol << 4 | length.
  const table = (lengths) => {
    let width = 1;
    const count = new Uint16Array(16);
    for (const l of lengths) {
      count[l]++;
      if (l > width) width = l;
    }
    const next = new Uint16Array(16);
    let code = 0;
    for (let l = 1; l < 16; l++) {
      code = (code + (l > 1 ? count[l - 1] : 0)) << 1;
      next[l] = code;
    }
    const entries = new Uint16Array(1 << width);
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      const l = lengths[symbol];
      if (l === 0) continue;
      let reversed = 0;
      for (let i = 0, c = next[l]++; i < l; i++, c >>= 1) reversed = (reversed << 1) | (c & 1);
      for (let i = reversed; i < entries.length; i += 1 << l) entries[i] = (symbol << 4) | l;
    }
    return { entries, width };
  };
  const decode = (t) => {
    while (held < t.width && at < input.length) {
      hold |= input[at++] << held;
      held += 8;
    }
    const entry = t.entries[hold & ((1 << t.width) - 1)];
    const l = entry & 15;
    if (l === 0 || l > held) throw new Error("data are damaged");
    hold >>>= l;
    held -= l;
    return entry >> 4;
  };

  const lengthBase = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
  const distanceBase = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
  const lengthBits = (symbol) => (symbol < 8 || symbol === 28 ? 0 : (symbol >> 2) - 1);
  const distanceBits = (symbol) => (symbol < 4 ? 0 : (symbol >> 1) - 1);

  const block = (literals, distances) => {
    for (;;) {
      const symbol = decode(literals);
      if (symbol === 256) return;
      if (symbol < 256) {
        if (length === out.length) reserve(1);
        out[length++] = symbol;
        continue;
      }
      const n = lengthBase[symbol - 257] + bits(lengthBits(symbol - 257));
      const d = decode(distances);
      const from = length - distanceBase[d] - bits(distanceBits(d));
      if (!(from >= 0)) throw new Error("data are damaged");
      reserve(n);
      for (let i = 0; i < n; i++) out[length + i] = out[from + i];
      length += n;
    }
  };

  const fixed = () => {
    const lengths = new Uint8Array(288).fill(8);
    lengths.fill(9, 144, 256);
    lengths.fill(7, 256, 280);
    block(table(lengths), table(new Uint8Array(30).fill(5)));
  };
  const dynamic = () => {
    const literals = bits(5) + 257;
    const distances = bits(5) + 1;
    const codes = bits(4) + 4;
    const order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    const codeLengths = new Uint8Array(19);
    for (let i = 0; i < codes; i++) codeLengths[order[i]] = bits(3);
    const codeTable = table(codeLengths);
    const lengths = new Uint8Array(literals + distances);
    for (let i = 0; i < lengths.length; ) {
      const symbol = decode(codeTable);
      if (symbol < 16) {
        lengths[i++] = symbol;
      } else if (symbol === 16) {
        const repeated = i > 0 ? lengths[i - 1] : 0;
        const n = 3 + bits(2);
        lengths.fill(repeated, i, i + n);
        i += n;
      } else {
        i += symbol === 17 ? 3 + bits(3) : 11 + bits(7);
      }
    }
    block(table(lengths.subarray(0, literals)), table(lengths.subarray(literals)));
  };
  const stored = () => {
    at -= held >> 3; // whole bytes that were read ahead
    hold = 0;
    held = 0;
    const n = input[at] | (input[at + 1] << 8);
    at += 4; // the length comes twice
    if (!(at + n <= input.length)) throw new Error("data end too early");
    reserve(n);
    out.set(input.subarray(at, at + n), length);
    at += n;
    length += n;
  };

  let last = false;
  while (!last) {
    last = bits(1) === 1;
    const type = bits(2);
    if (type === 0) stored();
    else if (type === 1) fixed();
    else if (type === 2) dynamic();
    else throw new Error("data are damaged");
  }
  return out.subarray(0, length);
}
