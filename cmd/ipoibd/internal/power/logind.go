package power

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names of the D-Bus specification and of org.freedesktop.login1(5).
const (
	busName            = "org.freedesktop.DBus"
	nameOwnerChanged   = "NameOwnerChanged"
	login              = "org.freedesktop.login1"
	loginPath          = "/org/freedesktop/login1"
	manager            = login + ".Manager"
	prepareForSleep    = "PrepareForSleep"
	prepareForShutdown = "PrepareForShutdown"
)

const (
	addressEnv = "DBUS_SYSTEM_BUS_ADDRESS" // as in every D-Bus library
	pathPrefix = "unix:path="
)

// address returns the address of the bus, from the environment or the specification.
func address() string { return cmp.Or(os.Getenv(addressEnv), pathPrefix+"/run/dbus/system_bus_socket") }

// The arguments of Inhibit, as `systemd-inhibit --list` shows them.
const (
	inhibitWho  = "ipoibd"
	inhibitWhy  = "leave the fabric before the HCA loses power"
	inhibitMode = "delay"
)

// inhibited are what is delayed. Each needs an inhibitor of its own: polkit lets any user delay one
// of them, but only root both with one inhibitor (method_inhibit, src/login/logind-dbus.c).
var inhibited = []string{"sleep", "shutdown"}

// inhibitors are held until they are closed.
type inhibitors []*os.File

func (i inhibitors) Close() {
	for _, file := range i {
		file.Close()
	}
}

const (
	// callTimeout bounds each exchange with the bus.
	callTimeout = 5 * time.Second
	// maxLimit bounds the time for Suspend, however long the system would wait.
	maxLimit = 30 * time.Second
	// signalQueue is the length of the channel; the library queues further signals.
	signalQueue = 16
)

// logind is a connection on which logind's signals arrive.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal // closed with the connection
	owner   string            // logind's unique name
	limit   time.Duration     // how long the system waits for an inhibitor
	system  system            // what it was about to do when the connection was made
}

// listen connects to the bus, subscribes to signals, and asks logind. The connection uses a
// plain socket, to which the bus sends no descriptors, and delivers signals in order.
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
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, signalQueue)}
	conn.Signal(l.signals)
	err = l.ask()
	if !late.Stop() {
		err = fmt.Errorf("no answer within %s", callTimeout)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("listen to systemd-logind: %w", err)
	}
	return l, nil
}

// ask subscribes to signals, and then, so that it misses no change, asks for the owner of
// logind's name, and asks that owner how long it waits for an inhibitor, and what the
// system is about to do.
func (l *logind) ask() error {
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
	if err := l.conn.BusObject().Call(busName+".GetNameOwner", 0, login).Store(&l.owner); err != nil {
		return err
	}
	var all map[string]dbus.Variant
	call := l.conn.Object(l.owner, loginPath).
		Call("org.freedesktop.DBus.Properties.GetAll", dbus.FlagNoAutoStart, manager)
	if err := call.Store(&all); err != nil {
		return err
	}
	var us uint64
	var sleep, shutdown bool
	for name, into := range map[string]any{
		"InhibitDelayMaxUSec":  &us,
		"PreparingForSleep":    &sleep,
		"PreparingForShutdown": &shutdown,
	} {
		if err := all[name].Store(into); err != nil {
			return fmt.Errorf("property %s: %w", name, err)
		}
	}
	l.limit = time.Duration(min(us, uint64(maxLimit/time.Microsecond))) * time.Microsecond
	switch {
	case shutdown:
		l.system = shuttingDown
	case sleep:
		l.system = sleeping
	}
	return nil
}

// read reads a signal. It returns announced if logind announces something, lost if logind has
// ended or restarted, and nil for the signals of others.
func (l *logind) read(s *dbus.Signal) event {
	if s.Sender == busName && s.Name == busName+"."+nameOwnerChanged {
		return lost{}
	}
	state, known := map[string]system{
		manager + "." + prepareForSleep:    sleeping,
		manager + "." + prepareForShutdown: shuttingDown,
	}[s.Name]
	var begins bool
	if !known || s.Sender != l.owner || dbus.Store(s.Body, &begins) != nil {
		return nil
	}
	if !begins {
		state = awake
	}
	return announced{state}
}

// inhibit takes the inhibitors, either all or none.
func inhibit(ctx context.Context) (held inhibitors, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	bus := &exchange{conn: conn}
	defer bus.close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if err := bus.join(); err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	for _, what := range inhibited {
		file, err := bus.call(login, loginPath, manager, "Inhibit", what, inhibitWho, inhibitWhy, inhibitMode)
		if err == nil && file == nil {
			err = errors.New("logind's answer has no descriptor")
		}
		if err != nil {
			held.Close()
			return nil, fmt.Errorf("take an inhibitor: %w", err)
		}
		held = append(held, file)
	}
	return held, nil
}
