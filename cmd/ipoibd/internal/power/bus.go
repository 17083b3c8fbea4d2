package power

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// The bus's address: of the environment, as every D-Bus library has it, else the
// specification's.
const (
	addressEnv     = "DBUS_SYSTEM_BUS_ADDRESS"
	defaultAddress = "unix:path=/run/dbus/system_bus_socket"
)

// callTimeout bounds connecting, and each call.
const callTimeout = 5 * time.Second

// transport makes a connection of a socket; it is closed when ctx ends.
type transport func(ctx context.Context, socket *net.UnixConn) (*dbus.Conn, error)

// withDescriptors can receive descriptors.
func withDescriptors(ctx context.Context, socket *net.UnixConn) (*dbus.Conn, error) {
	return dbus.DialUnix(socket, dbus.WithContext(ctx))
}

// withoutDescriptors delivers signals in order; the bus sends it no descriptors.
func withoutDescriptors(ctx context.Context, socket *net.UnixConn) (*dbus.Conn, error) {
	return dbus.NewConn(socket, dbus.WithContext(ctx), dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
}

// dial connects to the system bus.
func dial(ctx context.Context, use transport) (*dbus.Conn, error) {
	socket, err := dialSocket(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := use(ctx, socket)
	if err != nil {
		socket.Close()
		return nil, err
	}
	if err := introduce(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	return conn, nil
}

// introduce gets the connection a name on the bus, or closes it.
func introduce(conn *dbus.Conn) error {
	late := time.AfterFunc(callTimeout, func() { conn.Close() })
	defer late.Stop()
	if err := conn.Auth(nil); err != nil {
		return err
	}
	return conn.Hello()
}

// dialSocket tries the addresses in order and returns the error of the last.
func dialSocket(ctx context.Context) (*net.UnixConn, error) {
	var err error
	for address := range strings.SplitSeq(cmp.Or(os.Getenv(addressEnv), defaultAddress), ";") {
		var name string
		if name, err = socketName(address); err != nil {
			continue
		}
		var conn net.Conn
		if conn, err = (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", name); err == nil {
			return conn.(*net.UnixConn), nil
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

// call calls a method and waits for the answer. The connection is closed when
// there is none in time: an answer that came later would be lost, with the
// descriptor in it, and a peer that is stuck serves for nothing else either.
func call(conn *dbus.Conn, dest string, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	late := time.AfterFunc(callTimeout, func() { conn.Close() })
	defer late.Stop()
	done := make(chan *dbus.Call, 1)
	conn.Object(dest, path).Go(method, dbus.FlagNoAutoStart, done, args...)
	return <-done
}
