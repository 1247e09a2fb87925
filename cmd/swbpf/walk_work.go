package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// serviceText is the name and the version of the service that a process is, "" where it does not tell.
func serviceText(resource []procstate.ContextAttribute) string {
	var parts []string
	for _, key := range []string{"service.name", "service.version"} {
		for _, a := range resource {
			if a.Key == key && a.Value != "" {
				parts = append(parts, a.Value)
			}
		}
	}
	return strings.Join(parts, " ")
}

// workText says what the threads of a group work on: `, span 53ce929d0e0e4736 of trace 4bf92f3577b34da6a3ce929d0e0e4736
// {"http.route": "/pay"}`. Attributes are those that all have.
func workText(g []*threadWalk) string {
	traces := map[string]bool{}
	var first, common *procstate.ThreadWork
	for _, t := range g {
		if t.work == nil {
			common = &procstate.ThreadWork{}
			continue
		}
		if t.work.Trace != "" {
			traces[t.work.Trace] = true
		}
		if first == nil {
			first = t.work
			if common == nil {
				common = &procstate.ThreadWork{Span: first.Span, Attributes: first.Attributes}
			}
			continue
		}
		if t.work.Span != common.Span {
			common.Span = ""
		}
		common.Attributes = slices.DeleteFunc(slices.Clone(common.Attributes),
			func(a procstate.ContextAttribute) bool { return !slices.Contains(t.work.Attributes, a) })
	}
	if first == nil {
		return ""
	}
	text := ""
	switch {
	case len(traces) > 1:
		text = fmt.Sprintf(", in %d traces", len(traces))
	case len(traces) == 1 && common.Span != "":
		text = fmt.Sprintf(", span %s of trace %s", common.Span, first.Trace)
	case len(traces) == 1:
		for trace := range traces {
			text = ", in trace " + trace
		}
	}
	var labels []procstate.GoLabel
	for _, a := range common.Attributes {
		labels = append(labels, procstate.GoLabel{Key: a.Key, Value: shortened(a.Value)})
	}
	return text + labelsText(labels)
}

// attributesMap is for JSON; nil where there are none.
func attributesMap(attributes []procstate.ContextAttribute) map[string]string {
	if len(attributes) == 0 {
		return nil
	}
	m := make(map[string]string, len(attributes))
	for _, a := range attributes {
		m[a.Key] = a.Value
	}
	return m
}
