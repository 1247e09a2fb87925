package main

import (
	"path/filepath"
	"regexp"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions that a server of PostgreSQL runs have their names: each calls only what it calls in the source.
func TestRecordPostgres(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("measured on amd64 alone")
	}
	testenv.EachPostgres(t, func(t *testing.T, server testenv.Postgres) {
		r := recordCommand(t, 0, server.Command(filepath.Join("testdata", "targets", "busy.sql"))...)
		const lost = `|\[not (copied|read)\]`
		right := regexp.MustCompile(`^(inline_code_block` + lost + `)(;(recurses` + lost + `)){0,3}(;(does_both` + lost + `)(;(adds|joins` + lost + `))?)?$`)
		wantCalls(t, r, right, 100, "adds", "joins")
	})
}
