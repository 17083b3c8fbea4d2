package resetlock

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// remove removes the files of the locks.
func (s *shared) remove() {
	s.Helper()
	if err := os.RemoveAll(s.conf.Dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) { // a daemon may be faster
		s.Fatal(err)
	}
}

// Daemons whose lock files were removed create new ones. They share the device with each
// other and with a daemon that starts later.
func TestR16FilesAreRemoved(t *testing.T) {
	s := newShared(t)
	all := []*daemon{s.join("ib0", container), s.join("ib1", container)}
	for n := range 2 {
		s.remove()
		all = append(all, s.join(fmt.Sprintf("ib%d", 2+n), container))
		all[n].order("request")
		asked := all[n].await("request").at
		for _, d := range all {
			d.await("pending")
			t.Logf("%s: done %v after the request", d.name, d.await(wantsDone).at-asked)
		}
	}
	for _, d := range all {
		d.leave()
	}
	if a, b := all[0].count("reset begins"), all[1].count("reset begins"); a != 1 || b != 1 {
		t.Errorf("%d and %d resets, want one for each request", a, b)
	}
}

// A daemon that is stopped while the files are removed still has the device open. The others
// do not reset the device, and name that daemon, until it continues.
func TestR16FilesAreRemovedFromAStoppedDaemon(t *testing.T) {
	s := newShared(t)
	s.conf.Grace = 3 * time.Second
	asks, stopped := s.join("ib0"), s.join("ib1")
	stopped.stop()
	s.remove()
	asks.order("request")
	ended := asks.await("ended")
	if want := fmt.Sprintf("(pid %d)", stopped.cmd.Process.Pid); !strings.HasPrefix(ended.text, "ended held_by_process") || !strings.Contains(ended.text, want) {
		t.Errorf("%q does not name process %d", ended.text, stopped.cmd.Process.Pid)
	}
	stopped.signal(syscall.SIGCONT)
	asks.retry(1)
	stopped.await(wantsDone)
}

// If the files cannot be created again, a reset fails with that reason, and the next one after
// that is done.
func TestR16FilesCannotBeCreatedAgain(t *testing.T) {
	s := newShared(t)
	d := s.join("ib0")
	moved := s.conf.Dir + ".removed" // so that a file takes the place of the directory first
	d.must(os.Rename(s.conf.Dir, moved))
	d.must(os.WriteFile(s.conf.Dir, nil, 0o600))
	d.must(os.RemoveAll(moved))
	d.order("request")
	if got := d.await("ended").text; !strings.HasPrefix(got, "ended reset_failed the lock files of the device were removed and cannot be created again: ") {
		t.Error(got)
	}
	d.order("status")
	if got := d.await("status").text; !strings.Contains(got, "err=the lock files of the device were removed") {
		t.Error(got)
	}
	d.must(os.Remove(s.conf.Dir))
	d.retry(1)
	d.order("status")
	if got := d.await("status").text; !strings.Contains(got, "err=<nil>") || d.count("reset begins") != 1 {
		t.Errorf("%q:\n%s", got, d.story())
	}
}

// The files are removed after each system call of a leader. The device is never reset while a
// process has it open, and the next reset is done.
func TestR16FilesAreRemovedAtEachStep(t *testing.T) {
	eachStep(t, true, ample, 8, func(s *shared, victim, asks, _ *daemon) {
		s.remove()
		victim.order("go")
		victim.await("ended")
		asks.retry(2)
	})
}

// The files are removed after each system call of a leader, which is then killed. A reset that
// was cut short is completed.
func TestR16R21FilesAreRemovedAndTheLeaderIsKilledAtEachStep(t *testing.T) {
	eachStep(t, true, ample, 8, func(s *shared, victim, asks, other *daemon) {
		s.remove()
		victim.signal(syscall.SIGKILL)
		victim.awaitEnd()
		asks.retry(2)
		cut := victim.count("reset begins") > 0 && victim.count("reset ends") == 0
		if n := asks.count("reset begins complete=true") + other.count("reset begins complete=true"); cut && n != 1 {
			t.Errorf("completed %d times, want once", n)
		}
	})
}

// If only one of the files is removed, a process does not stand in its own way.
func TestR16OneFileIsRemoved(t *testing.T) {
	for _, suffix := range []string{".use", ".intent"} {
		t.Run(suffix, func(t *testing.T) {
			checkLeaks(t)
			f := &files{conf: Config{Dir: filepath.Join(t.TempDir(), "locks"), Log: slog.New(slog.DiscardHandler)}}
			key := f.conf.Device.Key()
			if err := f.open(f.conf.Dir, key); err != nil {
				t.Fatal(err)
			}
			defer f.close()
			f.Share()
			for range 2 {
				if err := os.Remove(filepath.Join(f.conf.Dir, key+suffix)); err != nil {
					t.Fatal(err)
				}
				f.renew(true)
				if ours, err := f.Claim(); !ours {
					t.Fatalf("the intent is not ours: %v", err)
				}
				if ours, err := f.Exclude(); !ours {
					t.Fatalf("use is not ours: %v", err)
				}
				f.Share()
				f.Disclaim()
			}
		})
	}
}
