package power

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names of the D-Bus specification, and of org.freedesktop.login1(5).
const (
	busName            = "org.freedesktop.DBus"
	nameOwnerChanged   = "NameOwnerChanged"
	login              = "org.freedesktop.login1"
	loginPath          = "/org/freedesktop/login1"
	manager            = login + ".Manager"
	prepareForSleep    = "PrepareForSleep"
	prepareForShutdown = "PrepareForShutdown"
)

const addressEnv = "DBUS_SYSTEM_BUS_ADDRESS"

// address returns the address of the bus: from the environment, as in every D-Bus
// library, else that of the specification.
func address() string { return cmp.Or(os.Getenv(addressEnv), "unix:path=/run/dbus/system_bus_socket") }

// What the inhibitor is for, as `systemd-inhibit --list` shows it.
const (
	inhibitWhat = "sleep:shutdown"
	inhibitWho  = "ipoibd"
	inhibitWhy  = "leave the fabric before the HCA loses power"
	inhibitMode = "delay"
)

const (
	// callTimeout bounds connecting, and each call.
	callTimeout = 5 * time.Second
	// defaultLimit is logind's own default of InhibitDelayMaxSec=, for one that
	// does not say.
	defaultLimit = 5 * time.Second
	// maxLimit bounds what a sleep waits for this daemon, whatever logind grants.
	maxLimit = 30 * time.Second
	// signalQueue is the length of the channel; the library queues what exceeds it.
	signalQueue = 16
)

// logind is a connection on which logind's signals arrive. It belongs to one
// goroutine.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal // closed with the connection
	owner   string            // logind's unique name; empty while it is not there
}

// listen connects and subscribes. The connection delivers signals in order; it
// is made of a plain socket, to which the bus sends no descriptors.
func listen(ctx context.Context) (*logind, error) {
	socket, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := dbus.NewConn(socket, dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		socket.Close()
		return nil, err
	}
	late := time.AfterFunc(callTimeout, func() { conn.Close() })
	defer late.Stop()
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, signalQueue)}
	conn.Signal(l.signals)
	if err := l.subscribe(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to logind: %w", err)
	}
	return l, nil
}

// dial connects to the system bus. It tries the addresses in order and returns the
// error of the last.
func dial(ctx context.Context) (conn net.Conn, err error) {
	for one := range strings.SplitSeq(address(), ";") {
		var name string
		if name, err = socketName(one); err != nil {
			continue
		}
		if conn, err = (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", name); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// socketName is the name of the socket that an address such as
// unix:path=/run/dbus/system_bus_socket,guid=... means.
func socketName(address string) (string, error) {
	pairs, _ := strings.CutPrefix(address, "unix:")
	for pair := range strings.SplitSeq(pairs, ",") {
		key, value, _ := strings.Cut(pair, "=")
		value, err := dbus.UnescapeBusAddressValue(value)
		switch {
		case err != nil:
			return "", fmt.Errorf("bus address %q: %w", address, err)
		case key == "path":
			return value, nil
		case key == "abstract":
			return "@" + value, nil
		}
	}
	return "", fmt.Errorf("bus address %q: only unix:path= and unix:abstract= are understood", address)
}

// subscribe gets a name on the bus, then asks for the signals, and for the owner
// last, so that it misses no change.
func (l *logind) subscribe() error {
	if err := l.conn.Auth(nil); err != nil {
		return err
	}
	if err := l.conn.Hello(); err != nil {
		return err
	}
	for _, rule := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(busName), dbus.WithMatchMember(nameOwnerChanged), dbus.WithMatchArg(0, login)},
		{dbus.WithMatchSender(login), dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepareForSleep)},
		{dbus.WithMatchSender(login), dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepareForShutdown)},
	} {
		if err := l.conn.AddMatchSignal(rule...); err != nil {
			return err
		}
	}
	err := l.conn.BusObject().Call(busName+".GetNameOwner", 0, login).Store(&l.owner)
	var refusal dbus.Error
	if errors.As(err, &refusal) && refusal.Name == busName+".Error.NameHasNoOwner" {
		return nil
	}
	return err
}

// property reads a property of logind. A logind or a bus that does not answer in
// time serves for nothing else either: the connection ends, and another is made.
func (l *logind) property(name string, into any) error {
	late := time.AfterFunc(callTimeout, func() { l.conn.Close() })
	defer late.Stop()
	object := l.conn.Object(l.owner, loginPath)
	return object.Call("org.freedesktop.DBus.Properties.Get", dbus.FlagNoAutoStart, manager, name).Store(into)
}

// ask returns how long logind waits for an inhibitor, at most maxLimit, and what
// the system is about to do.
func (l *logind) ask() (limit time.Duration, s system, err error) {
	us := uint64(defaultLimit / time.Microsecond)
	_ = l.property("InhibitDelayMaxUSec", &us) // else the default
	limit = time.Duration(min(us, uint64(maxLimit/time.Microsecond))) * time.Microsecond
	var down, sleep bool
	err = errors.Join(l.property("PreparingForShutdown", &down), l.property("PreparingForSleep", &sleep))
	switch {
	case down:
		s = shuttingDown
	case sleep:
		s = sleeping
	}
	return limit, s, err
}

// announced is what the system is about to do when logind sends this with true.
var announced = map[string]system{manager + "." + prepareForSleep: sleeping, manager + "." + prepareForShutdown: shuttingDown}

// read reads a signal: the bus reports a new owner of logind's name, or logind
// what the system is about to do. It ignores the signals of others.
func (l *logind) read(s *dbus.Signal) (moved bool, prepares event) {
	var name, before string
	var begins bool
	if s.Sender == busName && s.Name == busName+"."+nameOwnerChanged {
		moved = dbus.Store(s.Body, &name, &before, &l.owner) == nil
		return moved, nil
	}
	state, known := announced[s.Name]
	if !known || s.Sender != l.owner || dbus.Store(s.Body, &begins) != nil {
		return false, nil
	}
	if !begins {
		state = awake
	}
	return false, told{state}
}

// inhibit takes an inhibitor. It lasts until the file is closed, and longer than
// the connection that fetched it, which can receive descriptors.
func inhibit(ctx context.Context) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := dbus.Connect(address(), dbus.WithContext(ctx)) // closed with ctx
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	defer conn.Close()
	var fd dbus.UnixFD
	call := conn.Object(login, loginPath).Call(manager+".Inhibit", dbus.FlagNoAutoStart, inhibitWhat, inhibitWho, inhibitWhy, inhibitMode)
	if err := call.Store(&fd); err != nil {
		return nil, fmt.Errorf("take an inhibitor: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}
