package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names of the D-Bus specification, and of org.freedesktop.login1(5).
const (
	busName   = "org.freedesktop.DBus"
	busPath   = "/org/freedesktop/DBus"
	login     = "org.freedesktop.login1"
	loginPath = "/org/freedesktop/login1"
	manager   = login + ".Manager"

	nameOwnerChanged   = "NameOwnerChanged"
	prepareForSleep    = "PrepareForSleep"
	prepareForShutdown = "PrepareForShutdown"
)

// What the inhibitor is for, as `systemd-inhibit --list` shows it.
const (
	inhibitWhat = "sleep:shutdown"
	inhibitWho  = "ipoibd"
	inhibitWhy  = "leave the fabric before the HCA loses power"
	inhibitMode = "delay"
)

const (
	// defaultLimit is logind's own default of InhibitDelayMaxSec=, for one that
	// does not say.
	defaultLimit = 5 * time.Second
	// maxLimit bounds what a sleep waits for this daemon, whatever logind grants.
	maxLimit = 30 * time.Second
)

// signalQueue is the length of the channel; the library queues what exceeds it.
const signalQueue = 16

var (
	errNoLogind = errors.New("systemd-logind is not on the system bus")
	errBusLost  = errors.New("the connection to the system bus has ended")
)

// logind is a connection on which logind is listened to. It belongs to one
// goroutine.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal // closed with the connection
	owner   string            // logind's unique name; empty while it is not there
}

// listen connects and subscribes.
func listen(ctx context.Context) (*logind, error) {
	conn, err := dial(ctx, withoutDescriptors)
	if err != nil {
		return nil, err
	}
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, signalQueue)}
	conn.Signal(l.signals)
	if err := l.subscribe(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to logind: %w", err)
	}
	return l, nil
}

// subscribe asks for the signals first and for the owner then, so that no change
// falls between.
func (l *logind) subscribe() error {
	for _, rule := range []string{
		"type='signal',sender='" + busName + "',member='" + nameOwnerChanged + "',arg0='" + login + "'",
		"type='signal',sender='" + login + "',interface='" + manager + "',member='" + prepareForSleep + "'",
		"type='signal',sender='" + login + "',interface='" + manager + "',member='" + prepareForShutdown + "'",
	} {
		if err := call(l.conn, busName, busPath, busName+".AddMatch", rule).Err; err != nil {
			return err
		}
	}
	err := call(l.conn, busName, busPath, busName+".GetNameOwner", login).Store(&l.owner)
	var refusal dbus.Error
	if errors.As(err, &refusal) && refusal.Name == busName+".Error.NameHasNoOwner" {
		return nil
	}
	return err
}

// heard is the channel of signals; nil while there is no bus.
func (l *logind) heard() <-chan *dbus.Signal {
	if l == nil {
		return nil
	}
	return l.signals
}

// limit is how long logind waits for an inhibitor, at most maxLimit.
func (l *logind) limit() time.Duration {
	us, err := property[uint64](l, "InhibitDelayMaxUSec")
	if err != nil {
		return defaultLimit
	}
	return time.Duration(min(us, uint64(maxLimit/time.Microsecond))) * time.Microsecond
}

// system asks what the system is about to do.
func (l *logind) system() (system, error) {
	down, err := property[bool](l, "PreparingForShutdown")
	if err != nil || down {
		return shuttingDown, err
	}
	sleep, err := property[bool](l, "PreparingForSleep")
	return pick(sleep, sleeping), err
}

func property[T any](l *logind, name string) (value T, err error) {
	err = call(l.conn, l.owner, loginPath, "org.freedesktop.DBus.Properties.Get", manager, name).Store(&value)
	return value, err
}

// inhibit takes an inhibitor. It lasts until the file is closed, and longer than
// the connection that fetched it.
func inhibit(ctx context.Context) (*os.File, error) {
	conn, err := dial(ctx, withDescriptors)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := call(conn, login, loginPath, manager+".Inhibit", inhibitWhat, inhibitWho, inhibitWhy, inhibitMode)
	var fd dbus.UnixFD
	if err := c.Store(&fd); err != nil {
		return nil, fmt.Errorf("take an inhibitor: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// prepares reads a signal that logind sends about the system.
func (l *logind) prepares(s *dbus.Signal) (system, bool) {
	var begins bool
	if s.Sender != l.owner || dbus.Store(s.Body, &begins) != nil {
		return awake, false
	}
	switch s.Name {
	case manager + "." + prepareForSleep:
		return pick(begins, sleeping), true
	case manager + "." + prepareForShutdown:
		return pick(begins, shuttingDown), true
	}
	return awake, false
}

func pick(begins bool, s system) system {
	if begins {
		return s
	}
	return awake
}

// moved reads a signal that the bus sends about logind's name, and notes its new
// owner.
func (l *logind) moved(s *dbus.Signal) bool {
	var name, before, after string
	if s.Sender != busName || s.Name != busName+"."+nameOwnerChanged ||
		dbus.Store(s.Body, &name, &before, &after) != nil || name != login {
		return false
	}
	l.owner = after
	return true
}
