package swbpf_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
)

// schemeCalls is a program of known calls: each is no tail call, and in one turn of two the innermost calls C. A
// continuation is made on the way: what is further out is in another segment of the stack.
const schemeCalls = `
(define (spin n) (let loop ([i 0] [x 1]) (if (= i n) x (loop (+ i 1) (modulo (+ (* x 31) i) 65536)))))
(define large (expt 7 3000))
(define (asks n) (let loop ([i 0] [x 1]) (if (> i n) x (loop (+ i 10000) (+ x (if (= (* large large) large) 1 0))))))
(define (c n) (+ 1 ((if (even? n) spin asks) n)))
(define (b n) (+ 2 (c n)))
(define (a n) (+ 3 (b n)))
(define (keeps n) (+ 4 (call/cc (lambda (k) (+ 1 (a n))))))
(define (deep d n) (if (= d 0) (+ 5 (keeps n)) (+ 1 (deep (- d 1) n))))
(set! spin spin) (set! asks asks) (set! c c) (set! b b) (set! a a) (set! keeps keeps) (set! deep deep)
(let loop ([i 0]) (deep 30 (+ 30000 (remainder i 2))) (loop (+ i 1)))
`

// TestScheme looks at programs that run for ever in Chez Scheme and in Racket, whose calls are known.
func TestScheme(t *testing.T) {
	canTrace(t)
	amd64Only(t)
	for _, test := range []struct {
		name, file, head string
		flags            []string
		needed           bool
	}{
		{"scheme", "calls.ss", "", []string{"--script"}, true},
		{"racket", "calls.rkt", "#lang racket/base\n", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := exec.LookPath(test.name); err != nil && !test.needed {
				t.Skip("not installed")
			}
			testenv.Needs(t, test.name)
			file := filepath.Join(t.TempDir(), test.file)
			if err := os.WriteFile(file, []byte(test.head+schemeCalls), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(test.name, append(test.flags, file)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
			testScheme(t, cmd.Process.Pid)
		})
	}
}

func testScheme(t *testing.T, pid int) {
	want := slices.Concat([]string{"c", "b", "a", "keeps"}, slices.Repeat([]string{"deep"}, 31))
	var inScheme, inC, short, nameless int
	for begin := time.Now(); (inScheme < 20 || inC < 5) && time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
		ps, err := swbpf.WalkProcess(pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range ps.Stacks {
			var got []string
			native := 0
			for i := range s.Frames {
				lines := s.Walker.Codes().Lines(s.Frames[i].Code)
				switch {
				case len(lines) > 0 && slices.Contains(append(want, "spin", "asks"), lines[0].Name):
					got = append(got, lines[0].Name)
					native = 0
				case len(lines) == 0:
					native++
				}
			}
			first := slices.Index(got, "c")
			if first < 0 {
				continue // it begins yet, or is between two turns
			}
			if s.Err != nil {
				short++ // while a function that is called has moved the stack, and where garbage is collected
				continue
			}
			if n := len(got) - first; n < len(want) && native > len(want)-n && slices.Equal(got[first:], want[:n]) {
				nameless++ // names are read when the process has gone on, and a collection moves code at first
				continue
			}
			if !slices.Equal(got[first:], want) || native < 3 {
				t.Fatalf("%d functions of C, and calls\n%s", native, strings.Join(got, "\n"))
			}
			if s.Frames[0].Code != 0 {
				inScheme++
			} else {
				inC++
			}
		}
	}
	t.Logf("%d complete stacks in Scheme, %d in C, %d without names, %d others", inScheme, inC, nameless, short)
	if inScheme < 20 || inC < 5 || short > (inScheme+inC)/4 || nameless > (inScheme+inC)/12 {
		t.Errorf("%d complete stacks in Scheme, %d in C, %d without names, %d others", inScheme, inC, nameless, short)
	}
}
