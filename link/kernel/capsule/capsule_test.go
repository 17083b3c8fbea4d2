package capsule

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

type value struct {
	A int    `json:"a"`
	B string `json:"b"`
}

// open returns how many descriptors this process has.
func open(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// pipe returns the read end of a pipe that contains a text.
func pipe(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r
}

// passed passes the contents of a Writer, with their descriptors, to a Reader in this process.
func passed(w *Writer) (*Reader, error) {
	parts, fds, err := w.Contents()
	if err != nil {
		return nil, err
	}
	w.to.fds = nil
	return NewReader(parts, fds)
}

// textOf reads from a descriptor, and closes it.
func textOf(t *testing.T, fd int) string {
	t.Helper()
	b := make([]byte, 100)
	n, err := unix.Read(fd, b)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// Whatever the order in which parts are put in and taken out, each has its value and its descriptors, and what was not
// taken is closed.
func TestParts(t *testing.T) {
	one, two, three := pipe(t, "1"), pipe(t, "2"), pipe(t, "3")
	before := open(t)
	w := NewWriter()
	var all sync.WaitGroup
	all.Go(func() { w.Put("a", value{1, "x"}, one) })
	all.Go(func() { w.Room("r").Put("a", value{2, "y"}, two, three) })
	all.Go(func() { w.Room("r").PutFDs("b", nil, int(three.Fd())) })
	all.Go(func() { w.Room("r").Room("s").Put("c", 7) })
	all.Wait()
	r, err := passed(w)
	if err != nil {
		t.Fatal(err)
	}
	v := value{B: "default"}
	fds, err := r.Room("r").Take("a", &v)
	if err != nil || v != (value{2, "y"}) || len(fds) != 2 || textOf(t, fds[0])+textOf(t, fds[1]) != "23" {
		t.Errorf("%+v, %v, %v", v, fds, err)
	}
	if _, err := r.Room("r").Take("a", &v); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "r/a") {
		t.Errorf("taken twice: %v", err)
	}
	n := 0
	if err := r.Room("r").Room("s").Value("c", &n); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	if fds := r.Descriptors("a"); len(fds) != 1 || textOf(t, fds[0]) != "1" {
		t.Errorf("%v", fds)
	}
	r.Close()
	w.Close()
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, were %d", now, before)
	}
}

// A part of another version may have fewer fields, more, and descriptors of no use. A missing one leaves the defaults.
func TestOtherVersions(t *testing.T) {
	before := open(t)
	w := NewWriter()
	w.Put("a", map[string]any{"a": 1, "newer": []int{1}})
	w.Put("b", value{3, "x"}, os.Stdin)
	w.Put("newer", nil, os.Stdin)
	w.Put("bad", "text", os.Stdin)
	r, err := passed(w)
	if err != nil {
		t.Fatal(err)
	}
	v := value{5, "default"}
	if err := r.Value("a", &v); err != nil || v != (value{1, "default"}) {
		t.Errorf("%+v, %v", v, err)
	}
	if err := r.Value("b", &v); err != nil || v != (value{3, "x"}) {
		t.Errorf("%+v, %v", v, err)
	}
	if err := r.Value("missing", &v); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
	if err := r.ValueIfAny("missing", &v); err != nil || v != (value{3, "x"}) || r.Descriptors("missing") != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if err := r.Value("bad", &v); err == nil || !strings.Contains(err.Error(), "bad: json") {
		t.Errorf("a text for an object: %v", err)
	}
	r.Close()
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, were %d", now, before)
	}
}

// What cannot be put in is reported once the capsule is complete, and nothing of it stays open.
func TestWriterFails(t *testing.T) {
	closed := pipe(t, "")
	closed.Close()
	before := open(t)
	for name, put := range map[string]func(*Writer){
		"json: unsupported type":  func(w *Writer) { w.Put("a", func() {}) },
		"r/a: ":                   func(w *Writer) { w.Room("r").Put("a", nil, os.Stdin, closed) },
		"bad file descriptor":     func(w *Writer) { w.PutFDs("a", nil, -1) },
		"has no descriptor":       func(w *Writer) { w.PutListener("a", struct{ net.Listener }{}) },
		"duplicate a descriptor:": func(w *Writer) { w.PutFDs("a", nil, 0, 1<<20) },
	} {
		w := NewWriter()
		w.Put("good", 1, os.Stdin)
		put(w)
		if _, err := passed(w); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
		w.Close()
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, were %d", now, before)
	}
}

// A listening socket goes on with those who connected to it.
func TestListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := NewWriter()
	w.PutListener("l", l)
	r, err := passed(w)
	if err != nil {
		t.Fatal(err)
	}
	next, err := r.Listener("l")
	if err != nil || next.Addr().String() != l.Addr().String() {
		t.Errorf("%v, %v", next, err)
	}
	if _, err := r.Listener("l"); !errors.Is(err, ErrMissing) {
		t.Errorf("taken twice: %v", err)
	}
	_, _ = next.Close(), l.Close()
}

// Each descriptor belongs to one part, whatever the numbers are that another process has sent.
func TestNewReaderChecks(t *testing.T) {
	before := open(t)
	for name, parts := range map[string][]Part{
		"a descriptor too many": {{Name: "a", Descriptors: 1}},
		"one too few":           {{Name: "a", Descriptors: 3}},
		"a negative number":     {{Name: "a", Descriptors: -1}, {Name: "b", Descriptors: 3}},
		"the same name twice":   {{Name: "a", Descriptors: 1}, {Name: "a", Descriptors: 1}},
	} {
		fds := []int{dup(t), dup(t)}
		if r, err := NewReader(parts, slices.Clone(fds)); err == nil {
			t.Errorf("%s: accepted", name)
			r.Close()
		}
	}
	if now := open(t); now != before {
		t.Errorf("%d descriptors are open, were %d", now, before)
	}
}

func dup(t *testing.T) int {
	t.Helper()
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// Whatever another process sends, every descriptor is closed, once.
func FuzzReader(f *testing.F) {
	for _, parts := range [][]Part{
		{{Name: "a", Value: json.RawMessage(`{"a":1}`), Descriptors: 2}},
		{{Name: "a", Value: json.RawMessage(`null`), Descriptors: 1}, {Name: "r/b", Value: json.RawMessage(`[]`), Descriptors: 1}},
		{{Name: "a"}, {Name: "a"}},
	} {
		text, err := json.Marshal(parts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var parts []Part
		if json.Unmarshal(text, &parts) != nil {
			return
		}
		fds := []int{dup(t), dup(t)}
		r, err := NewReader(parts, slices.Clone(fds))
		if err == nil {
			var v value
			taken, _ := r.Take("a", &v)
			for _, fd := range taken {
				if err := unix.Close(fd); err != nil {
					t.Errorf("a part's descriptor %d: %v", fd, err)
				}
			}
			r.Close()
		}
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				t.Errorf("descriptor %d is still open", fd)
			}
		}
	})
}
