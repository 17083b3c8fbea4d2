package qprecovery

import (
	"testing"
	"time"

	"ipoibd/qprecovery/reset"
)

// deviceShell answers what a device's machine requests. open says how an opening ends, or that it hangs.
type deviceShell struct {
	w      *deviceWatcher
	list   []Identity
	open   func() (c Class, ends bool)
	resets int
	opens  int
	hung   uint64 // the Open that hangs; 0: none
}

func newDeviceShell(cfg DeviceConfig) *deviceShell {
	return &deviceShell{
		w: newDeviceWatcher(cfg), list: []Identity{same}, open: func() (Class, bool) { return ClassSuccess, true },
	}
}

func (s *deviceShell) run(t *testing.T, d time.Duration) {
	t.Helper()
	for end := s.w.now.Add(d); s.w.now.Before(end); {
		switch l := s.w.d; {
		case s.w.opening != 0 && s.w.opening != s.hung:
			s.opens++
			if c, ends := s.open(); ends {
				s.do(t, Opened{Op: s.w.opening, Class: c, Identity: same})
			} else {
				s.hung = s.w.opening
			}
		case s.w.closing:
			s.do(t, Closed{s.w.gen})
		case s.w.refresh != 0:
			s.do(t, Listed{Op: s.w.refresh, Devices: s.list})
		case l.reset.pending && l.reset.released:
			s.do(t, sayEnded(reset.OutcomeDone))
		case l.State() == DeviceDropping && l.reset.wanted && !l.reset.pending && l.reset.outcome == "":
			s.resets++
			s.do(t, sayPending)
		default:
			at, ok := l.NextDeadline()
			if !ok || at.After(end) {
				at = end
			}
			s.w.now = at
			s.do(t, Tick{})
		}
	}
}

func (s *deviceShell) do(t *testing.T, ev DeviceEvent) {
	t.Helper()
	if err := s.w.do(ev); err != nil {
		t.Fatal(err)
	}
}

// change changes the list.
func (s *deviceShell) change(t *testing.T, list ...Identity) {
	t.Helper()
	s.list = list
	s.do(t, Listed{Devices: list})
}

// A device that was closed for sleep cannot be opened again: EIO, or a firmware that does not answer.
// It is reset, without a command (R08, R25).
func TestR25DeviceThatCannotBeOpenedIsReset(t *testing.T) {
	for _, c := range []Class{ClassDeviceError, ClassStuck} {
		s := newDeviceShell(DeviceConfig{})
		works := true
		s.open = func() (Class, bool) {
			if works || s.resets > 0 {
				return ClassSuccess, true
			}
			return c, true
		}
		s.change(t, same)
		s.run(t, time.Minute)
		s.do(t, Command{1, DoSuspend})
		s.run(t, time.Minute)
		works = false
		s.do(t, Command{2, DoResume})
		s.run(t, time.Second)
		if st := s.w.d.State(); st != DeviceHealthy || s.resets != 1 {
			t.Errorf("%v: %v after a second, %d openings, %d resets", c, st, s.opens, s.resets)
		}
	}
}

// A device that fails from the start is reset as well, also by order (R25).
func TestR25DeviceThatWasNeverOpenIsReset(t *testing.T) {
	for _, c := range []Class{ClassDeviceError, ClassNoResource} {
		s := newDeviceShell(DeviceConfig{})
		s.open = func() (Class, bool) {
			if s.resets > 0 {
				return ClassSuccess, true
			}
			return c, true
		}
		s.change(t, same)
		s.run(t, time.Minute)
		if s.resets != 0 != c.NeedsReset() {
			t.Errorf("%v: %d resets", c, s.resets)
		}
		s.do(t, Command{1, DoReset})
		s.run(t, time.Minute)
		if st := s.w.d.State(); st != DeviceHealthy || s.resets == 0 {
			t.Errorf("%v: %v after two minutes, %d openings, %d resets", c, st, s.opens, s.resets)
		}
	}
}

// Openings that fail share the budget and the back-off of other failures of the device: three resets,
// then pauses of 10, 20, ... 300 s. Without means of a reset, none is requested.
func TestR06OpeningsThatFailHaveABudget(t *testing.T) {
	for _, noReset := range []bool{false, true} {
		s := newDeviceShell(DeviceConfig{NoReset: noReset})
		works := true
		s.open = func() (Class, bool) {
			if works {
				return ClassSuccess, true
			}
			return ClassDeviceError, true
		}
		s.change(t, same)
		s.run(t, time.Second)
		works = false
		s.do(t, Command{1, DoSuspend})
		s.run(t, time.Second)
		s.do(t, Command{2, DoResume})
		s.run(t, time.Hour)
		most := 20 // 3, then after pauses of 10, 20, 40, 80, 160 and 300 s
		if noReset {
			most = 0
		}
		if s.resets > most || s.resets < most/2 {
			t.Errorf("%d resets in an hour, want at most %d", s.resets, most)
		}
		if st := s.w.d.State(); noReset && st != DeviceGivenUp {
			t.Errorf("%v after an hour in which the device did not open, want given_up", st)
		}
	}
}

// Errors that are no fault of the device, such as EMFILE, EACCES and its absence, reset nothing (R05).
func TestR05OpeningsThatFailForOtherReasonsResetNothing(t *testing.T) {
	for c := ClassSuccess + 1; c < NumClass; c++ {
		if c == ClassDeviceError || c == ClassStuck {
			continue
		}
		s := newDeviceShell(DeviceConfig{})
		fails := 3
		s.open = func() (Class, bool) {
			if fails--; fails >= 0 {
				return c, true
			}
			return ClassSuccess, true
		}
		s.change(t, same)
		s.run(t, time.Second) // after 0.1, 0.2 and 0.4 s
		if st := s.w.d.State(); st != DeviceHealthy || s.resets != 0 {
			t.Errorf("%v: %v, %d resets", c, st, s.resets)
		}
	}
}

// An opening hangs in one instance, and is not answered. It is abandoned within two minutes, and the
// device is reset. If it is replaced in the meantime, the next instance is opened, without a reset.
func TestR19HungOpeningDoesNotLoseTheDevice(t *testing.T) {
	for _, replug := range []bool{false, true} {
		s := newDeviceShell(DeviceConfig{})
		hangs := false
		s.open = func() (Class, bool) { return ClassSuccess, !hangs }
		s.change(t, same)
		s.run(t, time.Minute)
		hangs = true
		s.do(t, Fault{Gen: s.w.d.gen, Class: ClassDeviceError})
		s.run(t, 30*time.Second) // reset, and the opening hangs
		if s.hung == 0 {
			t.Fatal("no opening hangs")
		}
		hangs = false
		want := 2
		if replug {
			s.change(t)
			s.run(t, time.Second)
			again := same
			again.Index++
			s.change(t, again)
			want = 1
		}
		s.run(t, openLimit)
		if st := s.w.d.State(); st != DeviceHealthy || s.resets != want {
			t.Errorf("replug %v: %v; %d openings, %d resets, want %d", replug, st, s.opens, s.resets, want)
		}
	}
}

// An order resets the device in every state in which a device is present and wanted, and no reset is
// under way (R06, R25).
func TestR06OrderResetsInEveryState(t *testing.T) {
	refused := func() (Class, bool) { return ClassRefused, true }
	suspend, resume := Command{1, DoSuspend}, Command{2, DoResume}
	for want, reach := range map[DeviceState]func(*deviceShell){
		DeviceStarting: func(s *deviceShell) {},
		DeviceHealthy:  func(s *deviceShell) { s.run(t, time.Second) },
		DeviceDropping: func(s *deviceShell) {
			s.run(t, time.Second)
			s.do(t, suspend)
			s.do(t, resume)
		},
		DevicePausing: func(s *deviceShell) {
			for range 4 {
				s.run(t, time.Second)
				s.do(t, Fault{Gen: s.w.d.gen, Class: ClassDeviceError})
			}
			s.run(t, time.Second)
		},
		DeviceOpening: func(s *deviceShell) {
			s.run(t, time.Second)
			s.do(t, suspend)
			s.run(t, time.Second)
			s.do(t, resume)
		},
		DeviceWaiting: func(s *deviceShell) {
			s.run(t, time.Second)
			s.open = refused
			s.do(t, suspend)
			s.run(t, time.Second)
			s.do(t, resume)
			s.run(t, time.Minute)
		},
		DeviceGivenUp: func(s *deviceShell) {
			s.run(t, time.Second)
			s.open = refused
			s.do(t, suspend)
			s.run(t, time.Second)
			s.do(t, resume)
			s.run(t, time.Hour)
		},
	} {
		s := newDeviceShell(DeviceConfig{})
		s.change(t, same)
		reach(s)
		if st := s.w.d.State(); st != want {
			t.Fatalf("%v, want %v", st, want)
		}
		before := s.resets
		s.open = func() (Class, bool) { return ClassSuccess, true }
		s.do(t, Command{3, DoReset})
		s.run(t, time.Second)
		if st := s.w.d.State(); st != DeviceHealthy || s.resets != before+1 {
			t.Errorf("%v: %v a second after the order; %d resets, want 1", want, st, s.resets-before)
		}
	}
}

// udev renames the device while it is being opened (mlx5_0 -> rocep3s0), so the opening by the former
// name fails. The device is opened as soon as the list shows its name (R24).
func TestR24RenamedDeviceIsOpenedAtOnce(t *testing.T) {
	s := newDeviceShell(DeviceConfig{})
	fails := 0
	s.open = func() (Class, bool) {
		if fails--; fails >= 0 {
			return ClassDeviceGone, true
		}
		return ClassSuccess, true
	}
	s.change(t, same)
	s.run(t, time.Minute)
	s.change(t)
	s.run(t, 5*time.Second)
	back := same
	back.Index++
	fails = 1
	s.change(t, back)
	s.run(t, 20*time.Millisecond)
	back.Name = "rocep3s0"
	s.change(t, back)
	s.run(t, time.Millisecond)
	if st := s.w.d.State(); st != DeviceHealthy {
		t.Errorf("%v after the list has shown the new name", st)
	}
}

// Another daemon that shares the device has it reset four times. That is no failure of this daemon's
// device, so it does not pause (R16).
func TestR16ResetsOfOthersAreNoFailures(t *testing.T) {
	s := newDeviceShell(DeviceConfig{})
	s.change(t, same)
	s.run(t, time.Second)
	for range 4 {
		s.do(t, sayPending)
		s.run(t, 2*time.Second)
	}
	if st := s.w.d.State(); st != DeviceHealthy {
		t.Errorf("%v after four resets that another daemon requested", st)
	}
}

// An opening that is still unanswered when the next one begins does not become that one: if it succeeds,
// its session is closed first (R20).
func TestR20FormerOpeningIsNotTheNextOne(t *testing.T) {
	s := newDeviceShell(DeviceConfig{})
	hangs := false
	s.open = func() (Class, bool) { return ClassSuccess, !hangs }
	s.change(t, same)
	s.run(t, time.Second)
	hangs = true
	s.do(t, Fault{Gen: s.w.d.gen, Class: ClassDeviceError})
	s.run(t, time.Second)
	s.w.d.rung = RungWait // so that an order is not merged into the reset
	s.w.rung = RungWait
	s.do(t, Command{1, DoReset}) // it waits for the opening
	s.run(t, DefaultGrace+reset.DefaultLimit+dropMargin+RetryEvery/2)
	hangs = false
	s.do(t, sayEnded(reset.OutcomeHeld))
	s.do(t, Opened{Op: s.hung, Identity: same})
	s.run(t, 10*time.Second)
	if st := s.w.d.State(); st != DeviceHealthy {
		t.Error(st)
	}
}
