package resetlock

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/process/processtest"
	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

// childEnv marks a process that a test started as a daemon; its value is the
// daemon's childConfig.
const childEnv = "TEST_IPOIBD_RESETLOCK_CHILD"

func TestMain(m *testing.M) {
	if conf := os.Getenv(childEnv); conf != "" {
		os.Exit(childMain(conf))
	}
	os.Exit(m.Run())
}

// childConfig describes a daemon with a stub for a device.
type childConfig struct {
	Name, Dir    string
	Device       string        // the stub's file
	Grace, Limit time.Duration // of the coordinator
	Verb         time.Duration // how long the reset of the device takes
	Slow         time.Duration // how long it takes to release the device
	Dead         bool          // it never releases it
	Hangs        bool          // the reset does not end with its context
	Denied       bool          // it lacks the privilege to reset it
	Absent       bool          // it finds no device to reset
	Loses        bool          // its reset removes the device and does not bring it back
	Alone        bool          // its resets concern no other process
	Blind        bool          // its user namespace allows no inotify instances
	GUID         byte          // tells devices apart
}

// stub is a device whose use the kernel checks: a process that has it open holds a shared
// lock on its file, and a process that resets it an exclusive one, which it gets only if no
// process has it open.
type stub struct{ user, resetter *os.File }

// newStub opens the file for resets. It must be called after the coordinator has opened its
// files: the kernel closes the files of a dying process beginning with the last one, and
// another process may reset the device as soon as the coordinator's are closed. The file for
// use is opened later still, like a device.
func newStub(path string) (s stub, err error) {
	s.resetter, err = os.OpenFile(path, os.O_RDWR, 0o600)
	return s, err
}

func (s stub) open() error { return unix.Flock(int(s.user.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

func (s stub) close() error { return unix.Flock(int(s.user.Fd()), unix.LOCK_UN) }

func (s stub) reset(ctx context.Context, d time.Duration) error {
	if err := unix.Flock(int(s.resetter.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("reset while a process has the device open: %w", err)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return errors.Join(ctx.Err(), unix.Flock(int(s.resetter.Fd()), unix.LOCK_UN))
}

// child is the daemon in its own process. It writes a line for each event, with the time of a
// clock that all processes share.
type child struct {
	conf childConfig
	dev  stub
	mu   sync.Mutex // guards stdout and armed
	arm  int        // the action at which the coordinator stops, counted down; 0: none
	goOn chan struct{}

	asked int // how often it was asked to release the device

	seal *processtest.Guard
}

func (c *child) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("%d %s\n", monotonic(), fmt.Sprintf(format, args...))
}

// try writes what went wrong.
func (c *child) try(what string, err error) {
	if err != nil {
		c.say("wrong: %s: %v", what, err)
		return
	}
	c.say("%s", what)
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

func childMain(text string) int {
	c := &child{goOn: make(chan struct{})}
	if err := json.Unmarshal([]byte(text), &c.conf); err != nil {
		panic(err)
	}
	if err := os.WriteFile(c.conf.Device, nil, 0o600); err != nil { // the first file also starts the runtime's poller
		panic(err)
	}
	if c.conf.Blind {
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
			panic(err)
		}
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	slog.Info("up") // the first time of day that is written reads the time zone's file
	orders := make(chan string, 10)
	go c.readOrders(orders)
	before := inUse()
	if err := c.run(orders); err != nil {
		c.say("wrong: %v", err)
		return 1
	}
	if left := settle(before); left.exceeds(before) {
		c.say("wrong: %+v in use, %+v before", left, before)
	}
	c.say("left")
	return 0
}

// acted stops the daemon after the call or action that was armed, until the order to go on.
// There it can be killed or stopped.
func (c *child) acted(what string) {
	c.mu.Lock()
	armed := c.arm
	c.arm = max(armed-1, 0)
	c.mu.Unlock()
	if armed == 1 {
		c.say("after %s", strings.TrimPrefix(what, "reset."))
		<-c.goOn
	}
}

// readOrders reads the orders of the test, one a line. At the end the daemon leaves.
func (c *child) readOrders(orders chan<- string) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if in.Text() == "go" {
			c.goOn <- struct{}{}
			continue
		}
		orders <- in.Text()
	}
	orders <- "leave"
}

// stepper is the kernel of a child that can be stopped after each call.
type stepper struct {
	reset.Kernel
	c *child
}

func (k stepper) then(what string, held bool) bool {
	k.c.acted(fmt.Sprint(what, " ", held))
	return held
}

func (k stepper) Claim() (bool, error) {
	ours, err := k.Kernel.Claim()
	return k.then("claim", ours), err
}

func (k stepper) Exclude() (bool, error) {
	ours, err := k.Kernel.Exclude()
	return k.then("exclude", ours), err
}

func (k stepper) Share() bool          { return k.then("share", k.Kernel.Share()) }
func (k stepper) Disclaim()            { k.Kernel.Disclaim(); k.then("disclaim", true) }
func (k stepper) Drop()                { k.Kernel.Drop(); k.then("drop", true) }
func (k stepper) Write(r reset.Record) { k.Kernel.Write(r); k.then("write "+r.Phase.String(), true) }

// share steps the locks until events is closed.
type share struct {
	*Locks
	c      *child
	events chan reset.Event
	out    chan reset.Action // for the user
	asked  int               // how often it was asked to release the device
	answer chan int          // which Release the user has answered
	joined chan struct{}     // closed when the user may open the device
	hook   sync.WaitGroup
	done   chan reset.Event // of the hook, which may begin when events is being closed
}

func (c *child) share(l *Locks) *share {
	l.machine = reset.New(l.files.conf.Config, stepper{l.files, c})
	s := &share{Locks: l, c: c, events: make(chan reset.Event, 10), out: make(chan reset.Action, 1000), answer: make(chan int, 1000), joined: make(chan struct{}), done: make(chan reset.Event, 1)}
	go s.run()
	return s
}

func (s *share) run() {
	defer close(s.out)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in := false
	pending := s.step(reset.Event{Kind: reset.Look})
	for {
		for ; len(pending) > 0; pending = pending[1:] {
			switch a := pending[0].(type) {
			case reset.Reset:
				s.hook.Go(func() {
					ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.c.conf.Limit, reset.DefaultLimit))
					defer cancel()
					s.done <- Done(s.c.reset(ctx, a))
				})
			case reset.Release:
				if !in {
					pending = append(pending, s.step(reset.Event{Kind: reset.Released})...)
					continue
				}
				s.asked++
				s.out <- a
			default:
				if in {
					s.out <- a
				}
			}
		}
		if state := s.Status().State; !in && state == reset.StateUsing {
			in = true
			close(s.joined)
		}
		wait := time.Hour
		if at, ok := s.NextDeadline(); ok {
			wait = time.Until(at)
		}
		select {
		case ev, ok := <-s.events:
			if !ok {
				cancel()
				s.hook.Wait()
				if len(s.done) > 0 {
					s.step(<-s.done)
				}
				return
			}
			pending = s.step(ev)
		case n := <-s.answer:
			if n == s.asked { // and not one that has ended since
				pending = s.step(reset.Event{Kind: reset.Released})
			}
		case ev := <-s.done:
			pending = s.step(ev)
		case <-s.Changes():
			pending = s.step(reset.Event{Kind: reset.Look})
		case <-time.After(wait):
			pending = s.step(reset.Event{Kind: reset.Look})
		}
	}
}

func (s *share) step(ev reset.Event) []reset.Action {
	actions := s.Step(time.Now(), ev, nil)
	for _, a := range actions {
		s.c.acted(fmt.Sprintf("%T%+v", a, a))
	}
	return actions
}

func (c *child) run(orders <-chan string) error {
	l, err := Open(Config{
		Dir: c.conf.Dir, Log: slog.Default(),
		Config: reset.Config{
			Name: c.conf.Name, Device: reset.Device{NodeGUID: [8]byte{7: c.conf.GUID}, Name: "stub", Means: "link"},
			Exclusive: !c.conf.Alone, Grace: c.conf.Grace, Limit: c.conf.Limit,
		},
	})
	if err != nil {
		return err
	}
	if c.dev, err = newStub(c.conf.Device); err != nil {
		return err
	}
	defer c.dev.resetter.Close()
	s := c.share(l)
	<-s.joined
	c.say("joined")
	if c.dev.user, err = os.OpenFile(c.conf.Device, os.O_RDWR, 0o600); err != nil {
		return err
	}
	defer c.dev.user.Close()
	c.try("open", c.dev.open())
	for {
		select {
		case a := <-s.out:
			c.handle(s, a)
		case order := <-orders:
			if order == "leave" {
				c.try("close", c.dev.close())
				s.hook.Wait()
				close(s.events)
				for range s.out { //nolint:revive // until it has ended
				}
				l.Close()
				return nil
			}
			c.obey(s, order)
		}
	}
}

func (c *child) obey(s *share, order string) {
	word, arg, _ := strings.Cut(order, " ")
	switch word {
	case "arm":
		n, _ := strconv.Atoi(arg)
		c.mu.Lock()
		c.arm = n
		c.mu.Unlock()
		c.say("armed")
	case "request":
		c.say("request")
		s.events <- reset.Event{Kind: reset.Want}
	case "status":
		st := s.Status()
		c.say("status %s %s sharers=%v err=%v", st.State, st.Intent.Phase, s.Sharers(), st.Err)
	case "seal":
		var err error
		c.seal, err = processtest.DenyFiles()
		c.try("sealed", err)
	case "open":
		_, err := os.Open(arg)
		c.try("opens a file", err)
	case "opened":
		c.say("opened %d files", len(c.seal.Opened()))
	}
}

func (c *child) handle(s *share, a reset.Action) {
	switch a := a.(type) {
	case reset.Release:
		c.asked++
		c.say("pending")
		if c.conf.Dead {
			return
		}
		time.Sleep(c.conf.Slow)
		c.try("close", c.dev.close())
		s.answer <- c.asked
	case reset.Ended:
		c.say("ended %s %s", a.Outcome, a.Detail)
		if a.Outcome != reset.OutcomeTimeout { // then it cannot be opened
			c.try("open", c.dev.open())
		}
	case reset.Silent:
		leader := s.Status().Leader
		c.say("silent %s %d", leader.Name, leader.PID)
	case reset.Answers:
		c.say("answers")
	}
}

func (c *child) reset(ctx context.Context, how reset.Reset) error {
	if c.conf.Absent {
		return fmt.Errorf("reset: %w", hca.ErrNoDevice)
	}
	if c.conf.Denied {
		c.say("denied")
		return fmt.Errorf("reset: %w", fs.ErrPermission)
	}
	c.say("reset begins complete=%t", how.Complete)
	if c.conf.Loses {
		return fmt.Errorf("reset: %w", ErrUnfinished)
	}
	if how.Abandon {
		c.try("abandon", c.dev.close())
	}
	if c.conf.Hangs {
		ctx = context.Background()
	}
	err := c.dev.reset(ctx, c.conf.Verb)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) { // it leaves, or was stopped
		c.say("reset given up")
		return err
	}
	c.try("reset ends", err)
	return err
}
