package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Times of [Run].
const (
	// lookEvery is how often the status is read, and how often a service that is not ready yet is
	// asked.
	lookEvery = time.Second
	// A service is asked perWatchdog times per WatchdogSec=, and has 1/patience of it to answer, so
	// it can be late once without being killed.
	perWatchdog = 4
	patience    = 2
	// readyPatience is how long a service may take to answer before it is ready.
	readyPatience = 5 * time.Second
)

// Service is what Run reports. Run calls one function at a time.
type Service struct {
	// Started returns nil once clients are served. Run asks until it does.
	Started func(context.Context) error
	// Alive returns nil once each goroutine that matters has answered, or names one that has not when
	// ctx ends.
	Alive func(context.Context) error
	// Status describes the service in one line. It must not block.
	Status func() string
	// Left reports whether another process is the service now (Succeed), which reports
	// itself; nil: never.
	Left func() bool
	Log  *slog.Logger
}

// Run reports to systemd until ctx ends, and then that the service is stopping. Without systemd it
// returns at once. A send blocks while the queue of systemd's socket is full.
func Run(ctx context.Context, s Service) {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.Log.Warn("systemd: the watchdog is off, because WATCHDOG_USEC or WATCHDOG_PID is not valid", "err", err)
	}
	send := func(state string) (bool, error) { return daemon.SdNotify(false, state) }
	r := reporter{Service: s, watchdog: watchdog, send: send}
	r.run(ctx)
}

// Succeed makes another process the main process of the service in place of this one. systemd goes on
// measuring WatchdogSec= from the last answer of any process. So Succeed answers too: each process then has
// the whole of WatchdogSec=, however quickly processes succeed each other.
func Succeed(pid int) error {
	_, err := daemon.SdNotify(false, fmt.Sprintf("MAINPID=%d\n%s", pid, daemon.SdNotifyWatchdog))
	return err
}

// State is what the main process of a service knows of systemd, for the process that succeeds it
// (sd_notify(3), sd_watchdog_enabled(3)).
type State struct {
	Socket   string `json:"notify_socket"`
	Watchdog string `json:"watchdog_usec"`
}

// Export returns what the successor needs.
func Export() State { return State{os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC")} }

// Import makes Run report for the service of the other process, unless systemd has started this one as a
// service of its own.
func (s State) Import() error {
	own := strconv.Itoa(os.Getpid())
	if s.Socket == "" || os.Getenv("WATCHDOG_PID") == own {
		return nil
	}
	err := os.Setenv("NOTIFY_SOCKET", s.Socket)
	if s.Watchdog != "" {
		err = errors.Join(err, os.Setenv("WATCHDOG_USEC", s.Watchdog), os.Setenv("WATCHDOG_PID", own))
	}
	return err
}

// reporter is the state of Run.
type reporter struct {
	Service
	watchdog time.Duration // 0: there is none
	send     func(state string) (sent bool, err error)

	every  time.Duration // between two looks
	ready  bool
	status string    // sent last
	asked  time.Time // Alive, for the watchdog
}

// run asks every lookEvery, or more often if the watchdog requires it.
func (r *reporter) run(ctx context.Context) {
	if !r.notify("STATUS=starting") {
		return
	}
	r.every = lookEvery
	if r.watchdog > 0 {
		r.every = min(r.every, r.watchdog/perWatchdog)
	}
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		r.look(ctx)
		select {
		case <-ctx.Done():
			if r.Left != nil && r.Left() {
				return
			}
			r.notify(daemon.SdNotifyStopping + "\nSTATUS=stopping")
			return
		case <-tick.C:
		}
	}
}

// look reports what has changed, and answers the watchdog when that is due.
func (r *reporter) look(ctx context.Context) {
	switch {
	case !r.ready:
		if r.ready = r.answers(ctx, readyPatience, r.Started, r.Alive); !r.ready {
			return
		}
		r.asked = time.Now()
		state := daemon.SdNotifyReady
		if r.watchdog > 0 { // because READY=1 is no answer from a process that succeeds another one
			state += "\n" + daemon.SdNotifyWatchdog
		}
		r.notify(state)
	case r.watchdog > 0 && time.Since(r.asked)+r.every > r.watchdog/perWatchdog: // at the next look, it is overdue
		r.asked = time.Now()
		if r.answers(ctx, r.watchdog/patience, r.Alive) {
			r.notify(daemon.SdNotifyWatchdog)
		}
	}
	if s := r.Status(); s != r.status {
		r.status = s
		r.notify("STATUS=" + s)
	}
}

// answers asks questions, and logs the first that is not answered in time.
func (r *reporter) answers(ctx context.Context, limit time.Duration, questions ...func(context.Context) error) bool {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, ask := range questions {
		if err := ask(within); err != nil {
			if ctx.Err() == nil { // else it is stopping
				r.Log.Error("systemd: a part of the daemon does not answer; "+
					"if that continues, systemd restarts the service",
					"err", fmt.Errorf("no answer within %s: %w", limit, err))
			}
			return false
		}
	}
	return true
}

// notify sends a state, and reports whether systemd is there to receive it.
func (r *reporter) notify(state string) bool {
	sent, err := r.send(state)
	if err != nil {
		r.Log.Warn("systemd: cannot notify", "err", err)
	}
	return sent || err != nil
}
