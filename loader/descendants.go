package loader

import (
	"golang.org/x/sys/unix"
)

// WithDescendants returns processes and all that descend from them now, each once,
// those before what they have forked. One whose parent has ended, or any before that,
// descends from none of them any more, as far as the kernel knows.
func WithDescendants(pids []int32) ([]int32, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	children := make(map[int32][]int32)
	for _, pid := range all {
		if st, err := readStat(pid); err == nil {
			children[st.ppid] = append(children[st.ppid], pid)
		}
	}
	var found []int32
	seen := make(map[int32]bool)
	for next := pids; len(next) > 0; {
		var forked []int32
		for _, pid := range next {
			if !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
				forked = append(forked, children[pid]...)
			}
		}
		next = forked
	}
	return found, nil
}

// trackDescendants enters what descends from the processes asked for, which have been
// entered. What is forked meanwhile the fork hook enters, by what that descends from.
func (s *Session) trackDescendants() error {
	if err := s.flags.set(noProcess, processSampled); err != nil {
		return err
	}
	defer s.flags.clear(noProcess, processSampled)
	pids := make([]int32, len(s.cfg.PIDs))
	for i, pid := range s.cfg.PIDs {
		pids[i] = int32(pid)
	}
	pids, err := WithDescendants(pids)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := s.flags.set(int(pid), processSampled); err != nil {
			return err
		}
	}
	return nil
}

// ProcessesDone returns a channel that is closed when all of Config.PIDs have ended and,
// with FollowChildren, all of their descendants; nil where the kernel does not tell.
func (s *Session) ProcessesDone() <-chan struct{} {
	named := ProcessesDone(s.cfg.PIDs)
	if named == nil || !s.cfg.FollowChildren {
		return named
	}
	done := make(chan struct{})
	go func() {
		<-named
		// What is born while others are looked at is found the second time.
		for looks := 0; looks < 2; looks++ {
			running, err := s.running()
			if err != nil {
				return
			}
			if running != nil {
				running.await()
				looks = -1
			}
		}
		close(done)
	}()
	return done
}

// running returns one of the sampled processes, if any has not ended.
func (s *Session) running() (*ending, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		s.mu.Lock()
		is, err := s.flags.has(int(pid), processSampled)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		e, err := watchProcess(int(pid))
		switch {
		case err == unix.ESRCH:
		case err != nil:
			return nil, err
		case !e.isOver(0):
			return e, nil
		default:
			e.close()
		}
	}
	return nil, nil
}
