package loader

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

func zero[T any]() *T { return new(T) }

// A value that nothing has made does nothing, and says so.
func TestZeroValues(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	testenv.KnowsNothing(t, zero[Cgroups], nil, uint64(3))
	testenv.KnowsNothing(t, zero[Command], nil)
	testenv.KnowsNothing(t, zero[Event], []string{"HasDefaultFrequency"})
	testenv.KnowsNothing(t, zero[KernelNames], nil, uint64(1))
	testenv.KnowsNothing(t, zero[MissingError], []string{"Unwrap"})
	testenv.KnowsNothing(t, zero[ProbeReader], nil)
	testenv.KnowsNothing(t, zero[Process], nil)
	testenv.KnowsNothing(t, zero[Sample], nil)
	testenv.KnowsNothing(t, zero[Session], nil, 1)
	testenv.KnowsNothing(t, zero[Sideband], nil)
	testenv.KnowsNothing(t, zero[SidebandEvent], nil)
	testenv.KnowsNothing(t, zero[Stats], nil)
	testenv.KnowsNothing(t, zero[UnknownEventError], nil)

	own := int32(os.Getpid())
	alone := func() *Processes { return NewProcesses(ProcessesConfig{PIDs: []int32{own}}) }
	testenv.KnowsNothing(t, zero[Processes], nil, ctx, own)
	testenv.KnowsNothing(t, alone, []string{"Bootstrap"}, ctx, own)
	known := alone()
	if err := known.Heed(new(Session).NewPrograms()); err != nil {
		t.Errorf("to heed nothing: %v", err)
	}
	if err := known.Bootstrap(); err != nil {
		t.Errorf("Bootstrap: %v", err)
	}
	if p := known.Process(own); p == nil || len(p.Space.Mappings()) == 0 {
		t.Error("it does not know this process")
	}

	select {
	case <-new(Command).Done():
	case <-time.After(10 * time.Second):
		t.Error("a Command of no program goes on")
	}
	var e Event
	if !e.isZero() {
		t.Error("the zero Event is some event")
	}
	if _, err := ParseWeight(e, "len"); err == nil {
		t.Error("a weight of no event")
	}
	if s, err := Open(Config{Frequency: -1}); err == nil {
		s.Close()
		t.Error("a Session of a frequency that cannot be")
	}
	if st := new(Stats); st.fired() != 0 || st.Lost() != 0 || new(Sample).CommString() != "" || new(Cgroups).Path(3) != "" {
		t.Error("what is of nothing has something")
	}
	for _, n := range []uint8{0, 99} {
		_, _, _, _ = Blocked(n).String(), Level(n).String(), StackEnd(n).String(), UserState(n).String()
		_, _ = Level(n).MarshalText()
	}
	_ = new(Level).UnmarshalText(nil)
}
