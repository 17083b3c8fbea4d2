package iface

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/linktest"
)

// scripted is a TAP whose inspections return what the test sets.
type scripted struct {
	*tap
	found link.Findings
	err   error
}

func (s *scripted) Inspect() (link.Findings, error) { return s.found, s.err }

// inspected returns an interface on a scripted TAP. The interface does not run.
func inspected(t *testing.T, log slog.Handler) (*Iface, *scripted) {
	t.Helper()
	f := newIface(t, &tap{Fake: linktest.NewFake("ib0")}, device.New(device.Config{Name: "soft", Log: quiet}), testConfig())
	s := &scripted{tap: f.host.tap.(*tap)}
	f.host.tap, f.host.log = s, slog.New(log)
	return f, s
}

// What an inspection restored is logged even when the inspection then fails.
func TestRestoredChangesOfAFailedInspectionAreLogged(t *testing.T) {
	var log bytes.Buffer
	f, s := inspected(t, slog.NewTextHandler(&log, nil))
	s.found.Restored = []link.Change{{What: link.PropertyPersistence, Found: "off"}}
	s.err = hca.ErrInvalid
	found, err := s.Inspect()
	f.host.inspected(found, err, time.Now())
	if n := strings.Count(log.String(), "property=persistence found=off"); n != 1 {
		t.Errorf("the restored persistence is logged %d times, want once:\n%s", n, &log)
	}
}

// A failed inspection is logged as a warning, once per error. The status shows it until
// an inspection succeeds.
func TestFailedInspectionsAreReported(t *testing.T) {
	var log bytes.Buffer
	f, s := inspected(t, slog.NewTextHandler(&log, nil))
	f.rec.err = nil // nothing else is wrong
	for i, step := range []struct {
		err      error
		warnings int // so far
	}{
		{nil, 0},
		{errors.New("set MAC: EBUSY"), 1},
		{errors.New("set MAC: EBUSY"), 1},
		{errors.New("set MAC: EPERM"), 2},
		{nil, 2},
		{errors.New("set MAC: EPERM"), 3},
		{link.ErrGone, 3}, // Run ends with it
	} {
		s.err = step.err
		found, err := s.Inspect()
		f.host.inspected(found, err, time.Now())
		if n := strings.Count(log.String(), "level=WARN"); n != step.warnings {
			t.Errorf("step %d: %d warnings, want %d:\n%s", i, n, step.warnings, &log)
		}
		want := step.err != nil && !errors.Is(step.err, link.ErrGone)
		f.show(time.Now())
		if got := f.Status().Detail; strings.Contains(got, "set MAC") != want {
			t.Errorf("step %d: the status has reason %q", i, got)
		}
	}
}

// A process that keeps changing the carrier cannot hide its change of the MAC from the
// log.
func TestOnePropertyDoesNotHideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f, s := inspected(t, process.LimitLog(slog.NewTextHandler(&log, nil)))
		for i := range 100 {
			s.found.Restored = []link.Change{{What: link.PropertyCarrier, Found: "off"}}
			if i == 50 {
				s.found.Restored = append(s.found.Restored, link.Change{What: link.PropertyMAC, Found: "02:00:00:00:66:66"})
			}
			found, err := s.Inspect()
			f.host.inspected(found, err, time.Now())
		}
		if n := strings.Count(log.String(), "property=carrier"); n == 0 || n >= 100 {
			t.Fatalf("%d of 100 changes of the carrier are logged, so the test shows nothing:\n%s", n, &log)
		}
		if n := strings.Count(log.String(), "02:00:00:00:66:66"); n != 1 {
			t.Errorf("the change of the MAC is logged %d times, want once:\n%s", n, &log)
		}
	})
}
