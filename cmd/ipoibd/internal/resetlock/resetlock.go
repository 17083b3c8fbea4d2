package resetlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

// Config describes a device and this process's share in it.
type Config struct {
	reset.Config
	// Dir is the directory of the locks. Empty: no other process uses the device.
	Dir string
	// Holders names the processes that have the device open, from another source than the
	// locks. It does not block. Once all locks are free, they are programs that do not take
	// part, and the device is not reset (R16). May be nil.
	Holders func() []string
	Log     *slog.Logger
}

// Process is the process that leads a reset, as far as it is known here.
type Process struct {
	PID   int       // 0: unknown, or of another PID namespace
	Name  string    // for people
	Since time.Time // when it stopped making progress; zero: it has not
}

func (p Process) String() string {
	text := "the daemon that resets the device"
	if p.PID != 0 {
		text += fmt.Sprintf(", process %d", p.PID)
	}
	if p.Name != "" {
		text += fmt.Sprintf(" (%s)", p.Name)
	}
	return text
}

// Status is the state of a process's share.
type Status struct {
	Shared bool // other processes may use the device
	State  reset.State
	Intent reset.Record // as this process knows it
	Leader Process      // the zero value unless another process leads
	Err    error        // why this process cannot coordinate with others; nil: it can
}

// Sharer is a process's share in the resets of a device. One goroutine calls its methods, except
// Sharers, which any may call.
type Sharer interface {
	Step(now time.Time, ev reset.Event, out []reset.Action) []reset.Action
	NextDeadline() (at time.Time, ok bool)
	Changes() <-chan struct{}
	Status() Status
	Sharers() []string
	Close()
}

// Locks is a [Sharer] by the kernel's file locks.
type Locks struct {
	files   *files
	machine *reset.Machine
	changes chan struct{}
}

// Open opens the files of the device, and makes them where they do not exist. It takes
// no lock: that begins with the first Step with [reset.Look].
func Open(conf Config) (*Locks, error) {
	conf.Shared = conf.Dir != ""
	l := &Locks{files: &files{conf: conf}, changes: make(chan struct{}, 1)}
	l.machine = reset.New(conf.Config, l.files)
	if !conf.Shared {
		return l, nil
	}
	if err := l.files.open(conf.Dir, conf.Device.Key()); err != nil {
		return nil, fmt.Errorf("share the device with other processes: %w", err)
	}
	l.files.watch()
	go l.follow()
	return l, nil
}

// follow reports changes of the intent file until that is closed.
func (l *Locks) follow() {
	buf := make([]byte, 4096)
	for {
		if _, err := l.files.changes.Read(buf); err != nil {
			return // closed, or there is no watch: then the machine looks once a second
		}
		select {
		case l.changes <- struct{}{}:
		default: // the last change was not looked at yet
		}
	}
}

// Changes has a value when a Step with [reset.Look] is due because the intent file changed.
func (l *Locks) Changes() <-chan struct{} { return l.changes }

// NextDeadline returns when one is due because of time; false: never.
func (l *Locks) NextDeadline() (time.Time, bool) { return l.machine.NextDeadline() }

// Step gives the machine an event. The actions are the caller's to carry out.
func (l *Locks) Step(now time.Time, ev reset.Event, out []reset.Action) []reset.Action {
	if state := l.machine.State(); !state.Leads() {
		l.files.renew(state != reset.StateWaiting)
	}
	return l.machine.Step(now, ev, out)
}

// Status returns the present state.
func (l *Locks) Status() Status {
	s := Status{Shared: l.files.conf.Shared, State: l.machine.State(), Intent: l.machine.Intent(), Err: l.files.err}
	silent := l.machine.SilentSince()
	if s.Shared && !s.State.Leads() && (s.Intent.Phase != reset.PhaseIdle || !silent.IsZero()) {
		s.Leader = Process{Name: s.Intent.Leader, Since: silent}
		if pids := l.files.lockers(l.files.intent); len(pids) > 0 {
			s.Leader.PID = pids[0]
		}
	}
	return s
}

// Sharers names the other processes that have the device open or reset it, as far as
// they can be seen from here.
func (l *Locks) Sharers() []string { return l.files.sharers() }

// Close releases the locks. The user holds nothing of the device, and no reset is under
// way.
func (l *Locks) Close() {
	l.Step(time.Now(), reset.Event{Kind: reset.Close}, nil)
	l.files.close()
}

// ErrUnfinished says that a reset has removed the device and has not brought it back. The
// processes that share the device retry to bring it back.
var ErrUnfinished = errors.New("the device is gone until the reset is completed")

// ErrHeld means that nothing was done, because another process has the device open.
var ErrHeld = errors.New("the device is held")

// Done is the event for a reset that has returned. An error that is fs.ErrPermission, or
// EROFS (a sysfs that is mounted read-only), says that nothing was done, and that another
// process may be able to reset the device, unless the error is ErrUnfinished as well.
func Done(err error) reset.Event {
	ev := reset.Event{Kind: reset.Done, Outcome: reset.OutcomeDone}
	if err != nil {
		ev.Outcome, ev.Detail = reset.OutcomeFailed, err.Error()
	}
	switch {
	case errors.Is(err, ErrUnfinished):
		ev.Unfinished = true
	case errors.Is(err, ErrHeld):
		ev.Outcome = reset.OutcomeHeld
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		ev.Outcome = reset.OutcomeDenied
	case errors.Is(err, hca.ErrNoDevice):
		ev.Outcome = reset.OutcomeAbsent
	}
	return ev
}

// completeEvery is the time between two tries for a lock.
const completeEvery = 10 * time.Millisecond

// Complete completes a reset that was cut short and left its device absent, if the
// directory has the record of one that this process is configured for: bringBack adds the
// device again (R21). It waits until no other process holds the device, or until the
// record is no longer one of such a reset, but not longer than timeout, nor after the end of
// ctx. While it waits it holds no lock, so that a process that holds the device can complete
// the reset itself.
func Complete(
	ctx context.Context, dir string, timeout time.Duration,
	configured func(reset.Device) bool, bringBack func(reset.Device) error, log *slog.Logger,
) error {
	f, d := cutShort(dir, configured, log)
	if f == nil {
		return nil
	}
	defer f.close()
	failed := func(err error) error {
		return fmt.Errorf("complete the reset of %s that was cut short: %w", d.Name, err)
	}
	for late := time.After(timeout); !f.exclusive(); {
		if r := f.Read(); !r.Begun || !configured(r.Device) {
			return nil // another process has completed it
		}
		select {
		case <-ctx.Done():
			return failed(context.Cause(ctx))
		case <-late:
			return failed(fmt.Errorf("%w by %s", ErrHeld, f.Holders()))
		case <-time.After(completeEvery):
		}
	}
	r := f.Read()
	if !r.Begun || !configured(r.Device) {
		return nil
	}
	if err := bringBack(d); err != nil {
		return failed(err)
	}
	r.Phase, r.Begun, r.Outcome = reset.PhaseIdle, false, reset.OutcomeDone
	f.Write(r)
	return f.err
}
