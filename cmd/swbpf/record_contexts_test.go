package main

import (
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

// contextsProgram builds a program whose threads tell what they work on, with the variable in it or in a library built in a way.
func contextsProgram(t *testing.T, way string) (program, library string) {
	t.Helper()
	flags := []string{"gcc", "-O1", "-g", "-pthread", "-o", "OUT", "testdata/targets/contexts.c"}
	if way == "" {
		return build(t, "contexts-own", append(flags, "-DOWN", "-rdynamic")...), ""
	}
	library = build(t, "contexts"+way, "gcc", "-O1", "-fPIC", "-shared", way, "-o", "OUT", "testdata/targets/contextlib.c")
	return build(t, "contexts", append(flags, "-ldl")...), library
}

// contextOf returns what a sample of that program is to have: the digits of its trace and the route; ok is false where
// it is in no function that tells.
func contextOf(functions []string) (digits, route string, ok bool) {
	for _, f := range functions {
		switch f {
		case "checkout":
			return "01", "/checkout", true
		case "login":
			return "02", "/login", true
		case "unpublished":
			return "", "", true
		}
	}
	return "", "", false
}

// Samples have what their thread worked on at that moment, wherever its program keeps that, and what the process is.
func TestRecordContexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, way string }{
		{"program", ""}, {"descriptors", "-mtls-dialect=gnu2"}, {"vector", "-mtls-dialect=gnu"}, {"static", "-ftls-model=initial-exec"},
	} {
		program, library := contextsProgram(t, c.way)
		loads := map[string][]string{"": {program, "1.5"}}
		if library != "" {
			loads = map[string][]string{
				" loaded":    {program, "1.5", library},
				" preloaded": {"env", "LD_PRELOAD=" + library, program, "1.5", "-"},
			}
		}
		for how, command := range loads {
			t.Run(c.name+how, func(t *testing.T) {
				t.Parallel()
				r := runRecord(t, append([]string{"-F", "997", "--"}, command...)...)
				if r.exit != 0 {
					t.Fatalf("exit status %d", r.exit)
				}
				checkContexts(t, r.profile.Sample)
			})
		}
	}
}

func checkContexts(t *testing.T, samples []*pprof.Sample) {
	t.Helper()
	var of, with, wrong int64
	spans := map[string]bool{}
	for _, s := range samples {
		digits, route, ok := contextOf(stackOf(s))
		if !ok {
			continue
		}
		trace, span := label(s, "trace_id"), label(s, "span_id")
		if digits != "" {
			of += s.Value[0]
		}
		switch {
		case trace == "" && span == "" && label(s, "http.route") == "" && label(s, "tenant") == "":
			continue
		case digits != "" && trace == strings.Repeat(digits, 16) && len(span) == 16 && strings.HasSuffix(span, strings.Repeat(digits, 4)) &&
			label(s, "http.route") == route && label(s, "tenant") == "acme" && label(s, "service.name") == "shop" && label(s, "service.version") == "1.2":
			with += s.Value[0]
			spans[trace+span] = true
		default:
			if wrong++; wrong < 5 {
				t.Errorf("%q has %v", stackOf(s), s.Label)
			}
		}
	}
	t.Logf("%d of %d samples, %d spans", with, of, len(spans))
	if wrong > 0 || of < 300 || float64(with) < 0.9*float64(of) || len(spans) < 50 {
		t.Errorf("of %d samples %d have what their thread worked on, %d spans; of %d kinds that is wrong", of, with, len(spans), wrong)
	}
}
