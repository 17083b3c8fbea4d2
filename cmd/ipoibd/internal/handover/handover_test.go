package handover

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// pairOf returns both ends of a connection.
func pairOf(t *testing.T) (giver, taker *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends []*net.UnixConn
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends = append(ends, c.(*net.UnixConn))
	}
	return ends[0], ends[1]
}

// pipes returns n descriptors, the read ends of pipes that contain their numbers.
func pipes(t *testing.T, n int) (fds []int) {
	t.Helper()
	for i := range n {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		if err := binary.Write(w, binary.BigEndian, uint16(i)); err != nil {
			t.Fatal(err)
		}
		fd, err := kernel.Duplicate(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		fds = append(fds, fd)
	}
	return fds
}

// taken is the outcome of a taker.
type taken struct {
	t    *Taker
	err  error // of Take
	owns error // of Own
}

// take runs a taker, which calls build with the offer.
func take(c *net.UnixConn, build func(*Taker) bool) <-chan taken {
	done := make(chan taken, 1)
	go func() {
		t, err := Take(context.Background(), c)
		switch {
		case err != nil:
			done <- taken{err: err}
		case !build(t):
			t.Fail()
			done <- taken{t, nil, errors.New("failed")}
		default:
			done <- taken{t, nil, t.Own(context.Background())}
		}
	}()
	return done
}

func always(*Taker) bool { return true }

// takeLimit is the giver's wait for a taker.
const takeLimit = 3 * time.Second

// A state with more descriptors than fit in one message arrives as it was, each descriptor at its place.
func TestHandOver(t *testing.T) {
	for _, n := range []int{0, 1, fdsAtOnce, fdsAtOnce + 7} {
		giver, taker := pairOf(t)
		done := take(taker, always)
		g, err := Give(giver)
		if err != nil {
			t.Fatal(err)
		}
		if g.PID != os.Getpid() {
			t.Errorf("the taker is process %d, want %d", g.PID, os.Getpid())
		}
		what, peers := capsule.NewWriter(), strings.Repeat("x", 1<<20)
		what.PutFDs("all", peers, pipes(t, n)...)
		if err := g.Offer(what, time.Now().Add(takeLimit)); err != nil {
			t.Fatal(err)
		}
		what.Close()
		got := <-done
		if got.err != nil || got.owns != nil {
			t.Fatalf("take: %v, own: %v", got.err, got.owns)
		}
		var text string
		fds, err := got.t.Capsule.Take("all", &text)
		if err != nil || text != peers || len(fds) != n {
			t.Fatalf("%d bytes and %d descriptors: %v", len(text), len(fds), err)
		}
		for i, fd := range fds {
			var number uint16
			f := os.NewFile(uintptr(fd), "taken")
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d has the flags %#x: %v", i, flags, err)
			}
			if err := binary.Read(f, binary.BigEndian, &number); err != nil || int(number) != i {
				t.Errorf("descriptor %d is number %d: %v", i, number, err)
			}
			_ = f.Close()
		}
	}
}

// Whatever goes wrong, exactly one side owns everything, and says why.
func TestHandOverFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		build func(*Taker) bool
		give  func(*testing.T, *Giver) error
		giver string // error of the giver
		taker string // of the taker; empty: it owns everything
	}{
		{
			"the giver cannot", always,
			func(_ *testing.T, g *Giver) error {
				g.Withdraw(errors.New("ib0 is recovering"))
				return errors.New("ib0 is recovering")
			},
			"ib0 is recovering", "the running daemon continues: ib0 is recovering",
		},
		{
			"the taker cannot", func(*Taker) bool { return false },
			func(_ *testing.T, g *Giver) error { return g.Offer(capsule.NewWriter(), time.Now().Add(takeLimit)) },
			"did not take over", "failed",
		},
		{
			"the taker dies", func(t *Taker) bool { _ = t.conn.Close(); return false },
			func(_ *testing.T, g *Giver) error { return g.Offer(capsule.NewWriter(), time.Now().Add(takeLimit)) },
			"did not take over", "failed",
		},
		{
			"the giver dies", always,
			func(t *testing.T, g *Giver) error { // after the offer
				if err := g.conn.send(message{Type: g.state.becomes(prepared), Parts: []capsule.Part{}}, nil); err != nil {
					t.Fatal(err)
				}
				_, _, err := g.conn.receive()
				return errors.Join(err, g.conn.Close(), errors.New("dead"))
			},
			"dead", "",
		},
		{
			"the taker is stopped",
			func(*Taker) bool { time.Sleep(takeLimit + takeLimit/4); return true },
			func(_ *testing.T, g *Giver) error { return g.Offer(capsule.NewWriter(), time.Now().Add(takeLimit)) },
			"did not take over in time", "the running daemon continues",
		},
		{
			"no JSON", always,
			func(_ *testing.T, g *Giver) error {
				w := capsule.NewWriter()
				w.Put("all", func() {})
				return g.Offer(w, time.Now().Add(takeLimit))
			},
			"unsupported type", "the running daemon continues: all: json",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			giver, taker := pairOf(t)
			done := take(taker, c.build)
			g, err := Give(giver)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.give(t, g); err == nil || !strings.Contains(err.Error(), c.giver) {
				t.Errorf("giver: %v, want %q", err, c.giver)
			}
			got := <-done
			err = errors.Join(got.err, got.owns)
			if c.taker == "" && err != nil || c.taker != "" && (err == nil || !strings.Contains(err.Error(), c.taker)) {
				t.Errorf("taker: %v, want %q", err, c.taker)
			}
		})
	}
}

// The taker is stopped (SIGSTOP, a full machine, a page of its program on a slow disk) before it has read
// the offer, until after the giver's limit. The giver continues, and its withdrawal may find the socket's
// buffer full. Whatever the size of the offer, the taker learns that it owns nothing.
func TestExactlyOneOwnerOfALateTaker(t *testing.T) {
	var all sync.WaitGroup
	room := make(chan struct{}, 24) // at the same time
	for size := 100 << 10; size < 240<<10; size += 512 {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			giver, taker := pairOf(t)
			if err := (conn{taker}).send(message{Type: "ask", Version: Version}, nil); err != nil {
				t.Error(err)
				return
			}
			g, err := Give(giver)
			if err != nil {
				t.Error(err)
				return
			}
			w := capsule.NewWriter()
			defer w.Close()
			w.Put("all", strings.Repeat("x", size), os.Stdin)
			if err := g.Offer(w, time.Now().Add(50*time.Millisecond)); err == nil {
				t.Errorf("%d bytes: a taker that does not run has taken over", size)
			}
			x := &Taker{conn: conn{taker}, state: waiting}
			m, fds, err := x.conn.receive()
			defer kernel.CloseAll(fds)
			if x.state.becomes(eventOf(m, err)); x.state != building {
				return
			}
			if x.Own(t.Context()) == nil {
				t.Errorf("%d bytes: both own everything", size)
			}
			<-g.Done()
		})
	}
	all.Wait()
}

// A taker that accepts what it has not read, so that there is no room for the answer, owns nothing.
func TestTakerThatDoesNotRead(t *testing.T) {
	giver, taker := pairOf(t)
	if err := giver.SetWriteBuffer(8 << 10); err != nil {
		t.Fatal(err)
	}
	full := make(chan struct{})
	go func() {
		defer close(full)
		_ = (conn{taker}).send(message{Type: "ask", Version: Version}, nil)
		_ = (conn{taker}).send(message{Type: "taken"}, nil)
	}()
	<-full
	g, err := Give(giver)
	if err != nil {
		t.Fatal(err)
	}
	for size := 8 << 10; ; size -= 64 { // the largest that fits
		raw, err := giver.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		sent := false
		if err := raw.Control(func(fd uintptr) {
			_, err := unix.SendmsgN(int(fd), make([]byte, size), nil, nil, unix.MSG_DONTWAIT)
			sent = err == nil
		}); err != nil {
			t.Fatal(err)
		}
		if !sent && size <= 64 {
			break
		}
		if sent {
			size += 64
		}
	}
	g.state = offered
	m, _, err := g.conn.receive()
	if err != nil || m.Type != "taken" {
		t.Fatalf("%+v, %v", m, err)
	}
	if e, err := g.yield(); e != late || err == nil {
		t.Errorf("%s, %v", e, err)
	}
	g.keep(late, errors.New("late"))
	_ = taker.Close()
	<-g.Done()
}

// A taker that is to end while it waits for the decision ends, and the giver keeps everything. If the
// decision was on its way, the taker owns everything.
func TestTakerIsEnded(t *testing.T) {
	for _, yours := range []bool{false, true} {
		giver, taker := pairOf(t)
		x := &Taker{conn: conn{taker}, state: building}
		ctx, end := context.WithCancel(t.Context())
		owns := make(chan error, 1)
		g := &Giver{conn: conn{giver}, state: offered, done: make(chan struct{})}
		if yours {
			if e, err := g.yield(); e != sent {
				t.Fatal(e, err)
			}
			end()
		}
		go func() { owns <- x.Own(ctx) }()
		if m, _, err := g.conn.receive(); err != nil || m.Type != "taken" {
			t.Fatalf("%+v, %v", m, err)
		}
		end()
		if err := <-owns; (err == nil) != yours {
			t.Errorf("yours was sent: %v; the taker: %v", yours, err)
		}
		if !yours {
			if e, err := g.yield(); e != broken {
				t.Errorf("%s, %v: a taker that has ended got everything", e, err)
			}
		}
	}
}

// A giver that dies before its offer is distinguished from one that refuses.
func TestGiverIsGone(t *testing.T) {
	for _, unread := range []bool{false, true} { // a question that was not read resets the connection
		giver, taker := pairOf(t)
		done := take(taker, always)
		if !unread {
			if _, err := Give(giver); err != nil {
				t.Fatal(err)
			}
		}
		_ = giver.Close()
		if got := <-done; !errors.Is(got.err, ErrGone) {
			t.Errorf("unread %v: %v", unread, got.err)
		}
	}
}

// A message of another program may have more fields, or fewer.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	giver, taker := pairOf(t)
	const text = `{"type":"ask","version":2,"newer":true}`
	if _, err := taker.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		t.Fatal(err)
	}
	g, err := Give(giver)
	if err != nil {
		t.Fatal(err)
	}
	g.Withdraw(errors.New("enough"))
	<-g.Done()
}

// A giver refuses other versions and other messages, and explains that.
func TestGiverRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":"ask","version":1}`:    "version 1",
		`{"type":"taken"}`:              `the first message is a "taken"`,
		`{"type":"ask"} {"type":"ask"}`: "after top-level value",
		`[]`:                            "cannot unmarshal",
	} {
		giver, taker := pairOf(t)
		go func() { _, _ = taker.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)) }()
		if _, err := Give(giver); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// What the other side announces does not cost memory or time, and descriptors that were not announced,
// or too many, are closed.
func TestReceiveIsBounded(t *testing.T) {
	frame := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for name, c := range map[string]struct {
		bytes []byte
		fds   int // sent with one more byte
	}{
		"a length of 4 GB":          {[]byte{0xff, 0xff, 0xff, 0xff}, 0},
		"less than announced":       {append([]byte{3, 0, 0, 0}, "short"...), 0},
		"too many descriptors":      {frame(`{"type":"offer","fds":1025}`), 0},
		"too many objects":          {frame(`{"type":"offer","parts":[` + strings.Repeat(`{},`, maxObjects) + `{}]}`), 0},
		"a negative number of them": {frame(`{"type":"offer","fds":-1}`), 0},
		"none of them":              {append(frame(`{"type":"offer","fds":1}`), 0), 0},
		"more of them":              {frame(`{"type":"offer","fds":1}`), 2},
	} {
		giver, taker := pairOf(t)
		files := pipes(t, c.fds)
		before := open()
		written := make(chan error, 1)
		go func() { // which may take until the giver reads
			_, err := taker.Write(c.bytes)
			if c.fds > 0 {
				_, _, more := taker.WriteMsgUnix([]byte{0}, unix.UnixRights(files...), nil)
				err = errors.Join(err, more)
			}
			written <- errors.Join(err, taker.CloseWrite())
		}()
		if m, fds, err := (conn{giver}).receive(); err == nil {
			t.Errorf("%s: received %+v with %v", name, m, fds)
		}
		if err := <-written; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if now := open(); now != before {
			t.Errorf("%s: %d descriptors are open, were %d", name, now, before)
		}
	}
}

// Whatever is parsed is written again as it was understood.
func FuzzParse(f *testing.F) {
	for _, m := range []message{
		{Type: "ask", Version: Version},
		{Type: "offer", Parts: []capsule.Part{{Name: "a", Value: json.RawMessage(`{"b":{}}`), Descriptors: 3}}, FDs: 3},
		{Type: "taken"},
		{Type: "yours"},
		{Type: "withdrawn", Reason: "busy"},
	} {
		body, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var m, again message
		if json.Unmarshal(body, &m) != nil {
			return
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		same := slices.EqualFunc(m.Parts, again.Parts, func(a, b capsule.Part) bool {
			var x, y bytes.Buffer
			return a.Name == b.Name && a.Descriptors == b.Descriptors &&
				(a.Value == nil || json.Compact(&x, a.Value) == nil && json.Compact(&y, b.Value) == nil && bytes.Equal(x.Bytes(), y.Bytes()))
		})
		if !same || !slices.Equal([]any{m.Type, m.Version, m.FDs, m.Reason}, []any{again.Type, again.Version, again.FDs, again.Reason}) {
			t.Errorf("%+v, then %+v", m, again)
		}
	})
}
