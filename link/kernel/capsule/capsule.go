// Package capsule carries the state of running objects from one process to another, which may be of another version:
// values as JSON, and descriptors.
//
// A capsule is a list of parts. A part has a name, such as "interfaces/ib0/tap", a value, and descriptors. The names of
// parts and the JSON names in their values are the format, and outlive versions: they keep their meaning, a reader
// ignores those that it does not know, and decodes each value over its own defaults. So a version may add parts and
// fields, and stop writing those that no other version needs.
//
// A descriptor has one owner at any time. A [Writer] duplicates what it is given, and Close closes the duplicates. A
// [Reader] owns what it received until Take; Close closes what was not taken.
package capsule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"ipoibd/link/kernel"
)

// ErrMissing means that a capsule has no such part.
var ErrMissing = errors.New("the state has no such part")

// Part is what a capsule says about one object.
type Part struct {
	Name        string          `json:"name"`
	Value       json.RawMessage `json:"value"`
	Descriptors int             `json:"descriptors,omitempty"`
}

// Writer fills a capsule. Any number of goroutines may use it, and its rooms, at the same time.
type Writer struct {
	room string
	to   *contents
}

type contents struct {
	mu    sync.Mutex
	parts []Part
	fds   []int // in the order of parts
	err   error // the first one
}

// NewWriter returns a Writer of an empty capsule.
func NewWriter() *Writer { return &Writer{to: &contents{}} }

// Room returns a Writer into the same capsule that puts name and a slash in front of the names of parts.
func (w *Writer) Room(name string) *Writer { return &Writer{w.room + name + "/", w.to} }

// Put adds a part with duplicates of the descriptors of files. Contents returns its error.
func (w *Writer) Put(name string, value any, files ...syscall.Conn) {
	put(w, name, value, files, kernel.Duplicate)
}

// PutFDs is Put of descriptors.
func (w *Writer) PutFDs(name string, value any, fds ...int) {
	put(w, name, value, fds, kernel.DuplicateFD)
}

// PutListener is Put of a listening socket without a value.
func (w *Writer) PutListener(name string, l net.Listener) {
	c, ok := l.(syscall.Conn)
	if !ok {
		w.fail(fmt.Errorf("%s%s: a %T has no descriptor", w.room, name, l))
		return
	}
	w.Put(name, nil, c)
}

func (w *Writer) fail(err error) {
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	w.to.err = errors.Join(w.to.err, err)
}

func put[F any](w *Writer, name string, value any, files []F, duplicate func(F) (int, error)) {
	name = w.room + name
	text, err := json.Marshal(value)
	var fds []int
	for i := 0; err == nil && i < len(files); i++ {
		var fd int
		if fd, err = duplicate(files[i]); err == nil {
			fds = append(fds, fd)
		}
	}
	if err != nil {
		kernel.CloseAll(fds)
		w.fail(fmt.Errorf("%s: %w", name, err))
		return
	}
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	w.to.parts, w.to.fds = append(w.to.parts, Part{name, text, len(fds)}), append(w.to.fds, fds...)
}

// Contents returns the parts, and their descriptors in the same order, which stay the Writer's.
func (w *Writer) Contents() ([]Part, []int, error) {
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	return w.to.parts, w.to.fds, w.to.err
}

// Close closes the descriptors.
func (w *Writer) Close() {
	w.to.mu.Lock()
	defer w.to.mu.Unlock()
	kernel.CloseAll(w.to.fds)
	w.to.fds = nil
}

// Reader takes parts out of a capsule. One goroutine uses it, and its rooms.
type Reader struct {
	room string
	from map[string]*content
}

type content struct {
	value json.RawMessage
	fds   []int
}

// NewReader returns a Reader of what [Writer.Contents] has returned. It owns the descriptors from then on, also after
// an error.
func NewReader(parts []Part, fds []int) (*Reader, error) {
	r := &Reader{from: map[string]*content{}}
	for _, p := range parts {
		if p.Descriptors < 0 || p.Descriptors > len(fds) || r.from[p.Name] != nil {
			r.Close()
			kernel.CloseAll(fds)
			return nil, fmt.Errorf("%q comes twice, or announces %d descriptors where %d are left",
				p.Name, p.Descriptors, len(fds))
		}
		if p.Value == nil {
			p.Value = json.RawMessage("null")
		}
		r.from[p.Name] = &content{p.Value, fds[:p.Descriptors:p.Descriptors]}
		fds = fds[p.Descriptors:]
	}
	if len(fds) > 0 {
		r.Close()
		kernel.CloseAll(fds)
		return nil, fmt.Errorf("%d descriptors belong to no part", len(fds))
	}
	return r, nil
}

// Room returns a Reader of the parts that [Writer.Room] of this name has put in.
func (r *Reader) Room(name string) *Reader { return &Reader{r.room + name + "/", r.from} }

// Take decodes the value of a part over into, which has the defaults, and returns the part's descriptors, which the
// caller owns. Each part can be taken once. Errors: ErrMissing, and those of json.Unmarshal; then the descriptors stay
// the Reader's.
func (r *Reader) Take(name string, into any) (fds []int, err error) {
	c := r.from[r.room+name]
	if c == nil {
		return nil, fmt.Errorf("%s%s: %w", r.room, name, ErrMissing)
	}
	if err := json.Unmarshal(c.value, into); err != nil {
		return nil, fmt.Errorf("%s%s: %w", r.room, name, err)
	}
	delete(r.from, r.room+name)
	return c.fds, nil
}

// Value is Take of a part without descriptors.
func (r *Reader) Value(name string, into any) error {
	fds, err := r.Take(name, into)
	kernel.CloseAll(fds) // of another version
	return err
}

// ValueIfAny is Value of a part that may be missing. Then into keeps the defaults.
func (r *Reader) ValueIfAny(name string, into any) error {
	err := r.Value(name, into)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}

// Descriptors is Take of a part without a value. If the part is missing, there are none.
func (r *Reader) Descriptors(name string) []int {
	var ignored any
	fds, _ := r.Take(name, &ignored)
	return fds
}

// Listener is Take of a part that has a listening socket and no value. Errors: ErrMissing, those of net.FileListener.
func (r *Reader) Listener(name string) (net.Listener, error) {
	fds := r.Descriptors(name)
	if len(fds) != 1 {
		kernel.CloseAll(fds)
		return nil, fmt.Errorf("%s%s: %w", r.room, name, ErrMissing)
	}
	file := os.NewFile(uintptr(fds[0]), name)
	defer file.Close()
	return net.FileListener(file)
}

// Close closes the descriptors of the parts that were not taken.
func (r *Reader) Close() {
	for name, c := range r.from {
		kernel.CloseAll(c.fds)
		delete(r.from, name)
	}
}
