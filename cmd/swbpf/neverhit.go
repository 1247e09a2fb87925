package main

import (
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/loader"
)

// neverHit says why a probe on a program's code was not met once, as far as that can be seen. command tells that a
// command was recorded, which has ended.
func neverHit(e loader.Event, command bool) string {
	inlined := "; calls that the compiler has inlined are none"
	if strings.HasPrefix(e.Name, "usdt:") {
		inlined = ""
	}
	if command {
		return "the command has not come to it" + inlined
	}
	switch n := e.MappedBy(); n {
	case 0:
		return "no process runs code of this file now; a container may have its own: /proc/PID/root/... as FILE"
	case 1:
		return "one process runs code of this file now, and has not come to it" + inlined
	default:
		return fmt.Sprintf("%s run code of this file now, and none has come to it%s", plural(n, "process"), inlined)
	}
}
