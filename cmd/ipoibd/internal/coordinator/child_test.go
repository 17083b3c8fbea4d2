package coordinator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// childEnv marks a process that a test started as a daemon; its value is the
// daemon's childConfig.
const childEnv = "IPOIBD_COORDINATOR_CHILD"

func TestMain(m *testing.M) {
	if conf := os.Getenv(childEnv); conf != "" {
		os.Exit(childMain(conf))
	}
	os.Exit(m.Run())
}

// childConfig describes a daemon with a stub for a device.
type childConfig struct {
	Name, Path    string
	Device        string        // the stub's file
	Grace, Settle time.Duration // of the coordinator
	Verb          time.Duration // how long the reset of the device takes
	Slow          time.Duration // how long it takes to let go of the device
	Dead          bool          // it never lets go
}

// stub is a device on which the kernel watches over who uses it: who has it open
// holds a shared lock on its file, who resets it an exclusive one. Its files
// are open from the start.
type stub struct{ user, resetter *os.File }

func newStub(path string) (s stub, err error) {
	if s.user, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		s.resetter, err = os.OpenFile(path, os.O_RDWR, 0o600)
	}
	return s, err
}

func (s stub) open() error {
	return unix.Flock(int(s.user.Fd()), unix.LOCK_SH|unix.LOCK_NB)
}

func (s stub) close() error { return unix.Flock(int(s.user.Fd()), unix.LOCK_UN) }

func (s stub) reset(ctx context.Context, d time.Duration) error {
	if err := unix.Flock(int(s.resetter.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("reset while somebody has the device open: %w", err)
	}
	pause(ctx, d)
	return errors.Join(ctx.Err(), unix.Flock(int(s.resetter.Fd()), unix.LOCK_UN))
}

// child is the daemon in its own process. It writes what happens, each line with
// the time of a clock that all processes share.
type child struct {
	conf childConfig
	dev  stub
	mu   sync.Mutex // guards stdout
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
	c := &child{}
	if err := json.Unmarshal([]byte(text), &c.conf); err != nil {
		panic(err)
	}
	var err error
	if c.dev, err = newStub(c.conf.Device); err != nil {
		panic(err)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	slog.Info("up") // the first time of day that is written reads the time zone's file
	orders := make(chan string)
	go readOrders(orders)
	before := inUse()
	if err := c.run(orders); err != nil {
		c.say("wrong: %v", err)
		return 1
	}
	c.leaks(before)
	return 0
}

// leaks writes what is in use that was not before.
func (c *child) leaks(before usage) {
	left := settle(before)
	if left.exceeds(before) {
		c.say("wrong: %+v in use, %+v before", left, before)
	}
	c.say("left")
}

// readOrders reads what the test wants, a line each, and then that it leaves.
func readOrders(orders chan<- string) {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		orders <- in.Text()
	}
	orders <- "leave"
}

func (c *child) run(orders <-chan string) error {
	co, err := Join(context.Background(), Config{
		Device: "stub", Name: c.conf.Name, Path: c.conf.Path,
		Grace: c.conf.Grace, Settle: c.conf.Settle,
		Reset: c.reset, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	c.say("joined")
	c.try("open", c.dev.open())
	for {
		select {
		case ev := <-co.Events():
			c.handle(co, ev)
		case order := <-orders:
			if order == "leave" {
				c.try("close", c.dev.close())
				return co.Close()
			}
			c.obey(co, order)
		}
	}
}

func (c *child) obey(co *Coordinator, order string) {
	switch order {
	case "request":
		c.say("request")
		co.Request()
	case "status":
		s := co.Status()
		c.say("status hosting=%v host=%d up=%v phase=%v", s.Hosting, s.Host.PID, s.Up, s.Phase)
	case "seal":
		c.try("sealed", seal())
	case "open":
		_, err := os.Open(c.conf.Device)
		c.try("opened a file", err)
	}
}

func (c *child) handle(co *Coordinator, ev Event) {
	switch ev := ev.(type) {
	case Pending:
		c.say("pending")
		if c.conf.Dead {
			return
		}
		time.Sleep(c.conf.Slow)
		c.try("close", c.dev.close())
		co.Released(ev.ID)
	case Ended:
		c.say("ended %s %s", ev.Outcome, strings.Join(names(ev.Holders), " "))
		c.try("open", c.dev.open())
	case Silent:
		c.say("silent %s[%d]", ev.Host.Name, ev.Host.PID)
	case Answers:
		c.say("answers %s[%d]", ev.Host.Name, ev.Host.PID)
	}
}

func (c *child) reset(ctx context.Context, without []reset.Member) error {
	c.say("reset begins %s", strings.Join(names(without), " "))
	err := c.dev.reset(ctx, c.conf.Verb)
	if errors.Is(err, context.Canceled) { // it leaves
		c.say("reset canceled")
		return err
	}
	c.try("reset ends", err)
	return err
}
