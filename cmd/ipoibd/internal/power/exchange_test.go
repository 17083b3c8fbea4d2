package power

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// reply is a message as the bus passes it on: the answer to call 1, with a body.
func reply(tb testing.TB, kind dbus.Type, body ...any) []byte {
	tb.Helper()
	m := &dbus.Message{Type: kind, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(uint32(1)),
		dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
		dbus.FieldInterface:   dbus.MakeVariant("org.freedesktop.login1.Manager"),
		dbus.FieldMember:      dbus.MakeVariant("PrepareForSleep"),
		dbus.FieldErrorName:   dbus.MakeVariant("org.freedesktop.DBus.Error.AccessDenied"),
	}, Body: body}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	var b bytes.Buffer
	must(tb, m.EncodeTo(&b, binary.LittleEndian))
	return b.Bytes()
}

// Whatever arrives from the bus, a call returns, with a reply or an error.
func FuzzExchange(f *testing.F) {
	f.Add(reply(f, dbus.TypeMethodReply))
	f.Add(reply(f, dbus.TypeMethodReply, "text", uint32(7), []string{"a", "b"}))
	f.Add(reply(f, dbus.TypeMethodReply, map[string]dbus.Variant{"key": dbus.MakeVariant([]byte{1, 2})}))
	f.Add(reply(f, dbus.TypeMethodReply, []dbus.UnixFDIndex{0, 5}))
	f.Add(append(reply(f, dbus.TypeSignal, int64(5)), reply(f, dbus.TypeError, "denied")...))
	f.Fuzz(func(t *testing.T, data []byte) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		bus := os.NewFile(uintptr(fds[1]), "bus")
		defer bus.Close()
		ours := os.NewFile(uintptr(fds[0]), "ours")
		conn, err := net.FileConn(ours)
		ours.Close()
		must(t, err)
		_, err = bus.Write(data[:min(len(data), maxReply)])
		must(t, err)
		must(t, unix.Shutdown(fds[1], unix.SHUT_WR))
		e := exchange{conn: conn.(*net.UnixConn)}
		defer e.close()
		if fd, err := e.call("a.b", "/", "a.b", "C"); err == nil && fd != nil {
			t.Errorf("a descriptor that was never sent: %v", fd)
		}
	})
}
