package profile

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// TestScriptInflate has the page's decoder read what Go's encoder writes.
func TestScriptInflate(t *testing.T) {
	b := newBrowser(t, 400, 300)
	code, err := webFiles.ReadFile("web/inflate.js")
	if err != nil {
		t.Fatal(err)
	}
	b.Eval(string(code)+"; globalThis.inflate = inflate; 0", nil)
	// The length and the FNV-1a sum of what was decoded.
	b.Eval(`globalThis.tryInflate = (base64) => {
		const out = inflate(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)), 10);
		let sum = 0x811c9dc5;
		for (const byte of out) sum = Math.imul(sum ^ byte, 0x01000193);
		return out.length + " " + (sum >>> 0);
	}; 0`, nil)
	rnd := rand.New(rand.NewPCG(5, 6))
	noise := make([]byte, 200_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	mixed := bytes.Join([][]byte{noise[:70_000], bytes.Repeat([]byte("abcabcd"), 30_000), noise[:70_000], []byte(names100)}, nil)
	for name, data := range map[string][]byte{
		"empty": nil, "byte": {7}, "short": []byte("hello hello hello"), "zeros": make([]byte, 300_000),
		"noise": noise, "mixed": mixed, "names": []byte(names100),
	} {
		sum := fnv.New32a()
		sum.Write(data)
		want := fmt.Sprint(len(data), " ", sum.Sum32())
		for _, level := range []int{flate.HuffmanOnly, flate.NoCompression, 1, 6, 9} {
			var buf bytes.Buffer
			z, err := flate.NewWriter(&buf, level)
			if err != nil {
				t.Fatal(err)
			}
			// A flush in the middle makes several blocks, and an empty one.
			for _, part := range [][]byte{data[:len(data)/3], data[len(data)/3:]} {
				if _, err := z.Write(part); err != nil {
					t.Fatal(err)
				}
				if err := z.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			base := base64.StdEncoding.EncodeToString(buf.Bytes())
			if got := b.Text("tryInflate('" + base + "')"); got != want {
				t.Errorf("%s at level %d: %s, want %s", name, level, got, want)
			}
		}
	}
	for _, bad := range []string{"", "/w==", "Bw==", "7Q==", "BcABAQ==", "S8w="} {
		got := b.Text("(() => { try { return tryInflate('" + bad + "'); } catch (e) { return 'error: ' + e.message; } })()")
		if !strings.HasPrefix(got, "error: ") {
			t.Errorf("damaged data %q give %s", bad, got)
		}
	}
}

// names100 is text as it is in profiles.
var names100 = func() string {
	var s strings.Builder
	for i := range 100 {
		fmt.Fprintf(&s, "namespace%d::Class<int, %d>::method(std::string const&) const\n", i%7, i)
	}
	return s.String()
}()

// TestScriptNames tries the functions that shorten names.
func TestScriptNames(t *testing.T) {
	b := newBrowser(t, 400, 300)
	names, err := webFiles.ReadFile("web/names.js")
	if err != nil {
		t.Fatal(err)
	}
	b.Eval(string(names)+"; globalThis.shorterNames = shorterNames; 0", nil)
	for name, want := range map[string][]string{
		"main":                               {"main"},
		"f(int)":                             {"f(int)", "f"},
		"ns::C::f(a::B const&) const":        {"ns::C::f(a::B const&) const", "ns::C::f", "C::f", "f"},
		"std::map<int, A<B>>::find(int)":     {"std::map<int, A<B>>::find(int)", "std::map<int, A<B>>::find", "std::map<…>::find", "map<…>::find", "find"},
		"C::operator()(int) const":           {"C::operator()(int) const", "C::operator()", "operator()"},
		"C::operator()":                      {"C::operator()", "operator()"},
		"operator<<(std::ostream&, X)":       {"operator<<(std::ostream&, X)", "operator<<"},
		"a::operator->() const":              {"a::operator->() const", "a::operator->", "operator->"},
		"(anonymous namespace)::g(int)":      {"(anonymous namespace)::g(int)", "(anonymous namespace)::g", "g"},
		"github.com/a/b/pkg.(*T).Method":     {"github.com/a/b/pkg.(*T).Method", "pkg.(*T).Method"},
		"libfoo.so.1+0x1234":                 {"libfoo.so.1+0x1234", "+0x1234"},
		"runtime.mcall":                      {"runtime.mcall"},
		"f(int) [clone .cold]":               {"f(int) [clone .cold]", "f"},
		"broken<(":                           {"broken<("},
		"[truncated: stack-cut]":             {"[truncated: stack-cut]"},
		"core::ptr::drop_in_place<alloc::X>": {"core::ptr::drop_in_place<alloc::X>", "core::ptr::drop_in_place<…>", "ptr::drop_in_place<…>", "drop_in_place<…>"},
	} {
		var got []string
		b.Eval("shorterNames("+strconv.Quote(name)+")", &got)
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, want)
		}
	}
}
