package coordinator

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// raw is a client that a test plays itself.
type raw struct {
	*testing.T
	nc  net.Conn
	buf []byte
}

func dialRaw(t *testing.T, path string) *raw {
	t.Helper()
	nc, err := net.Dial("unix", path)
	for errors.Is(err, unix.EAGAIN) { // the host has not accepted those before
		time.Sleep(time.Millisecond)
		nc, err = net.Dial("unix", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, nc)
}

func newRaw(t *testing.T, nc net.Conn) *raw {
	t.Cleanup(func() { nc.Close() })
	return &raw{T: t, nc: nc}
}

func (r *raw) write(b []byte) {
	r.Helper()
	if _, err := r.nc.Write(b); err != nil {
		r.Fatal(err)
	}
}

func (r *raw) say(m reset.Message) {
	r.Helper()
	r.write(frame(r.T, m))
}

func frame(t *testing.T, m reset.Message) []byte {
	t.Helper()
	b, err := reset.Append(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hear returns the next message.
func (r *raw) hear() (reset.Message, error) {
	if err := r.nc.SetReadDeadline(time.Now().Add(ample)); err != nil {
		return nil, err
	}
	chunk := make([]byte, reset.MaxFrame)
	for {
		m, n, err := reset.Decode(r.buf)
		if m != nil || err != nil {
			r.buf = r.buf[n:]
			return m, err
		}
		if n, err = r.nc.Read(chunk); err != nil {
			return nil, err
		}
		r.buf = append(r.buf, chunk[:n]...)
	}
}

// heardBy returns the next message that is a T.
func heardBy[T reset.Message](r *raw) T {
	r.Helper()
	for {
		m, err := r.hear()
		if err != nil {
			var zero T
			r.Fatalf("waiting for %T: %v", zero, err)
		}
		if m, ok := m.(T); ok {
			return m
		}
	}
}

// expectEnd waits for the host to close the connection.
func (r *raw) expectEnd() {
	r.Helper()
	for {
		_, err := r.hear()
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			r.Fatal("the connection is still there")
		}
		if err != nil {
			return
		}
	}
}

// hello registers.
func (r *raw) hello(id reset.ClientID) {
	r.Helper()
	r.say(reset.Hello{ID: id, Name: "raw"})
	heardBy[reset.Roster](r)
}

// hostHere joins with a socket, and hosts. Every reset succeeds at once.
func hostHere(t *testing.T, conf Config) (*Coordinator, string) {
	t.Helper()
	checkLeaks(t)
	conf.Device, conf.Log = "stub", slog.New(slog.DiscardHandler)
	if conf.Path == "" {
		conf.Path = filepath.Join(t.TempDir(), "device.sock")
	}
	conf.Settle = time.Millisecond
	conf.Reset = (&verb{}).reset
	c, err := Join(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, conf.Path
}

// awaitStatus waits for a status.
func awaitStatus(t *testing.T, c *Coordinator, is func(Status) bool) {
	t.Helper()
	for end := time.Now().Add(ample); !is(c.Status()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still %+v", c.Status())
		}
	}
}

func TestR16BytesThatAreNoMessage(t *testing.T) {
	hello := frame(t, reset.Hello{ID: 7, Name: "raw"})
	for name, b := range map[string][]byte{
		"garbage":               []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"a frame of 65 KB":      append([]byte{0xff, 0xff, 1, 1}, make([]byte, 1<<16)...),
		"another version":       {0, 2, 9, 2},
		"an unknown kind":       {0, 2, 1, 99},
		"a request by nobody":   frame(t, reset.Request{}),
		"a host's message":      append(bytes.Clone(hello), frame(t, reset.Pending{Reset: 1})...),
		"Hello twice":           append(bytes.Clone(hello), hello...),
		"Hello for two":         append(bytes.Clone(hello), frame(t, reset.Hello{ID: 8})...),
		"a message and garbage": append(bytes.Clone(hello), 0xff, 0xff, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			c, path := hostHere(t, Config{})
			r := dialRaw(t, path)
			_, _ = r.nc.Write(b) // the host may close before it has read all
			r.expectEnd()
			awaitStatus(t, c, func(s Status) bool { return s.Refused == 1 })
			dialRaw(t, path).hello(9)
		})
	}
}

// A message of which only a part came, with the connection, is nothing.
func TestR16HalfAMessage(t *testing.T) {
	whole := frame(t, reset.Hello{ID: 7, Name: "raw", Wants: true})
	c, path := hostHere(t, Config{})
	for n := range len(whole) {
		r := dialRaw(t, path)
		r.write(whole[:n])
		r.nc.Close()
	}
	r := dialRaw(t, path)
	for _, b := range whole[:len(whole)-1] {
		r.write([]byte{b})
	}
	select {
	case ev := <-c.Events():
		t.Errorf("%#v after half a message", ev)
	case <-time.After(20 * time.Millisecond):
	}
	r.write(whole[len(whole)-1:])
	next[Pending](t, c, ample)
}

// Whose connection breaks while its process lives still holds the device; it may
// come back, and then it is known.
func TestR16BrokenConnectionIsNoDeath(t *testing.T) {
	c, path := hostHere(t, Config{Grace: 500 * time.Millisecond})
	r := dialRaw(t, path)
	r.hello(7)
	r.nc.Close()
	c.Request()
	c.Released(next[Pending](t, c, ample).ID)
	end := next[Ended](t, c, ample)
	if end.Outcome != reset.OutcomeHeld || len(end.Holders) != 1 || end.Holders[0].ID != 7 {
		t.Errorf("%+v", end)
	}
	back := dialRaw(t, path)
	back.say(reset.Hello{ID: 7, Name: "raw", Holds: true})
	c.Request()
	c.Released(next[Pending](t, c, ample).ID)
	back.say(reset.Ready(heardBy[reset.Pending](back)))
	if end := next[Ended](t, c, ample); end.Outcome != reset.OutcomeDone {
		t.Errorf("%+v", end)
	}
}

// A client whose connection breaks again and again takes no more room than one,
// and those who said goodbye take none.
func TestR16NothingIsLeftBehind(t *testing.T) {
	_, path := hostHere(t, Config{})
	breakOff := func() {
		r := dialRaw(t, path)
		r.hello(7)
		r.nc.Close()
	}
	breakOff()
	before := inUse()
	for id := range reset.ClientID(200) {
		breakOff()
		r := dialRaw(t, path)
		r.hello(100 + id)
		r.say(reset.Leave{})
		r.expectEnd()
		r.nc.Close()
	}
	if left := settle(before); left.exceeds(before) {
		t.Errorf("%+v in use, %+v before", left, before)
	}
}

// A hundred strangers take the places there are, and the host serves its clients
// as before; once they are gone there is room again.
func TestR16Flood(t *testing.T) {
	c, path := hostHere(t, Config{})
	client := dialRaw(t, path)
	client.hello(7)
	var flood []*raw
	for range 100 {
		flood = append(flood, dialRaw(t, path))
	}
	refused := uint64(100 + 2 - maxConns) // the client's and the host's own are there
	awaitStatus(t, c, func(s Status) bool { return s.Refused == refused })
	c.Request()
	c.Released(next[Pending](t, c, ample).ID)
	client.say(reset.Ready(heardBy[reset.Pending](client)))
	if end := heardBy[reset.Ended](client); end.Outcome != reset.OutcomeDone {
		t.Error(end)
	}
	for _, r := range flood {
		r.nc.Close()
	}
	dialUntilIn(t, path)
}

// dialUntilIn dials until it is let in.
func dialUntilIn(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(ample); time.Now().Before(end); time.Sleep(time.Millisecond) {
		r := dialRaw(t, path)
		r.say(reset.Hello{ID: 9, Name: "raw"})
		if _, err := r.hear(); err == nil {
			return
		}
		r.nc.Close()
	}
	t.Fatal("no room")
}

// More clients than there may be are turned away, each by itself.
func TestR16TooManyClients(t *testing.T) {
	c, path := hostHere(t, Config{})
	for id := range reset.MaxMembers - 1 { // the host's own is one
		dialRaw(t, path).hello(reset.ClientID(id + 1))
	}
	r := dialRaw(t, path)
	r.say(reset.Hello{ID: 1000})
	r.expectEnd()
	if n := len(c.Status().Members); n != reset.MaxMembers-1 {
		t.Errorf("%d members", n)
	}
}
