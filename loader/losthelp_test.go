package loader

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestLostHelp: each way to lose an event is counted, has a name and is explained.
func TestLostHelp(t *testing.T) {
	var s Stats
	n := uint64(0)
	for v, i := reflect.ValueOf(&s).Elem(), 0; i < v.NumField(); i++ {
		if strings.HasPrefix(v.Type().Field(i).Name, "Lost") {
			v.Field(i).SetUint(1)
			n++
		}
	}
	names := slices.Sorted(maps.Keys(s.LostByReason()))
	if uint64(len(names)) != n || s.Lost() != n || !slices.Equal(names, slices.Sorted(maps.Keys(LostHelp))) {
		t.Errorf("%d ways, %d lost, %v, explained %v", n, s.Lost(), names, LostHelp)
	}
}
