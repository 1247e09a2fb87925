// Function names, made shorter where there is no room for the whole.

/** What is not to be seen: some would reverse what follows. */
const INVISIBLE = /[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu;

/** A name by anybody as it is shown, in all formats. */
function visible(name) {
  return name.replace(INVISIBLE, "?");
}

/**
 * Returns the index after the bracket that closes the one at text[open], or
 * -1. Angles that are arrows or operators are no brackets.
 */
function closing(text, open, left, right) {
  let depth = 0;
  for (let i = open; i < text.length; i++) {
    if (text[i] === left) depth++;
    else if (text[i] === right && text[i - 1] !== "-" && text[i - 1] !== "=" && --depth === 0) return i + 1;
  }
  return -1;
}

const AFTER_PARAMETERS = /^( const| volatile| &&?| \[clone [^\]]*\]| \(\.[^)]*\))*$/;
const BEFORE_PARAMETERS = /[\w~>)]$|\boperator\W+$/;

/** "f(int) const" becomes "f"; "operator()", "(*T).m" and "a::(b)" stay. */
function withoutParameters(name) {
  for (let open = name.indexOf("("); open >= 0; ) {
    const end = closing(name, open, "(", ")");
    if (end < 0) return name;
    const before = name.slice(0, open);
    const isName = /\boperator$/.test(before) && end === open + 2; // "operator()"
    if (!isName && BEFORE_PARAMETERS.test(before) && AFTER_PARAMETERS.test(name.slice(end))) return before;
    open = name.indexOf("(", end);
  }
  return name;
}

/** "map<K, V>::find" becomes "map<…>::find". */
function withoutTemplates(name) {
  let out = "";
  for (let i = 0; i < name.length; i++) {
    const end = name[i] === "<" && i > 0 && !/operator<?$/.test(name.slice(0, i)) ? closing(name, i, "<", ">") : -1;
    if (end < 0 || end <= i + 2) {
      out += name[i];
    } else {
      out += "<…>";
      i = end - 1;
    }
  }
  return out;
}

/** "a::b::c" becomes "b::c" and then "c"; "x.org/pkg/sub.F" becomes "sub.F". */
function withoutPath(name, keep) {
  const slash = name.lastIndexOf("/");
  if (slash >= 0 && !name.includes("::") && !name.includes(" ")) return name.slice(slash + 1);
  const parts = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < name.length; i++) {
    if (name[i] === "<" || name[i] === "(") depth++;
    else if ((name[i] === ">" && name[i - 1] !== "-") || name[i] === ")") depth--;
    else if (depth === 0 && name[i] === ":" && name[i + 1] === ":") {
      parts.push(name.slice(start, i));
      start = i + 2;
      i++;
    }
  }
  parts.push(name.slice(start));
  return parts.slice(-keep).join("::");
}

/** A name without parameters and template arguments. */
function plainName(name) {
  return withoutTemplates(withoutParameters(name));
}

/** Returns ever shorter forms of a name, the whole first. */
function shorterNames(name) {
  const address = /^.+(\+0x[0-9a-f]+)$/.exec(name);
  if (address) return [name, address[1]];
  const plain = plainName(name);
  const forms = [name, withoutParameters(name), plain, withoutPath(plain, 2), withoutPath(plain, 1)];
  return forms.filter((form, i) => form !== "" && form !== forms[i - 1]);
}

/** Fits function names into widths for a canvas's font. */
class NameFitter {
  constructor(context, name) {
    this.context = context;
    this.name = name; // of a function by number
    this.forms = new Map();
    this.ellipsis = 0;
  }

  /** Forgets widths, which depend on the font. */
  reset() {
    this.forms.clear();
    this.ellipsis = this.context.measureText("…").width;
  }

  fit(fn, width) {
    let forms = this.forms.get(fn);
    if (!forms) {
      forms = shorterNames(this.name(fn)).map((text) => ({ text, width: this.context.measureText(text).width }));
      this.forms.set(fn, forms);
    }
    for (const form of forms) {
      if (form.width <= width) return form.text;
    }
    const last = forms[forms.length - 1];
    let n = Math.floor((last.text.length * (width - this.ellipsis)) / last.width);
    while (n > 0 && this.context.measureText(last.text.slice(0, n)).width + this.ellipsis > width) n--;
    return n > 1 ? last.text.slice(0, n) + "…" : "";
  }
}
