package profile

import (
	"flag"
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/chromium"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	chromium.Close()
	os.Exit(code)
}

// browser is a page in Chromium that shows a flame graph.
type browser struct{ *chromium.Page }

func newBrowser(t *testing.T, width, height int) *browser {
	t.Helper()
	return &browser{chromium.New(t, width, height)}
}
