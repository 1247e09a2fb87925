package loader

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// A value that nothing has made does nothing, and says so.
func TestZeroValues(t *testing.T) {
	wrong := func(what string, f func() error) {
		t.Helper()
		testenv.NoPanic(t, what, func() {
			t.Helper()
			if f() == nil {
				t.Errorf("%s is no error", what)
			}
		})
	}
	var groups Cgroups
	testenv.NoPanic(t, "Cgroups.Path", func() {
		if p := groups.Path(3); p != "" {
			t.Errorf("a cgroup %q", p)
		}
	})
	testenv.NoPanic(t, "Cgroups.Forget", groups.Forget)
	testenv.NoPanic(t, "Cgroups.Close", func() { _ = groups.Close() })

	var c Command
	testenv.NoPanic(t, "Command.PID", func() { c.PID() })
	testenv.NoPanic(t, "Command.Resume", func() { c.Resume() })
	testenv.NoPanic(t, "Command.Kill", func() { c.Kill() })
	testenv.NoPanic(t, "Command.Done", func() {
		select {
		case <-c.Done():
		case <-time.After(10 * time.Second):
			t.Error("a Command of no program goes on")
		}
	})
	wrong("Command.Wait", func() error { _, err := c.Wait(); return err })

	var e Event
	testenv.NoPanic(t, "Event", func() {
		if !e.isZero() || e.IsTimer() || e.IsOffCPU() || e.IsWall() || e.IsTracepoint() || e.IsUprobe() {
			t.Error("the zero Event is some event")
		}
		e.HasDefaultFrequency()
	})
	wrong("ParseWeight", func() error { _, err := ParseWeight(e, "len"); return err })

	testenv.NoPanic(t, "errors", func() {
		_, _ = (&MissingError{}).Error(), (&MissingError{}).Unwrap()
		_ = (&UnknownEventError{}).Error()
	})
	testenv.NoPanic(t, "words", func() {
		_, _, _, _ = Blocked(0).String(), Level(0).String(), StackEnd(0).String(), UserState(0).String()
		_, _, _, _ = Blocked(99).String(), Level(99).String(), StackEnd(99).String(), UserState(99).String()
		_, _ = Level(99).MarshalText()
		_ = new(Level).UnmarshalText(nil)
	})

	var r ProbeReader
	wrong("ProbeReader.Read", func() error { _, err := r.Read(); return err })
	testenv.NoPanic(t, "ProbeReader.Close", func() { _ = r.Close() })

	processes := func(name string, p *Processes) {
		testenv.NoPanic(t, name+".Collect", func() { p.Collect() })
		testenv.NoPanic(t, name+".Advance", func() { p.Advance(1) })
		testenv.NoPanic(t, name+".Expire", func() { p.Expire(1) })
		testenv.NoPanic(t, name+".CloseFiles", func() { p.CloseFiles(func(*procstate.Image) bool { return false }) })
		testenv.NoPanic(t, name+".Process", func() { p.Process(int32(os.Getpid())) })
		testenv.NoPanic(t, name+".Refresh", func() { p.Refresh(&Process{}) })
		wrong(name+".Watch", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return p.Watch(ctx)
		})
		wrong(name+".Heed", func() error { return p.Heed(&NewPrograms{}) })
	}
	processes("Processes", &Processes{})
	wrong("Processes.Bootstrap", (&Processes{}).Bootstrap)
	alone := NewProcesses(ProcessesConfig{PIDs: []int32{int32(os.Getpid())}})
	processes("NewProcesses", alone)
	testenv.NoPanic(t, "Processes.Heed of nothing", func() {
		if err := alone.Heed(new(Session).NewPrograms()); err != nil {
			t.Errorf("to heed nothing: %v", err)
		}
	})
	if err := alone.Bootstrap(); err != nil {
		t.Errorf("Bootstrap: %v", err)
	}
	if p := alone.Process(int32(os.Getpid())); p == nil || len(p.Space.Mappings()) == 0 {
		t.Error("it does not know this process")
	}

	var sample Sample
	testenv.NoPanic(t, "Sample", func() {
		if sample.CommString() != "" || sample.HasUser() {
			t.Error("the zero Sample is of something")
		}
	})

	var names KernelNames
	testenv.NoPanic(t, "KernelNames", func() {
		if _, _, ok := names.Lookup(1); ok || names.Close() != nil {
			t.Error("the zero KernelNames knows of something")
		}
	})

	var s Session
	wrong("Session.Start", s.Start)
	wrong("Session.Stop", s.Stop)
	wrong("Session.Stats", func() error { _, err := s.Stats(); return err })
	wrong("Session.ReadSamples", func() error { return s.ReadSamples(1, func(*Sample) error { return nil }) })
	wrong("Session.SetGoProcess", func() error { return s.SetGoProcess(1, GoOffsets{}) })
	wrong("Session.ForgetGoProcess", func() error { return s.ForgetGoProcess(1) })
	wrong("Session.SetStackEnd", func() error { return s.SetStackEnd(1, 1) })
	wrong("Session.SetThreadEnds", func() error { return s.SetThreadEnds(1, 1) })
	wrong("Session.SetStartsAbove", func() error { return s.SetStartsAbove(1) })
	wrong("Session.SetStackParts", func() error { return s.SetStackParts(1, &[StackParts]uint64{}) })
	testenv.NoPanic(t, "Session", func() {
		s.BytesRead()
		s.Duration()
		s.Event()
		s.Frequency()
		s.Period()
		s.RingBytes()
	})
	testenv.NoPanic(t, "Session.NewPrograms", func() { s.NewPrograms() })
	testenv.NoPanic(t, "Session.Close", func() { _ = s.Close() })

	var b Sideband
	testenv.NoPanic(t, "Sideband.Drain", func() { b.Drain(func(*SidebandEvent) { t.Error("an event") }) })
	testenv.NoPanic(t, "Sideband.Stats", func() { b.Stats() })
	wrong("Sideband.SyncCPUs", func() error { return b.SyncCPUs(func(*SidebandEvent) {}) })
	wrong("Sideband.Wait", func() error { _, err := b.Wait(time.Millisecond); return err })
	testenv.NoPanic(t, "Sideband.Wake", func() { b.Wake() })
	testenv.NoPanic(t, "Sideband.Close", func() { _ = b.Close() })

	var st Stats
	testenv.NoPanic(t, "Stats", func() {
		if st.fired() != 0 || st.Lost() != 0 {
			t.Error("samples of nothing")
		}
		st.LostByReason()
	})
	wrong("Open", func() error {
		s, err := Open(Config{Frequency: -1})
		if err == nil {
			s.Close()
		}
		return err
	})
}
