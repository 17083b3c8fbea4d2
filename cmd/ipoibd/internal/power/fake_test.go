package power

import (
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// fakeLogind owns logind's name on a bus. It grants inhibitors, notices their release,
// returns properties and sends signals.
type fakeLogind struct {
	t      *testing.T
	conn   *dbus.Conn
	calls  chan *dbus.Message
	once   sync.Once
	quit   chan struct{}
	ended  chan struct{}
	locks  atomic.Int32 // held by others
	taken  atomic.Int32 // ever
	limit  time.Duration
	sleeps atomic.Bool // PreparingForSleep
	downs  atomic.Bool
	mute   atomic.Bool // Inhibit is not answered
	silent atomic.Bool // no call is answered
}

// startLogind returns once the name is owned.
func startLogind(t *testing.T, limit time.Duration) *fakeLogind {
	t.Helper()
	conn, err := dbus.ConnectSystemBus()
	must(t, err)
	f := &fakeLogind{t: t, conn: conn, limit: limit, calls: make(chan *dbus.Message, 64), quit: make(chan struct{}), ended: make(chan struct{})}
	conn.Eavesdrop(f.calls)
	go f.serve()
	t.Cleanup(f.stop)
	f.own()
	return f
}

// own claims the name. It does not wait for the reply, which goes to serve.
func (f *fakeLogind) own() {
	f.t.Helper()
	f.conn.BusObject().Go(busName+".RequestName", dbus.FlagNoReplyExpected, nil, login, uint32(dbus.NameFlagDoNotQueue))
	eventually(f.t, "logind's name is owned", func() bool {
		c, err := dbus.ConnectSystemBus()
		must(f.t, err)
		defer c.Close()
		return c.BusObject().Call(busName+".GetNameOwner", 0, login).Err == nil
	})
}

// stop leaves the bus; the holders keep their inhibitors. The library might send to the
// channel after Close has closed it, so stop removes the channel first.
func (f *fakeLogind) stop() {
	f.once.Do(func() {
		f.conn.Eavesdrop(nil)
		close(f.quit)
		f.conn.Close()
	})
	<-f.ended
}

// serve answers calls in order until stop, or until the bus ends.
func (f *fakeLogind) serve() {
	defer close(f.ended)
	for {
		select {
		case <-f.quit:
			return
		case msg, ok := <-f.calls:
			if !ok {
				return
			}
			f.answer(msg)
		}
	}
}

func (f *fakeLogind) answer(msg *dbus.Message) {
	if msg.Type != dbus.TypeMethodCall || f.silent.Load() {
		return
	}
	switch member := msg.Headers[dbus.FieldMember].Value(); member {
	case "Inhibit":
		f.inhibit(msg)
	case "GetAll":
		f.reply(msg, map[string]dbus.Variant{
			"InhibitDelayMaxUSec":  dbus.MakeVariant(uint64(f.limit / time.Microsecond)),
			"PreparingForSleep":    dbus.MakeVariant(f.sleeps.Load()),
			"PreparingForShutdown": dbus.MakeVariant(f.downs.Load()),
			"Docked":               dbus.MakeVariant(false),
		})
	default:
		f.t.Errorf("unexpected call of %v", member)
	}
}

// inhibit grants an inhibitor as logind does: it returns one end of a pipe and reads from
// the other. It refuses while it prepares for sleep or shutdown.
func (f *fakeLogind) inhibit(msg *dbus.Message) {
	what, _ := msg.Body[0].(string)
	if !slices.Contains(inhibited, what) {
		f.t.Errorf("an inhibitor of %q", what)
	}
	for i, want := range []string{inhibitWho, inhibitWhy, inhibitMode} {
		if msg.Body[1+i] != want {
			f.t.Errorf("argument %d is %q, want %q", 1+i, msg.Body[1+i], want)
		}
	}
	if f.mute.Load() {
		return
	}
	if f.sleeps.Load() || f.downs.Load() {
		f.refuse(msg)
		return
	}
	here, there, err := os.Pipe()
	if err != nil {
		f.t.Error(err)
		return
	}
	f.locks.Add(1)
	f.taken.Add(1)
	f.reply(msg, dbus.UnixFD(there.Fd()))
	there.Close()
	go func() {
		_, _ = io.Copy(io.Discard, here)
		here.Close()
		f.locks.Add(-1)
	}()
}

func (f *fakeLogind) reply(msg *dbus.Message, body any) {
	f.conn.Send(&dbus.Message{
		Type: dbus.TypeMethodReply,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: msg.Headers[dbus.FieldSender],
			dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(body)),
		},
		Body: []any{body},
	}, nil)
}

func (f *fakeLogind) refuse(msg *dbus.Message) {
	f.conn.Send(&dbus.Message{
		Type: dbus.TypeError,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: msg.Headers[dbus.FieldSender],
			dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
			dbus.FieldErrorName:   dbus.MakeVariant("org.freedesktop.login1.OperationInProgress"),
		},
	}, nil)
}

// sleep announces that the system goes to sleep, or is awake again.
func (f *fakeLogind) sleep(begins bool) {
	f.sleeps.Store(begins)
	f.emit(prepareForSleep, begins)
}

// shutdown announces that the system shuts down.
func (f *fakeLogind) shutdown() {
	f.downs.Store(true)
	f.emit(prepareForShutdown, true)
}

func (f *fakeLogind) emit(member string, begins bool) {
	f.t.Helper()
	must(f.t, f.conn.Emit(loginPath, manager+"."+member, begins))
}

// waitLocks waits until n watchers hold their inhibitors.
func (f *fakeLogind) waitLocks(n int) {
	f.t.Helper()
	eventually(f.t, "inhibitors are taken or released", func() bool { return f.holders() == n })
}

// holders returns how many watchers hold all their inhibitors, or -1 if one holds only some.
func (f *fakeLogind) holders() int {
	n := int(f.locks.Load())
	if n%len(inhibited) != 0 {
		return -1
	}
	return n / len(inhibited)
}
