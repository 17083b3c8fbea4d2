package resetlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

// Config describes a device and this process's share in it.
type Config struct {
	// Device names the device in the log; Name names this process to others, for
	// people: the interfaces that it has on the device.
	Device, Name string
	// Dir is the directory of the locks. Empty: no other process uses the device.
	Dir string
	// Identity is what the device is called in that directory.
	Identity reset.Device
	// Exclusive says that Reset breaks what other processes have open.
	Exclusive bool
	// Grace is how long a reset waits for who has the device open, Limit how long
	// Reset may take. Zero: the defaults of package reset.
	Grace, Limit time.Duration
	// Reset resets the device, on a goroutine of its own, and never while an earlier
	// call is under way. ctx ends when Limit is over or the coordinator closes; Close
	// waits for the return. An error that is fs.ErrPermission, or EROFS (a sysfs that is
	// mounted for reading only), says that nothing was done, and that another process may
	// be able to; one that is hca.ErrNoDevice, that there is no device to reset.
	Reset func(ctx context.Context, how reset.Reset) error
	// Holders names who has the device open, as far as it is known besides the locks.
	// Nil: it is not.
	Holders func() []string
	// Waiting is told what Join waits for, and never after Join has returned. It must
	// not block. Nil: no one is told.
	Waiting func(why error)
	Log     *slog.Logger
}

// Event is one of [Pending], [Ended], [Silent], [Answers].
type Event interface{ event() }

type (
	// Pending says that a reset of the device is pending: release it, then call
	// [Coordinator.Released]. Nothing of the device is opened before [Ended].
	Pending struct{ ID reset.ID }
	// Ended says that a reset ended, and how. Either way the device may be opened again.
	// It may come while this process still releases.
	Ended struct{ reset.Ended }
	// Silent says that the process that leads a reset does not get on with it.
	Silent struct{ Leader Process }
	// Answers says that it does again.
	Answers struct{ Leader Process }
)

func (Pending) event() {}
func (Ended) event()   {}
func (Silent) event()  {}
func (Answers) event() {}

// Process is another process, as far as it is known here.
type Process struct {
	PID   int       // 0: not known, or of another PID namespace
	Name  string    // for people
	Since time.Time // since when it is silent; zero: it is not
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

// Status is the state of a coordinator.
type Status struct {
	Shared bool // there are files
	State  reset.State
	Intent reset.Record // as this process knows it
	Leader Process      // the zero value unless another process leads
	Err    error        // why this process is not in touch with others; nil: it is
}

// Coordinator is this process's share in the resets of a device. All methods may
// be called from any goroutine.
type Coordinator struct {
	conf   Config
	log    *slog.Logger
	files  *files // nil: no other process uses the device
	events chan Event
	joined chan struct{} // closed when the device may be opened

	kick      chan struct{} // has a value when one of the next two may have changed
	requested atomic.Bool
	released  atomic.Uint64 // the last reset that the user is ready for

	status atomic.Pointer[Status]
	stop   context.CancelFunc
	done   chan struct{} // closed when all goroutines have ended
}

// Join takes part in the resets of the device, and returns when it may be opened,
// which is at once unless a reset is under way. One that was cut short is completed
// first, if this process can. It ends with ctx. Errors: [ErrUnsafe], or why the
// directory or its files cannot be used.
func Join(ctx context.Context, conf Config) (*Coordinator, error) {
	c := &Coordinator{
		conf: conf, log: conf.Log.With("device", conf.Device),
		events: make(chan Event), joined: make(chan struct{}), kick: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if conf.Dir != "" {
		var err error
		if c.files, err = openFiles(conf.Dir, conf.Identity.Key()); err != nil {
			return nil, fmt.Errorf("share %s with other processes: %w", conf.Device, err)
		}
	}
	run, stop := context.WithCancel(context.Background())
	c.stop = stop
	o := &owner{Coordinator: c, ctx: run, changes: make(chan struct{}, 1), results: make(chan reset.ResetDone)}
	o.machine = reset.New(time.Now(), reset.Config{
		Device: conf.Identity, Name: cmp.Or(conf.Name, conf.Device), PID: uint32(os.Getpid()), Grace: conf.Grace, Limit: conf.Limit,
		Shared: c.files != nil, Exclusive: conf.Exclusive,
	})
	o.publish()
	go o.run()
	select {
	case <-c.joined:
		return c, nil
	case <-ctx.Done():
		err := fmt.Errorf("share %s with other processes: %w", conf.Device, context.Cause(ctx))
		if l := c.Status().Leader; l != (Process{}) {
			err = fmt.Errorf("%w while waiting for %s", err, l)
		}
		c.Close()
		return nil, err
	}
}

// Events are what happens to the device, in order and with none lost however late
// they are read. The channel is closed by Close.
func (c *Coordinator) Events() <-chan Event { return c.events }

// Request asks for a reset of the device; while one is pending, that is the one. It
// never blocks.
func (c *Coordinator) Request() {
	c.requested.Store(true)
	c.wake()
}

// Released says that this process holds nothing of the device, as the reset id wants
// it. It never blocks.
func (c *Coordinator) Released(id reset.ID) {
	c.released.Store(uint64(id))
	c.wake()
}

func (c *Coordinator) wake() {
	select {
	case c.kick <- struct{}{}:
	default: // it has not looked yet
	}
}

// Status returns the present state.
func (c *Coordinator) Status() Status { return *c.status.Load() }

// Sharers names the other processes that have the device open or reset it, as far as
// they can be seen from here.
func (c *Coordinator) Sharers() (names []string) {
	if c.files == nil {
		return nil
	}
	for _, pid := range c.files.holders(c.files.use) {
		names = append(names, processName(pid))
	}
	return names
}

// Close ends all goroutines and releases the locks. The user has released the device
// before. It waits for Config.Reset to return.
func (c *Coordinator) Close() error {
	c.stop()
	<-c.done
	return nil
}

// owner is the goroutine that steps the machine and makes its system calls, none of
// which blocks.
type owner struct {
	*Coordinator
	ctx     context.Context // ends at Close
	machine *reset.Machine
	changes chan struct{} // the intent file may have changed
	results chan reset.ResetDone
	running bool    // Config.Reset
	queued  []Event // not yet taken by the user
	opened  bool
	silent  time.Time // since when the leader is
	waits   string    // what Waiting was told last
	err     error     // of the last system call
	logged  string    // the error logged last
	work    sync.WaitGroup
}

func (o *owner) run() {
	defer close(o.done)
	if o.files != nil {
		o.work.Go(o.follow)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	o.step(reset.Tick{})
	closing := o.ctx.Done()
	for o.ctx.Err() == nil || o.running {
		timer.Reset(o.untilDeadline())
		var out chan<- Event
		var next Event
		if len(o.queued) > 0 {
			out, next = o.events, o.queued[0]
		}
		select {
		case out <- next:
			o.queued = o.queued[1:]
		case <-o.kick:
			if o.requested.Swap(false) {
				o.step(reset.Want{})
			}
			o.step(reset.Released{Reset: reset.ID(o.released.Load())})
		case <-o.changes:
			o.step(reset.Seen{Record: o.files.read()})
		case r := <-o.results:
			o.running = false
			o.step(r)
		case <-timer.C:
			o.step(reset.Tick{})
		case <-closing:
			closing = nil // a reset under way is waited for
		}
	}
	o.step(reset.Close{})
	if o.files != nil {
		o.files.close()
	}
	o.work.Wait()
	close(o.events)
}

// noDeadline is far enough away to be none.
const noDeadline = time.Hour

func (o *owner) untilDeadline() time.Duration {
	if at, ok := o.machine.NextDeadline(); ok {
		return time.Until(at)
	}
	return noDeadline
}

// follow reports changes of the intent file. It ends when the file is closed.
func (o *owner) follow() {
	buf := make([]byte, 4096)
	for {
		if _, err := o.files.changes.Read(buf); err != nil {
			if !errors.Is(err, os.ErrClosed) {
				o.log.Warn("cannot watch the reset intent of other processes; reading it once a second", "err", err)
			}
			return
		}
		select {
		case o.changes <- struct{}{}:
		default: // the last change was not read yet
		}
	}
}

// step gives the machine an event, and does what comes of it.
func (o *owner) step(ev reset.Event) {
	now := time.Now()
	for queue := o.machine.Step(now, ev, nil); len(queue) > 0; queue = queue[1:] {
		answer := o.act(queue[0])
		afterAction(queue[0])
		if answer != nil {
			queue = o.machine.Step(now, answer, queue)
		}
	}
	o.publish()
}

// afterAction is for tests that stop a process at each step.
var afterAction = func(reset.Action) {}

func (o *owner) act(a reset.Action) reset.Event {
	switch a := a.(type) {
	case reset.Look:
		return reset.Seen{Record: o.files.read()}
	case reset.Claim:
		if o.note(o.files.removed()) {
			return reset.Claimed{}
		}
		return reset.Claimed{Held: o.flock(o.files.intent, unix.LOCK_EX), Record: o.files.read()}
	case reset.Disclaim:
		o.flock(o.files.intent, unix.LOCK_UN)
	case reset.Share:
		return reset.Taken{Held: o.flock(o.files.use, unix.LOCK_SH)}
	case reset.Exclude:
		held := o.flock(o.files.use, unix.LOCK_EX)
		if held || !a.Name {
			return reset.Taken{Held: held}
		}
		return reset.Taken{By: o.holders()}
	case reset.Drop:
		o.flock(o.files.use, unix.LOCK_UN)
	case reset.Write:
		o.note(o.files.write(a.Record))
	case reset.Reset:
		o.reset(a)
	default:
		o.tell(a)
	}
	return nil
}

func (o *owner) flock(f *os.File, how int) bool {
	held, err := flock(f, how)
	o.note(err)
	return held
}

// note keeps an error for the status, and logs one that is new; false: there is none.
func (o *owner) note(err error) bool {
	if err != nil && err.Error() != o.logged {
		o.logged = err.Error()
		o.log.Error("cannot coordinate resets of the device with other processes", "err", err)
	}
	o.err = err
	return err != nil
}

// tell does the actions that concern the user.
func (o *owner) tell(a reset.Action) {
	switch a := a.(type) {
	case reset.Open:
		o.opened = true
		close(o.joined)
	case reset.Release:
		o.log.Info("reset pending", "reset", o.machine.Intent().Number, "asked_for_by", o.machine.Intent().Leader)
		o.queued = append(o.queued, Pending{a.Reset})
	case reset.Ended:
		level := slog.LevelInfo
		if a.Outcome != reset.OutcomeDone {
			level = slog.LevelWarn
		}
		o.log.Log(context.Background(), level, "reset ended", "reset", o.machine.Intent().Number, "outcome", a.Outcome.String(), "detail", a.Detail)
		o.queued = append(o.queued, Ended{a})
	case reset.Silent:
		o.silent = a.Since
		o.log.Warn("the process that resets the device does not go on; let it continue, or end it", "leader", o.leader().String(), "since", a.Since)
		if o.opened {
			o.queued = append(o.queued, Silent{o.leader()})
		}
	case reset.Answers:
		leader := o.leader()
		o.silent = time.Time{}
		if o.opened {
			o.queued = append(o.queued, Answers{leader})
		}
	}
}

// reset runs Config.Reset.
func (o *owner) reset(how reset.Reset) {
	o.log.Info("resetting the device", "users_left_behind", how.Abandon, "completes_a_reset_cut_short", how.Complete)
	o.running = true
	ctx, cancel := context.WithTimeout(o.ctx, cmp.Or(o.conf.Limit, reset.DefaultLimit))
	o.work.Go(func() {
		defer cancel()
		r := reset.ResetDone{Outcome: reset.OutcomeDone}
		if err := o.conf.Reset(ctx, how); err != nil {
			o.log.Error("reset of the device failed", "err", err)
			r = reset.ResetDone{Outcome: reset.OutcomeFailed, Detail: err.Error()}
			switch {
			case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
				r.Outcome = reset.OutcomeDenied
			case errors.Is(err, hca.ErrNoDevice):
				r.Outcome = reset.OutcomeAbsent
			}
		}
		o.results <- r
	})
}

// holders names who has the device open.
func (o *owner) holders() string {
	names := o.Sharers()
	if o.conf.Holders != nil {
		names = append(names, o.conf.Holders()...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return "a process that cannot be seen from here, such as one of another PID namespace"
	}
	return strings.Join(names, ", ")
}

// leader is the process that leads a reset; the zero value where it is this one, or
// there is none.
func (o *owner) leader() (p Process) {
	s := o.machine.State()
	if o.files == nil || s > reset.StateReleasing || !o.machine.Intent().Under() && o.silent.IsZero() {
		return p
	}
	p.Name, p.Since = o.machine.Intent().Leader, o.silent
	if pids := o.files.holders(o.files.intent); len(pids) > 0 {
		p.PID = pids[0]
	}
	return p
}

func (o *owner) publish() {
	s := &Status{Shared: o.files != nil, State: o.machine.State(), Intent: o.machine.Intent(), Leader: o.leader(), Err: o.err}
	o.status.Store(s)
	if why := s.Leader.String(); !o.opened && s.State == reset.StateWaiting && s.Leader != (Process{}) && why != o.waits && o.conf.Waiting != nil {
		o.waits = why
		o.conf.Waiting(errors.New("waiting for " + why))
	}
}
