package resetlock

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// Other processes of the same user can use up the inotify instances that the user may have.
// A daemon without one looks once a second.
func TestR16WithoutInotify(t *testing.T) {
	s := newShared(t)
	asks, blind := s.join("ib0"), s.join("ib1", container, configured(func(c *childConfig) { c.Blind = true }))
	asks.order("request")
	asked := asks.await("request").at
	t.Logf("closed after %v", blind.await("close").at-asked)
	asks.await(wantsDone)
	blind.await(wantsDone)
	blind.leave()
	blind.awaitEnd()
	if !strings.Contains(blind.errs.String(), "cannot watch for resets") {
		t.Errorf("it can watch:\n%s", blind.errs)
	}
}

// If the end of a reset cannot be written, because the file system became read-only
// meanwhile, the device is not reset again and again. What another process writes later
// counts again.
func TestR16EndThatCannotBeWritten(t *testing.T) {
	checkLeaks(t)
	conf := Config{Dir: t.TempDir() + "/locks", Config: reset.Config{Exclusive: true, Device: reset.Device{Name: "rxe0"}}, Log: slog.New(slog.DiscardHandler)}
	l, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Step(time.Now(), reset.Event{Kind: reset.Look}, nil)
	writable, resets, queue := l.files.intent, 0, []reset.Event{{Kind: reset.Want}}
	for i := 0; i < len(queue) && i < 100; i++ {
		for _, a := range l.Step(time.Now(), queue[i], nil) {
			switch a.(type) {
			case reset.Release:
				queue = append(queue, reset.Event{Kind: reset.Released})
			case reset.Reset:
				resets++
				if l.files.intent == writable {
					if l.files.intent, err = os.Open(conf.Dir + "/" + conf.Device.Key() + ".intent"); err != nil {
						t.Fatal(err)
					}
					defer writable.Close()
					if err := errors.Join(unix.Flock(int(writable.Fd()), unix.LOCK_UN), unix.Flock(int(l.files.intent.Fd()), unix.LOCK_EX|unix.LOCK_NB)); err != nil {
						t.Fatal(err)
					}
				}
				queue = append(queue, reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone})
			}
		}
	}
	if s := l.Status(); resets != 1 || s.State != reset.StateUsing || s.Err == nil {
		t.Errorf("%d resets, state %s, error %v; want 1, using and an error", resets, s.State, s.Err)
	}
	other := reset.Record{Phase: reset.PhaseWanted, Number: 7, Device: conf.Device, Leader: "other"}
	if _, err := writable.WriteAt(other.Encode(), 0); err != nil {
		t.Fatal(err)
	}
	if got := l.files.Read(); got != other {
		t.Errorf("after another process wrote: %+v", got)
	}
}

// The process that holds a lock is named although another one holds thousands of locks.
func TestR16LockersAmongMany(t *testing.T) {
	f := &files{conf: Config{Log: slog.New(slog.DiscardHandler)}}
	dir := t.TempDir() + "/locks"
	if err := f.open(dir, "k"); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	child := exec.Command("flock", "--shared", "--no-fork", dir+"/k.use", "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait() // killed
	}()
	for end := time.Now().Add(5 * time.Second); len(f.lockers(f.use)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Skip("/proc/locks does not show locks here")
		}
	}
	name := t.TempDir() + "/many"
	for range 3000 {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			defer file.Close()
			err = unix.Flock(int(file.Fd()), unix.LOCK_SH)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if pids := f.lockers(f.use); !slices.Equal(pids, []int{child.Process.Pid}) {
		t.Errorf("the lock is held by %v, want %d", pids, child.Process.Pid)
	}
}
